"""Internal errors: logged with an excerpt of the state, counted, reported; all else goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import ParamSpec, Protocol, TypeVar

from msgspec import Struct

from stoker.core.cluster.node import Node
from stoker.core.model.job import Job
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State
from stoker.store.port import StoreFenced

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MAX_FAULTS = 20
"""Kinds of faults that are kept; the oldest resolved one is dropped first."""
MAX_ERROR_CHARACTERS = 300
"""Of an error in a report; the log has all of it."""
MAX_EXCERPT_ROWS = 16
"""Nodes, nominations, running and pending jobs in an excerpt of the state."""

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Now(Protocol):
    """The wall clock and the boot clock."""

    @property
    def wall(self) -> float:
        """Seconds since 1970."""

    @property
    def boot(self) -> float:
        """Seconds since the host was booted."""


class Fault(Struct):
    """One kind of failure: how often it happened, and when it is tried again."""

    what: str
    error: str
    count: int
    last_at: float
    pause: float
    retry_boot: float
    active: bool = True
    """False after a success, and for what is not tried again."""
    paused: bool = False
    """Whether the next try waits until `retry_boot`."""


class FaultTracker:
    """The internal errors since the start of this process."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self._clock = clock
        self._faults: dict[str, Fault] = {}

    def pause(self, what: str, error: Exception, excerpt: str = "") -> None:
        """Record a failure of what is tried again after a pause that doubles each time."""
        self._record(what, error, excerpt).paused = True

    def record(self, what: str, error: Exception, excerpt: str = "") -> None:
        """Record a failure of something that is not tried again, such as a request."""
        self._record(what, error, excerpt).active = False

    def _record(self, what: str, error: Exception, excerpt: str = "") -> Fault:
        """Count a failure, and log it; a repeated one at each doubling."""
        now = self._clock()
        fault = self._faults.get(what)
        if fault is None:
            self._drop_oldest()
            fault = self._faults[what] = Fault(what, "", 0, now.wall, 0.0, now.boot)
        if not fault.active:
            fault.pause = 0.0
        fault.active = True
        fault.error = repr(error)[:MAX_ERROR_CHARACTERS]
        fault.count, fault.last_at = fault.count + 1, now.wall
        fault.pause = min(max(2 * fault.pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        fault.retry_boot = now.boot + fault.pause
        if fault.count & (fault.count - 1) == 0:
            more = f"\n{excerpt}" if excerpt else ""
            times = _times(fault.count)
            logger.error("internal error: %s failed %s%s", what, times, more, exc_info=error)
        return fault

    def resolve(self, what: str) -> None:
        """Record a success after failures."""
        fault = self._active(what)
        if fault is not None:
            fault.active = False
            logger.warning("%s works again after it failed %s", what, _times(fault.count))

    def contain(
        self, what: str, default: T, call: Callable[P, T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Return the result of a call, or a default if it fails for any reason but fencing."""
        try:
            result = call(*args, **more)
        except StoreFenced:
            raise
        except Exception as error:  # noqa: BLE001 - containing is the purpose
            self._record(what, error)
            return default
        if self._faults:
            self.resolve(what)
        return result

    def is_failing(self, what: str) -> bool:
        """Return whether the last try failed."""
        return self._active(what) is not None

    def may_retry(self, what: str) -> bool:
        """Return whether the pause after the last failure is over."""
        fault = self._active(what)
        return fault is None or self._clock().boot >= fault.retry_boot

    def seconds_until_retry(self, whats: tuple[str, ...]) -> float | None:
        """Return the seconds until the first of these may be tried again; None if none fails."""
        waits = [fault.retry_boot for what in whats if (fault := self._active(what)) is not None]
        return max(min(waits) - self._clock().boot, 0.0) if waits else None

    def report(self, all: bool = True) -> list[str]:
        """Return a sentence for each kind of fault, active ones first; or only for active ones."""
        now = self._clock()
        faults = sorted(self._faults.values(), key=lambda fault: not fault.active)
        return [_sentence(fault, now) for fault in faults if all or fault.active]

    def sentence(self, what: str) -> str | None:
        """Return the report of what fails now; None if it does not fail."""
        fault = self._active(what)
        return _sentence(fault, self._clock()) if fault is not None else None

    def _active(self, what: str) -> Fault | None:
        fault = self._faults.get(what)
        return fault if fault is not None and fault.active else None

    def _drop_oldest(self) -> None:
        while len(self._faults) >= MAX_FAULTS:
            resolved = (what for what, fault in self._faults.items() if not fault.active)
            del self._faults[next(resolved, next(iter(self._faults)))]


def _sentence(fault: Fault, now: Now) -> str:
    text = f"{fault.what} failed {_times(fault.count)}: {fault.error}"
    if not fault.active:
        return f"{text} (the last time {max(now.wall - fault.last_at, 0):.0f} s ago)"
    wait = max(fault.retry_boot - now.boot, 0.0)
    again = f"; next try in {wait:.0f} s" if fault.paused else ""
    return f"{text}{again}; see stoker daemon log"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def excerpt(state: State) -> str:
    """Return nodes with their free devices, running jobs and the head of the queue.

    It has no commands and no environments, so that a log can be shared.
    """
    lines: list[str] = []
    try:
        lines += _lines(state)
    except Exception as error:  # noqa: BLE001 - the state is what the error has left of it
        lines.append(f"(the rest cannot be read: {error!r})")
    return "\n".join(lines)


def _lines(state: State) -> Iterator[str]:
    record = state.record
    yield (
        f"{len(state.jobs)} jobs in memory, {len(state.running)} running, "
        f"{len(state.pending)} eligible, next id {record.next_id}, policies {record.policies}"
    )
    for node in islice(state.cluster.nodes.values(), MAX_EXCERPT_ROWS):
        yield f"node {node.name}: {_devices(node)}"
    for id, placement in islice(state.memory.nominations.items(), MAX_EXCERPT_ROWS):
        yield f"nominated for job {id}: {placement}"
    for job in islice(state.running.values(), MAX_EXCERPT_ROWS):
        yield f"{job.state.value} {_job(state, job)} holds {job.placement}"
    for job in first_jobs(state.pending, state.jobs, MAX_EXCERPT_ROWS):
        yield f"pending {_job(state, job)} requests {state.effective_request(job, state.spec(job))}"


def _job(state: State, job: Job) -> str:
    spec = state.spec(job)
    return (
        f"job {job.id} attempt {job.attempt} priority {job.priority} queue {spec.queue} "
        f"limit {spec.limit}"
    )


def _devices(node: Node) -> str:
    marks = [] if node.unavailable_reason is None else [f"unavailable ({node.unavailable_reason})"]
    for device in node.devices():
        mark = f"{device.type}:{device.name} {device.unallocated}/{device.facts.capacity} free"
        mark += " removed" * device.removed + " drained" * (device.drained is not None)
        marks.append(mark + " foreign use" * (device.foreign_user is not None))
    return ", ".join(marks)
