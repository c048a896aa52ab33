"""VirtualReactor: timers by the clock of a test, and readers that the test calls."""

import threading
from collections.abc import Callable

from stoker.executors.linux.epoll_reactor import TimerQueue


class VirtualReactor(TimerQueue):
    """A reactor that never waits: the test moves its clock and runs what is due."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(clock)
        self.callbacks: dict[int, Callable[[], object]] = {}
        self.woken = threading.Event()
        """Set by a call from another thread."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        self.callbacks[fd] = callback

    add_writer = add_reader

    def remove_reader(self, fd: int, /) -> None:
        self.callbacks.pop(fd, None)

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> None:
        callback()
        self.woken.set()

    def run_timers(self) -> None:
        """Call back what is due."""
        for callback in self.take_due():
            callback()

    def seconds_until_timer(self) -> float | None:
        """Return the time until something is due."""
        due = self.next_due()
        return None if due is None else max(due - self.time(), 0.0)
