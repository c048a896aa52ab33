"""Work that waits for disks and networks, done beside the loop, its results handed back to it."""

from __future__ import annotations

import _thread
import contextlib
import os
from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable
from typing import Any

from stoker.executors.reactor import Reactor

AT_ONCE = 4
"""Transfers to or from one machine at a time: more would only share its line."""


class TransferPool:
    """A few threads of one machine. What they find out is told in the loop's own thread."""

    def __init__(self, poller: Reactor) -> None:
        self.poller = poller
        self._busy = 0
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._done: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = _thread.allocate_lock()
        self._closed = False
        poller.add_reader(self._bell, self._ring)

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Call `work` in a thread, then `then` with its result, or with what it raised."""
        self._waiting.append((work, then))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < AT_ONCE:
            self._busy += 1
            _thread.start_new_thread(self._run, self._waiting.popleft())

    def _run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        try:
            found: Any = work()
        except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it is
            found = error
        self._done.put((then, found))
        with self._closing:  # the number of a closed bell may be another's by now
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._done.empty():
            then, found = self._done.get()
            self._busy -= 1
            then(found)
        self._start()

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._waiting.clear()
        self.poller.remove_reader(self._bell)
        with self._closing:
            self._closed = True
            os.close(self._bell)
