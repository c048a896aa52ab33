"""TopModel: what `stoker top` knows; it asks the daemon, and takes frames of the live stream."""

from __future__ import annotations

from stoker.client import transport
from stoker.client.client import Client
from stoker.client.errors import DaemonUnreachable, NotFound, StokerError
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GPUS, QUEUE, JOB, SWEEPS, NODES, HELP = "1", "2", "3", "4", "5", "?"
HOLDING = ("CONFIGURING", "QUEUED", "RUNNING", "SUSPENDED", "COMPLETING")
SORTS = ("start", "submitted", "elapsed", "name")
NEEDED = ("id", "array", "first", "name", "user", "state", "gpus", "held", "started", "expected",
          "epochs", "total_epochs")  # fmt: skip
"""Columns that the screens show."""
LOG_LINES = 200
HISTORY_MINUTES = 10
HISTORY_POINTS = 120
MAX_WINDOW = 400


class TopModel:
    """All data of the screens, and what is selected on them."""

    def __init__(self, client: Client, user: str = "") -> None:
        self.client, self.user = client, user
        self.screen = GPUS
        self.boot = ""
        self.note = ""
        """Why the figures are old; empty while they are new."""
        self.message = ""
        """What the last action did."""
        self.counts: dict[str, int] = {}
        self.gpus: list[JsonObject] = []
        self.readings: dict[str, list[Any]] = {}
        """The last frame of each GPU, by NODE/ID."""
        self.history: dict[str, list[float | None]] = {}
        self.running: dict[int, JsonObject] = {}
        self.alarms: list[JsonObject] = []
        self.rows: list[JsonObject] = []
        self.total = 0
        self.first = 0
        """Position in the list of the first of `rows`."""
        self.cursor = self.top = 0
        self.chosen: dict[int, str] = {}
        """Labels of the jobs that are selected by x in the queue."""
        self.text, self.sort = "", SORTS[0]
        self.job: JsonObject | None = None
        self.why: JsonObject = {}
        self.log: list[str] = []
        self.curve: tuple[str, list[list[float | None]]] | None = None
        self.nodes: list[JsonObject] = []
        self.sweeps: list[JsonObject] = []
        self.sweep: JsonObject | None = None
        """The sweep of which the queue shows the trials; None for all jobs."""
        self.is_outdated = True
        """Whether jobs have changed since the list was loaded."""

    # -- requests -----------------------------------------------------------------------

    def load(self) -> None:
        """Load what the first screen shows."""
        self.gpus = self.client.gpus()["gpus"]
        self.readings = {
            f"{gpu['node']}/{gpu['id']}": [
                "", gpu["utilization"], gpu["memory_used"], gpu["temperature"], gpu["power"],
                gpu["state"], [[job["id"], job["share"], job["memory"]] for job in gpu["jobs"]],
            ]
            for gpu in self.gpus
        }  # fmt: skip
        self.load_history()
        self.alarms = self.client.alarms()["alarms"]
        holding = self._columns(state=",".join(HOLDING), limit=1000)
        self.running = {row["id"]: row for row in holding[0]}

    def load_history(self) -> None:
        """Load the use of the GPUs over the last minutes."""
        seconds = HISTORY_MINUTES * 60
        reply = self.client.gpu_history(minutes=HISTORY_MINUTES, step=seconds // HISTORY_POINTS)
        self.history = {key: series["utilization"] for key, series in reply["gpus"].items()}

    def load_rows(self, height: int) -> None:
        """Load the jobs around the cursor."""
        size = min(max(height * 3, 50), MAX_WINDOW)
        self.first = max(self.cursor - size // 2, 0)
        self.rows, reply = self._columns(
            offset=self.first, limit=size, text=self.text or None, sort=self.sort,
            user=self.user or None, sweep=self.sweep["id"] if self.sweep else None,
        )  # fmt: skip
        self.total = reply["total"]
        if not (self.text or self.user or self.sweep):
            self.counts = reply["counts"]
        self.is_outdated = False
        if self.cursor >= self.total > 0:
            self.cursor = self.total - 1
            self.load_rows(height)

    def _columns(self, **query: object) -> tuple[list[JsonObject], JsonObject]:
        reply = self.client.columns(**query)
        return rows_of(reply), reply

    def load_job(self, id: int) -> None:
        """Load a job with its reason, the end of its output and its first metric."""
        selector = exact(id)
        views = self.client.jobs([selector])["jobs"]
        if not views:
            raise NotFound(f"There is no job {id}.")
        self.job = views[0]
        self.why = self.client.why(selector) if self.job["result"] is None else {}
        self.load_log()
        self.curve = None
        metrics = self.client.metrics(selector, points=200)
        for name, points in metrics["series"].items():
            if len(points) > 1:
                self.curve = name, points
                break

    def load_log(self) -> None:
        """Load the end of the output of the job."""
        if self.job is None:
            return
        try:
            data = b"".join(self.client.log(exact(self.job["id"]), tail=LOG_LINES))
        except StokerError:
            data = b""
        lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
        # A progress bar rewrites its line: only what would still be on the screen counts.
        self.log = [line.rstrip("\r").rpartition("\r")[2] for line in lines]

    def load_nodes(self) -> None:
        """Load the nodes."""
        self.nodes = self.client.nodes()["nodes"]

    def load_sweeps(self) -> None:
        """Load the sweeps, the newest first."""
        self.sweeps = self.client.sweeps(all=True)["sweeps"][::-1]

    # -- frames -------------------------------------------------------------------------

    def take(self, event: str, data: JsonObject) -> None:
        """Take a frame of the live stream."""
        if event == "hello":
            if self.boot and data["boot"] != self.boot:
                self.load()
            self.boot, self.is_outdated = data["boot"], True
        elif event == "gpus":
            self.readings = {row[0]: row for row in data["g"]}
        elif event == "counts":
            self.counts = data["counts"]
        elif event == "alarms":
            self.alarms = data["alarms"]
        elif event == "jobs":
            self._take_jobs(data)

    def job_alarms(self, id: int) -> list[JsonObject]:
        """Return the alarms of a job."""
        return [alarm for alarm in self.alarms if alarm["job"] == id]

    def _take_jobs(self, data: JsonObject) -> None:
        self.is_outdated = True
        if data.get("reset"):
            holding, _ = self._columns(state=",".join(HOLDING), limit=1000)
            self.running = {row["id"]: row for row in holding}
            return
        for row in data["changed"]:
            if row["state"] in HOLDING:
                self.running[row["id"]] = row
            else:
                self.running.pop(row["id"], None)
        for id in data["gone"]:
            self.running.pop(id, None)

    # -- selection ----------------------------------------------------------------------

    def length(self) -> int:
        """Return how many lines can be selected on this screen."""
        if self.screen == QUEUE:
            return self.total
        lists = {GPUS: self.readings, SWEEPS: self.sweeps, NODES: self.nodes}
        return len(lists.get(self.screen, ()))

    def move(self, distance: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + distance, 0), max(self.length() - 1, 0))

    def selected_sweep(self) -> JsonObject | None:
        """Return the selected sweep."""
        is_there = self.screen == SWEEPS and self.cursor < len(self.sweeps)
        return self.sweeps[self.cursor] if is_there else None

    def selected_job(self) -> tuple[int, str] | None:
        """Return the id and the label of the selected job."""
        job: JsonObject | None = None
        if self.screen == JOB:
            job = self.job
        if self.screen == QUEUE:
            at = self.cursor - self.first
            job = self.rows[at] if 0 <= at < len(self.rows) else None
        if job is not None:
            return int(job["id"]), str(job["label"])
        if self.screen == GPUS:
            rows = list(self.readings.values())
            jobs = rows[self.cursor][6] if self.cursor < len(rows) else []
            if jobs:
                id = int(jobs[0][0])
                return id, str(self.running.get(id, {}).get("label", id))
        return None

    def choose(self) -> None:
        """Select or deselect the job at the cursor, and move to the next."""
        job = self.selected_job()
        if job is not None and self.chosen.pop(job[0], None) is None:
            self.chosen[job[0]] = job[1]
        self.move(1)

    def chosen_jobs(self) -> list[tuple[int, str]]:
        """Return the selected jobs of the queue; without any, the one at the cursor."""
        if self.screen == QUEUE and self.chosen:
            return sorted(self.chosen.items())
        job = self.selected_job()
        return [job] if job is not None else []


def exact(id: int) -> str:
    """Return the selector of one job alone: `12` would select all of array 12."""
    return f"{id}-{id}"


def rows_of(reply: JsonObject) -> list[JsonObject]:
    """Return the rows of columns, with texts in place of numbers."""
    columns = dict(reply["columns"])
    if missing := [name for name in NEEDED if name not in columns]:
        raise DaemonUnreachable(
            f"The daemon is older than this command: its lists have no {', '.join(missing)}. "
            "Run `stoker daemon restart`; jobs continue to run."
        )
    for name, texts in reply["dictionary"].items():
        columns[name] = [None if code is None else texts[code] for code in columns[name]]
    names = list(columns)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for row in rows:
        id, array = row["id"], row["array"]
        row["label"] = str(id) if array is None else f"{array}_{id - array + row['first']}"
    return rows


class LiveStream:
    """Frames of `GET /live`, read when its descriptor is readable."""

    def __init__(self, client: Client, topics: str) -> None:
        reply = client.open("GET", f"/v1/live?topics={topics}", None, None, retry=False)
        self._sock, data = reply.detach()
        self._decoder = transport.ChunkedDecoder()
        self._text = b""
        self._frames: list[tuple[str, JsonObject]] = []
        self._parse(data)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def receive(self) -> bool:
        """Read what has arrived; False if the daemon closed the connection."""
        try:
            piece = self._sock.recv(transport.RECEIVE_BYTES)
        except OSError:
            piece = b""
        self._parse(piece)
        return bool(piece)

    def take(self) -> list[tuple[str, JsonObject]]:
        """Return the frames since the last call."""
        frames, self._frames = self._frames, []
        return frames

    def _parse(self, data: bytes) -> None:
        from stoker.client.fast_json import loads

        *blocks, self._text = (self._text + self._decoder.feed(data)).split(b"\n\n")
        for block in blocks:
            event, _, content = block.partition(b"\ndata: ")
            if content:
                self._frames.append((event.decode().removeprefix("event: "), loads(content)))
