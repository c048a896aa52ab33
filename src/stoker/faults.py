"""Internal errors: each is logged, counted and reported, so that it stops nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from msgspec import Struct

from stoker.store.port import StoreFenced

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MAX_FAULTS = 20
"""Kinds of faults that are remembered; the oldest that is over goes first."""
MAX_ERROR = 300
"""Characters of an error in a report; the log has all of it."""

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
        """Seconds since the machine was booted."""


class Fault(Struct):
    """What failed, how often, and when it is tried again."""

    what: str
    error: str
    count: int
    last_at: float
    pause: float
    retry_boot: float
    active: bool = True
    """False once the same has succeeded, and for what is not tried again."""
    paused: bool = False
    """Whether it is not tried before `retry_boot`."""


class FaultTracker:
    """The internal errors since the start of this process."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self._clock = clock
        self._faults: dict[str, Fault] = {}

    def pause(self, what: str, error: Exception, excerpt: str = "") -> None:
        """Record a failure of what is tried again after a pause, each time a longer one."""
        self._record(what, error, excerpt).paused = True

    def record(self, what: str, error: Exception, excerpt: str = "") -> None:
        """Record a failure of something that is not tried again, such as a request."""
        self._record(what, error, excerpt).active = False

    def _record(self, what: str, error: Exception, excerpt: str = "") -> Fault:
        """Count a failure, and log it; a repeated one at each doubling."""
        now = self._clock()
        fault = self._faults.get(what)
        if fault is None:
            self._make_room()
            fault = self._faults[what] = Fault(what, "", 0, now.wall, 0.0, now.boot)
        if not fault.active:
            fault.pause = 0.0
        fault.active = True
        fault.error, fault.count, fault.last_at = repr(error)[:MAX_ERROR], fault.count + 1, now.wall
        fault.pause = min(max(2 * fault.pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        fault.retry_boot = now.boot + fault.pause
        if fault.count & (fault.count - 1) == 0:
            logger.error(
                "internal error: %s failed %s%s",
                what,
                _times(fault.count),
                f"\n{excerpt}" if excerpt else "",
                exc_info=error,
            )
        return fault

    def resolve(self, what: str) -> None:
        """It has succeeded again."""
        fault = self._faults.get(what)
        if fault is not None and fault.active:
            fault.active = False
            logger.warning("%s works again after it failed %s", what, _times(fault.count))

    def contain(
        self, what: str, default: T, call: Callable[P, T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Return what a call returns, or a default when it fails for any reason but fencing."""
        try:
            found = call(*args, **more)
        except StoreFenced:
            raise
        except Exception as error:  # noqa: BLE001 - that is what this is for
            self._record(what, error)
            return default
        if self._faults:
            self.resolve(what)
        return found

    def is_failing(self, what: str) -> bool:
        """Whether it failed the last time."""
        fault = self._faults.get(what)
        return fault is not None and fault.active

    def may_retry(self, what: str) -> bool:
        """Whether the pause since its last failure is over."""
        fault = self._faults.get(what)
        return fault is None or not fault.active or self._clock().boot >= fault.retry_boot

    def seconds_until_retry(self, whats: tuple[str, ...]) -> float | None:
        """Return how long until the first of these may be tried again; None: none of them fails."""
        waits = [fault.retry_boot for what in whats if (fault := self._active(what)) is not None]
        return max(min(waits) - self._clock().boot, 0.0) if waits else None

    def report(self, all: bool = True) -> list[str]:
        """Return a sentence for each kind of fault, those that go on first; or only for these."""
        now = self._clock()
        faults = sorted(self._faults.values(), key=lambda each: not each.active)
        return [_sentence(each, now) for each in faults if all or each.active]

    def sentence(self, what: str) -> str | None:
        """Return what is reported of something that fails now."""
        fault = self._active(what)
        return _sentence(fault, self._clock()) if fault is not None else None

    def _active(self, what: str) -> Fault | None:
        fault = self._faults.get(what)
        return fault if fault is not None and fault.active else None

    def _make_room(self) -> None:
        while len(self._faults) >= MAX_FAULTS:
            over = (what for what, fault in self._faults.items() if not fault.active)
            del self._faults[next(over, next(iter(self._faults)))]


def _sentence(fault: Fault, now: Now) -> str:
    text = f"{fault.what} failed {_times(fault.count)}: {fault.error}"
    if not fault.active:
        return f"{text} (the last time {max(now.wall - fault.last_at, 0):.0f} s ago)"
    wait = max(fault.retry_boot - now.boot, 0.0)
    again = f"; next try in {wait:.0f} s" if fault.paused else ""
    return f"{text}{again}; see stoker daemon log"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
