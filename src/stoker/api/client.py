"""The verbs of the command line for Python: typed values, errors as exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from signal import Signals
from typing import Any, Protocol, Unpack, overload

from stoker.api import daemon_client, stream
from stoker.api.arguments import inputs
from stoker.api.arguments.inputs import selector, selectors
from stoker.api.arguments.options import JobOptions, as_options, submission
from stoker.api.errors import never_starts_error
from stoker.api.jobs import Changed, Drained, Event, Gpu, Job, Node, Why
from stoker.api.sweeps import Sweeps
from stoker.client import reconnect
from stoker.client.client import require_attempt
from stoker.client.errors import UsageError


class HasJob(Protocol):
    """An object with a job, such as a future."""

    @property
    def job_id(self) -> str:
        """The job's label."""


CommandWord = str | int | float | os.PathLike[str]
JobSelector = int | str | Job | HasJob | Iterable[Any]
"""One or several jobs: an id, label, name, range, `last`, or what `submit` returned."""
MAX_JOBS = 1_000_000
MAX_SELECTORS_PER_REQUEST = 1000
"""Selectors that fit into the target of a request."""


class Client(Sweeps):
    """A client of this user's daemon, which the first request starts if necessary.

    `path` is another daemon's socket. STOKER_SERVER in the environment names another daemon.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, start: bool = True) -> None:
        self.daemon_client = daemon_client.connect(
            start, os.fspath(path) if path is not None else None
        )

    def __repr__(self) -> str:
        return f"<stoker.Client of {self.daemon_client.key}>"

    # -- submit ---------------------------------------------------------------------------

    @overload
    def submit(
        self, command: str | Sequence[CommandWord], *, array: str, **options: Unpack[JobOptions]
    ) -> list[Job]: ...
    @overload
    def submit(
        self,
        command: str | Sequence[CommandWord],
        *,
        array: None = None,
        **options: Unpack[JobOptions],
    ) -> Job: ...
    def submit(
        self,
        command: str | Sequence[CommandWord],
        *,
        array: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job | list[Job]:
        """Queue a command, a list of words or a shell line; return a list for an array."""
        reply = self.send(inputs.command_body(command), {**options, "array": array})
        jobs = self._submitted_jobs(reply)
        return jobs if array is not None else jobs[0]

    def submit_lines(self, lines: Iterable[str], **options: Unpack[JobOptions]) -> list[Job]:
        """Queue one job per shell line; all or none."""
        return self._submitted_jobs(self.send({"lines": list(lines)}, options))

    def run(
        self,
        command: str | Sequence[CommandWord],
        *,
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Queue a command and wait until it ends."""
        seconds = inputs.timeout_seconds(timeout)
        return self.wait(self.submit(command, **options), timeout=seconds)[0]

    def send(self, what: Mapping[str, object], options: Mapping[str, object]) -> dict[str, Any]:
        """Submit; return the reply as in docs/api.md."""
        body = {"what": dict(what), **submission(options)}
        return self.daemon_client.submit(body)

    def _submitted_jobs(self, reply: Mapping[str, Any]) -> list[Job]:
        """Return the jobs of a reply; wait for a daemon that restarts, since they are queued."""
        select = [f"{reply['first']}-{reply['last']}"]
        return reconnect.retry(lambda: self._jobs(select))

    # -- inspect --------------------------------------------------------------------------

    def jobs(
        self,
        *which: JobSelector,
        state: str | Iterable[str] | None = None,
        user: str | None = None,
        queue: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return the selected jobs, or all unfinished jobs and undismissed failures."""
        select = selectors(which)
        if which and not select:
            return []  # an empty list selects no job, not all
        return self._jobs(select, state=_join_states(state), user=user, queue=queue, limit=limit)

    queue = jobs

    def show(self, which: JobSelector) -> Job:
        """Return one job."""
        jobs = self.jobs(which)
        if len(jobs) != 1:
            raise UsageError(f"{which!r:.60} matches {len(jobs)} jobs; jobs() returns them all.")
        return jobs[0]

    def why(self, which: JobSelector) -> Why:
        """Return why a job is pending, and when it is expected to start."""
        return Why.of(self.daemon_client.why(selector(which)))

    def logs(
        self,
        which: JobSelector,
        *,
        stream: str = "out",
        tail: int | None = None,
        attempt: int | None = None,
        part: int | None = None,
    ) -> str:
        """Return a job's output so far; `stream="err"` is its separate stderr."""
        inputs.require_one_of(stream, inputs.STREAMS, "stream")
        label = selector(which)
        if attempt is not None:
            for view in self.daemon_client.jobs([label], limit=1)["jobs"]:
                require_attempt(view, attempt)
        data = self.daemon_client.log(label, stream=stream, tail=tail, attempt=attempt, part=part)
        return b"".join(data).decode("utf-8", "replace")

    def follow(self, which: JobSelector, *, stream: str = "out") -> Iterator[str]:
        """Yield the lines of a job's output until it ends."""
        inputs.require_one_of(stream, inputs.STREAMS, "stream")
        partial = b""
        for piece in reconnect.follow_attempts(
            self.daemon_client, selector(which), 0, stream=stream
        ):
            *lines, partial = (partial + piece).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if partial:
            yield partial.decode("utf-8", "replace")

    def wait(
        self, *which: JobSelector, any: bool = False, timeout: float | None = None
    ) -> list[Job]:
        """Wait for all jobs, or with `any` for one, to end; raise TimeoutError at the timeout."""
        select = selectors(which)
        reply = reconnect.wait(
            self.daemon_client, select, any_of=any, timeout=inputs.timeout_seconds(timeout)
        )
        for stuck in reply.get("stuck") or ():
            raise never_starts_error(stuck, reply["jobs"])
        if not reply["finished"]:
            raise TimeoutError(f"The jobs have not ended within {timeout} s.")
        if len(reply["jobs"]) < int(reply.get("count") or 0):
            return self._jobs(select)
        return [Job.of(view) for view in reply["jobs"]]

    def history(
        self,
        *which: JobSelector,
        state: str | Iterable[str] | None = None,
        user: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        since: object = None,
        until: object = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return finished jobs, the newest last."""
        reply = self.daemon_client.history(
            selectors(which), state=_join_states(state), user=user, name=name, queue=queue,
            since=_time_text(since), until=_time_text(until), limit=limit,
        )  # fmt: skip
        return [Job.of(view) for view in reply["jobs"]]

    def gpus(self) -> list[Gpu]:
        """Return all GPUs with utilisation, memory and jobs."""
        return [Gpu.of(view) for view in self.daemon_client.gpus()["gpus"]]

    def nodes(self) -> list[Node]:
        """Return all nodes and their free resources."""
        return [Node.of(view) for view in self.daemon_client.nodes()["nodes"]]

    def events(self, after: int | None = None) -> Iterator[Event]:
        """Yield events without end; `after` is the `seq` of the last known event."""
        return stream.events(self.daemon_client, after)

    # -- change ---------------------------------------------------------------------------

    def cancel(self, *which: JobSelector) -> Changed:
        """Cancel jobs; running ones get SIGTERM, a grace period, SIGKILL."""
        return self._change("cancel", which)

    def kill(self, *which: JobSelector, signal: str | int | Signals | None = None) -> Changed:
        """Send a signal to running jobs; by default, kill them at once."""
        return self._change("kill", which, signal=inputs.signal_name(signal))

    def pause(self, *which: JobSelector) -> Changed:
        """Suspend running jobs; they keep their devices."""
        return self._change("pause", which)

    def resume(self, *which: JobSelector) -> Changed:
        """Continue paused jobs."""
        return self._change("resume", which)

    def hold(self, *which: JobSelector) -> Changed:
        """Hold pending jobs: they do not start until released."""
        return self._change("hold", which)

    def release(self, *which: JobSelector) -> Changed:
        """Release held jobs."""
        return self._change("release", which)

    def retry(self, *which: JobSelector, failed: bool = False, same_gpus: bool = False) -> Changed:
        """Requeue finished jobs; with `failed` and no job, all undismissed failures."""
        return self._change("retry", which, failed=failed, same_gpus=same_gpus)

    def edit(self, *which: JobSelector, **options: Unpack[JobOptions]) -> Changed:
        """Change pending jobs, or time limit and priority of running ones."""
        return self._change("edit", which, options=as_options(options))

    def move(
        self, *which: JobSelector, where: str = "first", other: JobSelector | None = None
    ) -> Changed:
        """Change the order of pending jobs: `first`, `last`, `before` or `after` the `other`."""
        inputs.require_one_of(where, inputs.POSITIONS, "where")
        if (where in {"before", "after"}) != (other is not None):
            raise UsageError(
                "where='before' and where='after' need another job; first and last do not."
            )
        anchor = selector(other) if other is not None else None
        # Several jobs are moved in the given order.
        reply = self.daemon_client.act("move", selectors(which), where=where, other=anchor)
        return Changed.of(reply)

    def dismiss(self, *which: JobSelector) -> Changed:
        """Dismiss failures: they are no longer listed."""
        return self._change("jobs/dismiss", which)

    # -- manage ---------------------------------------------------------------------------

    def drain(self, *devices: str | int, reason: str | None = None) -> Drained:
        """Start no more jobs on these devices: `0`, `gpu1/0`, a whole node, `all`."""
        return Drained.of(self.daemon_client.drain(inputs.device_names(devices), reason))

    def undrain(self, *devices: str | int) -> Drained:
        """Use drained devices again."""
        return Drained.of(self.daemon_client.undrain(inputs.device_names(devices)))

    def daemon(self) -> dict[str, Any]:
        """Return the daemon's status."""
        return self.daemon_client.daemon()

    # -- requests -------------------------------------------------------------------------

    def _jobs(self, select: Sequence[str], **filters: object) -> list[Job]:
        if select and not filters.get("limit"):
            filters["limit"] = MAX_JOBS
        views: dict[int, dict[str, Any]] = {}
        for start in range(0, len(select) or 1, MAX_SELECTORS_PER_REQUEST):
            page = self.daemon_client.jobs(
                select[start : start + MAX_SELECTORS_PER_REQUEST], **filters
            )["jobs"]
            views.update((int(view["id"]), view) for view in page)
        return [Job.of(view) for view in views.values()]

    def _change(self, verb: str, which: Iterable[Any], **more: object) -> Changed:
        return Changed.of(self.daemon_client.act(verb, selectors(which, ordered=False), **more))


def _join_states(state: str | Iterable[str] | None) -> str | None:
    return state if state is None or isinstance(state, str) else ",".join(state)


def _time_text(value: object) -> str | None:
    isoformat = getattr(value, "isoformat", None)
    if isoformat is not None:
        return str(isoformat())
    return str(value) if value is not None else None
