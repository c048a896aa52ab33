"""What a client may change: limits of the jobs that it submits, and whose jobs it may change."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.compat.mcp.tool import InvalidArguments
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENT = "mcp"
"""The value of a job's `client` by which its origin is known."""
UNFINISHED = "PENDING,QUEUED,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"
MAX_COUNTED = 10_000


class WriteLimits:
    """The limits of one server; all jobs with client `mcp` count, whichever server sent them."""

    def __init__(
        self, *, own: bool = False, max_gpus: float | None = None, max_jobs: int | None = None,
        max_hours: float | None = None, queue: str | None = None,
    ) -> None:  # fmt: skip
        self.own, self.queue = own, queue
        self.max_gpus, self.max_jobs, self.max_hours = max_gpus, max_jobs, max_hours

    def apply(self, options: dict[str, object]) -> dict[str, object]:
        """Return the options of a submission with the queue and the time limit filled in."""
        options = {**options, "client": CLIENT}
        if self.queue is not None and options.setdefault("queue", self.queue) != self.queue:
            raise InvalidArguments(f"Jobs of this server go to queue {self.queue}.")
        if self.max_hours is not None:
            options.setdefault("time", minutes(self.max_hours))
        return options

    def check_hours(self, hours: float | None) -> None:
        """Raise if a time limit is too long."""
        if self.max_hours is not None and hours is not None and hours > self.max_hours:
            raise InvalidArguments(f"The time limit may be {self.max_hours:g} hours at most.")

    def check_size(self, client: Client, jobs: int, gpus: float) -> None:
        """Raise if these further jobs, with these GPUs together, exceed a limit."""
        if self.max_jobs is None and self.max_gpus is None:
            return
        reply = client.jobs([], client=CLIENT, state=UNFINISHED, limit=MAX_COUNTED)
        count = len(reply["jobs"]) + int(reply.get("more") or 0)
        if self.max_jobs is not None and count + jobs > self.max_jobs:
            raise InvalidArguments(
                f"At most {self.max_jobs} unfinished jobs are allowed; there are {count}, and "
                f"this would add {jobs}. Wait for some to end."
            )
        held = sum(map(gpus_of, reply["jobs"]))
        if self.max_gpus is not None and gpus and held + gpus > self.max_gpus:
            raise InvalidArguments(
                f"Unfinished jobs may request {self.max_gpus:g} GPUs together; they request "
                f"{held:g}, and this would add {gpus:g}. Request fewer, or wait for some to end."
            )

    def check_jobs(self, views: Sequence[JsonObject]) -> None:
        """Raise if one of the jobs may not be changed."""
        others = [str(view["label"]) for view in views if view.get("client") != CLIENT]
        if self.own and others:
            raise InvalidArguments(
                f"Not submitted through this server, which may change its own jobs only: "
                f"{', '.join(others[:10])}."
            )


def gpus_of(view: JsonObject) -> float:
    """Return how many GPUs a job may hold."""
    request = view["request"]
    gpus = request.get("most_gpus") or request.get("gpus") or "0"
    return float(gpus) * int(request.get("machines") or 1)


def minutes(hours: float) -> str:
    """Return hours as a time limit."""
    return f"{max(round(hours * 3600), 1)}s"
