"""EpollReactor: waits for descriptors, timers and other threads, and calls back."""

from __future__ import annotations

import contextlib
import os
import select
import time
from _queue import SimpleQueue
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from threading import RLock
from typing import Any, ClassVar, Protocol

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class Faults(Protocol):
    """Records the errors of callbacks."""

    def record(self, what: str, error: Exception) -> object:
        """Record an error."""

    def contain(self, what: str, default: Any, call: Callable[..., Any], /) -> Any:
        """Call a function and return its result; if it fails, record that, return `default`."""


class ScheduledCall:
    """One call in the future."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        """On the clock of the reactor."""
        self.callback: Callable[[], None] | None = callback
        """None after it was cancelled."""

    def __lt__(self, other: ScheduledCall) -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """Never call back; safe to repeat, and after it has fired."""
        self.callback = None


class TimerQueue:
    """Calls that are due at some time, the earliest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.time = clock
        self._calls: list[ScheduledCall] = []

    def call_later(self, delay: float, callback: Callable[[], None], /) -> ScheduledCall:
        """Call back once, after `delay` seconds."""
        call = ScheduledCall(self.time() + delay, callback)
        heappush(self._calls, call)
        return call

    def next_due(self) -> float | None:
        """Return the time of the next call; None if there is none."""
        while self._calls and self._calls[0].callback is None:
            heappop(self._calls)
        return self._calls[0].due if self._calls else None

    def take_due(self) -> Iterator[Callable[[], None]]:
        """Yield what to call now."""
        now, due = self.time(), []
        while self._calls and self._calls[0].due <= now:
            due.append(heappop(self._calls))
        for call in due:
            if call.callback is not None:  # else a call before this one has cancelled it
                yield call.callback


def boot_time() -> float:
    """Return the seconds since the host was booted, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EpollReactor(TimerQueue):
    """Implements `executors.reactor.Reactor`.

    A callback that raises is reported, and its descriptor is ignored for a while; without
    `faults` the exception is raised.
    """

    FATAL: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that end the loop."""

    def __init__(
        self, faults: Faults | None = None, clock: Callable[[], float] = boot_time
    ) -> None:
        super().__init__(clock)
        self.faults = faults
        self._epoll = select.epoll()
        self.callbacks: dict[int, Callable[[], object]] = {}
        """By descriptor."""
        self._paused_until: dict[int, float] = {}
        """Descriptors that are ignored for a while, since their callbacks failed."""
        self._pauses: dict[int, float] = {}
        """The length of the last pause, until the callback succeeds."""
        self._thread_calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._lock = RLock()
        """Held while the wake-up descriptor is used by any thread, or closed."""

    def close(self) -> None:
        """Free the descriptors; nothing is called any more."""
        self.callbacks.clear()
        self._calls.clear()
        self._epoll.close()
        with self._lock:
            os.close(self._wakeup)
            self._wakeup = -1

    # -- descriptors --------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back whenever a descriptor is readable."""
        self.callbacks[fd] = callback
        self._forget_pause(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back once, when a descriptor can be written to."""

        def once() -> None:
            self.remove_reader(fd)
            callback()

        self.callbacks[fd] = once
        self._epoll.register(fd, select.EPOLLOUT)

    def remove_reader(self, fd: int, /) -> None:
        """Forget a descriptor, also one of `add_writer`; safe to repeat."""
        self._forget_pause(fd)
        if self.callbacks.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    # -- timers and other threads -------------------------------------------------------

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> None:
        """Call back once, as soon as possible; may be used by any thread."""
        self._thread_calls.put(callback)
        self.wake()

    def wake(self) -> None:
        """Let `wait` return at once; may be used by any thread."""
        with self._lock:
            if self._wakeup >= 0:  # a thread may end after the reactor was closed
                os.eventfd_write(self._wakeup, 1)

    def _run_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        while not self._thread_calls.empty():
            self._contain("call", self._thread_calls.get())

    def _contain(self, what: str, callback: Callable[[], None]) -> None:
        if self.faults is None:
            callback()
        else:
            self.faults.contain(f"{what} {name_of(callback)}", None, callback)

    # -- waiting ------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> None:
        """Sleep until something happens, at most `timeout` seconds, then call back for it."""
        for fd, _ in self._epoll.poll(self._bound(timeout)):
            if fd == self._wakeup:
                self._run_calls()
                continue
            callback = self.callbacks.get(fd)
            if callback is not None:
                self._call(fd, callback)
        if self._paused_until:
            self._end_pauses()
        for due in self.take_due():
            self._contain("timer", due)

    def _bound(self, timeout: float | None) -> float | None:
        """Return how long to sleep; what is overdue is due now, as epoll sleeps on below zero."""
        ends = [*self._paused_until.values()]
        if (due := self.next_due()) is not None:
            ends.append(due)
        waits = [] if timeout is None else [timeout]
        if ends:
            waits.append(min(ends) - self.time())
        return max(min(waits), 0.0) if waits else None

    def _call(self, fd: int, callback: Callable[[], object]) -> None:
        try:
            callback()
        except self.FATAL:
            raise
        except Exception as error:
            if self.faults is None:
                raise
            self.faults.record(f"callback {name_of(callback)}", error)
            if self.callbacks.get(fd) is callback:
                self._pause(fd)
        else:
            if self._pauses:
                self._forget_pause(fd)

    def _pause(self, fd: int) -> None:
        """Ignore a descriptor for a while: it stays readable, and its callback may fail again."""
        pause = max(2 * self._pauses.get(fd, 0.0), FIRST_PAUSE_SECONDS)
        self._pauses[fd] = pause = min(pause, LONGEST_PAUSE_SECONDS)
        self._paused_until[fd] = self.time() + pause
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def _end_pauses(self) -> None:
        now = self.time()
        for fd in [fd for fd, until in self._paused_until.items() if until <= now]:
            del self._paused_until[fd]
            with contextlib.suppress(OSError):
                self._epoll.register(fd, select.EPOLLIN)

    def _forget_pause(self, fd: int) -> None:
        self._paused_until.pop(fd, None)
        self._pauses.pop(fd, None)


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function; of a nested one, the name of the outer function."""
    function = getattr(function, "func", function)  # of a partial
    return str(getattr(function, "__qualname__", function)).partition(".<locals>")[0]
