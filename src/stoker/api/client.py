"""The verbs of the command line, for Python: typed values in and out, errors as exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from signal import Signals
from typing import Any, Protocol, Unpack, overload

from stoker import wire
from stoker.api import daemon_client as link
from stoker.api import inputs as given
from stoker.api import stream
from stoker.api.errors import NotFound, UsageError, never_starts
from stoker.api.inputs import selector, selectors
from stoker.api.jobs import Changed, Drained, Event, Gpu, Job, Node, Why
from stoker.api.options import JobOptions, as_options
from stoker.api.submit_context import submission
from stoker.api.sweeps import Sweeps
from stoker.client import reconnect


class HasJob(Protocol):
    """Something that stands for a job, such as a future."""

    @property
    def job_id(self) -> str:
        """The job's label."""


Word = str | int | float | os.PathLike[str]
Which = int | str | Job | HasJob | Iterable[Any]
"""A job: its id, its label, a name, a range, `last`, what `submit` returned; or several."""
MOST = 1_000_000
AT_ONCE = 1000
"""So many selectors fit into the address of a request."""


class Client(Sweeps):
    """A client of this user's daemon, which is started at the first request if need be.

    `path` is another daemon's socket. With STOKER_SERVER in the environment it is the daemon there.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, start: bool = True) -> None:
        self.link = link.connect(start, os.fspath(path) if path is not None else None)

    def __repr__(self) -> str:
        return f"<stoker.Client of {self.link.key}>"

    # -- run things -----------------------------------------------------------------------

    @overload
    def submit(
        self, command: str | Sequence[Word], *, array: str, **options: Unpack[JobOptions]
    ) -> list[Job]: ...
    @overload
    def submit(
        self, command: str | Sequence[Word], *, array: None = None, **options: Unpack[JobOptions]
    ) -> Job: ...
    def submit(
        self,
        command: str | Sequence[Word],
        *,
        array: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job | list[Job]:
        """Queue a command: its words, or a line for the shell. An array gives a list of jobs."""
        reply = self.send(given.command(command), {**options, "array": array})
        jobs = self._found(reply)
        return jobs if array is not None else jobs[0]

    def submit_lines(self, lines: Iterable[str], **options: Unpack[JobOptions]) -> list[Job]:
        """Queue one job for each shell line; all of them or none."""
        return self._found(self.send({"lines": list(lines)}, options))

    def run(
        self,
        command: str | Sequence[Word],
        *,
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Queue a command and wait for its end."""
        patience = given.seconds(timeout)
        return self.wait(self.submit(command, **options), timeout=patience)[0]

    def send(self, what: Mapping[str, object], options: Mapping[str, object]) -> dict[str, Any]:
        """Submit; return the reply as docs/api.md has it."""
        body = {"what": dict(what), **submission(options)}
        return self.link.submit(body)

    def _found(self, reply: Mapping[str, Any]) -> list[Job]:
        """The jobs of a receipt: they are queued, so a daemon that restarts now is waited for."""
        select = [f"{reply['first']}-{reply['last']}"]
        return reconnect.retry(lambda: self._jobs(select))

    # -- look -----------------------------------------------------------------------------

    def jobs(
        self,
        *which: Which,
        state: str | Iterable[str] | None = None,
        user: str | None = None,
        queue: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return jobs: those named, else all unfinished and the failures not yet seen."""
        select = selectors(which)
        if which and not select:
            return []  # none of none: not all that there are
        return self._jobs(select, state=_joined(state), user=user, queue=queue, limit=limit)

    queue = jobs

    def show(self, which: Which) -> Job:
        """Return one job."""
        found = self.jobs(which)
        if len(found) != 1:
            raise UsageError(f"{which!r:.60} matches {len(found)} jobs; jobs() returns them all.")
        return found[0]

    def why(self, which: Which) -> Why:
        """Say why a job waits, and when it should start."""
        return Why.of(self.link.why(selector(which)))

    def logs(
        self,
        which: Which,
        *,
        stream: str = "out",
        tail: int | None = None,
        attempt: int | None = None,
        part: int | None = None,
    ) -> str:
        """Return what a job has written so far; `stream="err"` is a stderr of its own."""
        given.one_of(stream, given.STREAMS, "stream")
        label = selector(which)
        if attempt is not None:
            self._check_attempt(label, attempt)
        data = self.link.log(label, stream=stream, tail=tail, attempt=attempt, part=part)
        return b"".join(data).decode("utf-8", "replace")

    def follow(self, which: Which, *, stream: str = "out") -> Iterator[str]:
        """Yield a job's lines as it writes them, until it has ended."""
        given.one_of(stream, given.STREAMS, "stream")
        rest = b""
        for piece in reconnect.follow_attempts(self.link, selector(which), 0, stream=stream):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")

    def wait(self, *which: Which, any: bool = False, timeout: float | None = None) -> list[Job]:
        """Wait until jobs have ended, or one of them with `any`; TimeoutError when time is up."""
        select = selectors(which)
        reply = reconnect.wait(self.link, select, any_of=any, timeout=given.seconds(timeout))
        for stuck in reply.get("stuck") or ():
            raise never_starts(stuck, reply["jobs"])
        if not reply["finished"]:
            raise TimeoutError(f"The jobs have not ended within {timeout} s.")
        if len(reply["jobs"]) < int(reply.get("count") or 0):
            return self._jobs(select)
        return [Job.of(view) for view in reply["jobs"]]

    def history(
        self,
        *which: Which,
        state: str | Iterable[str] | None = None,
        user: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        since: object = None,
        until: object = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return jobs of the past, the newest last."""
        reply = self.link.history(
            selectors(which), state=_joined(state), user=user, name=name, queue=queue,
            since=_moment(since), until=_moment(until), limit=limit,
        )  # fmt: skip
        return [Job.of(view) for view in reply["jobs"]]

    def gpus(self) -> list[Gpu]:
        """Return all GPUs: use, memory, whose job."""
        return [Gpu.of(view) for view in self.link.gpus()["gpus"]]

    def nodes(self) -> list[Node]:
        """Return all machines, and what is free on them."""
        return [Node.of(view) for view in self.link.nodes()["nodes"]]

    def events(self, after: int | None = None) -> Iterator[Event]:
        """Yield what happens, for ever; `after` is the `seq` of the last event that is known."""
        return stream.events(self.link, after)

    # -- change ---------------------------------------------------------------------------

    def cancel(self, *which: Which) -> Changed:
        """Take jobs off the queue, or end them: TERM, a grace time, KILL."""
        return self._act("cancel", which)

    def kill(self, *which: Which, signal: str | int | Signals | None = None) -> Changed:
        """Send a signal to running jobs; without one, end them at once."""
        return self._act("kill", which, signal=given.signal_name(signal))

    def pause(self, *which: Which) -> Changed:
        """Stop running jobs in place; they keep their devices."""
        return self._act("pause", which)

    def resume(self, *which: Which) -> Changed:
        """Let paused jobs go on."""
        return self._act("resume", which)

    def hold(self, *which: Which) -> Changed:
        """Keep queued jobs from starting."""
        return self._act("hold", which)

    def release(self, *which: Which) -> Changed:
        """Let held jobs start."""
        return self._act("release", which)

    def retry(self, *which: Which, failed: bool = False, same_gpus: bool = False) -> Changed:
        """Run finished jobs again; `failed` and none named: failures that were not dismissed."""
        return self._act("retry", which, failed=failed, same_gpus=same_gpus)

    def edit(self, *which: Which, **options: Unpack[JobOptions]) -> Changed:
        """Change queued jobs."""
        return self._act("edit", which, options=as_options(options))

    def move(self, *which: Which, where: str = "first", other: Which | None = None) -> Changed:
        """Change the order of queued jobs: `first`, `last`, `before` or `after` the `other`."""
        given.one_of(where, given.PLACES, "where")
        if (where in {"before", "after"}) != (other is not None):
            raise UsageError(
                "where='before' and where='after' need another job; first and last do not."
            )
        beside = selector(other) if other is not None else None
        # Several are moved in the order in which they are named.
        reply = self.link.act("move", selectors(which), where=where, other=beside)
        return Changed.of(reply)

    def dismiss(self, *which: Which) -> Changed:
        """Dismiss failures: they are no longer listed."""
        return self._act("jobs/dismiss", which)

    # -- manage ---------------------------------------------------------------------------

    def drain(self, *devices: str | int, reason: str | None = None) -> Drained:
        """Start nothing more on these devices: `0`, `gpu1/0`, a whole machine, `all`."""
        return Drained.of(self.link.drain(given.devices(devices), reason))

    def undrain(self, *devices: str | int) -> Drained:
        """Use drained devices again."""
        return Drained.of(self.link.undrain(given.devices(devices)))

    def daemon(self) -> dict[str, Any]:
        """Describe the daemon itself."""
        return self.link.daemon()

    # -- requests -------------------------------------------------------------------------

    def _jobs(self, select: Sequence[str], **filters: object) -> list[Job]:
        if select and not filters.get("limit"):
            filters["limit"] = MOST
        views: dict[int, dict[str, Any]] = {}
        for start in range(0, len(select) or 1, AT_ONCE):
            page = self.link.jobs(select[start : start + AT_ONCE], **filters)["jobs"]
            views.update((int(view["id"]), view) for view in page)
        return [Job.of(view) for view in views.values()]

    def _act(self, verb: str, which: Iterable[Any], **more: object) -> Changed:
        return Changed.of(self.link.act(verb, selectors(which, ordered=False), **more))

    def _check_attempt(self, label: str, attempt: int) -> None:
        """An attempt that never began has no log."""
        for view in self.link.jobs([label], limit=1)["jobs"]:
            last = int(view["attempt"])
            begun = view["state"] != "PENDING" or last == 0
            if attempt > last or (attempt == last and not begun):
                sentence = f"There is no attempt {attempt} of job {view['label']}."
                raise NotFound(sentence, wire.EXIT_NOT_FOUND, "not_found")


def _joined(state: str | Iterable[str] | None) -> str | None:
    return state if state is None or isinstance(state, str) else ",".join(state)


def _moment(value: object) -> str | None:
    isoformat = getattr(value, "isoformat", None)
    if isoformat is not None:
        return str(isoformat())
    return str(value) if value is not None else None
