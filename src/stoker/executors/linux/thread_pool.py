"""TransferPool: blocking work in threads, its results handed back to the daemon's thread."""

from __future__ import annotations

import _thread
import contextlib
import os
from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable
from typing import Any

from stoker.executors.reactor import Reactor

MAX_THREADS = 4
"""Transfers to or from one node at a time: more would only share its bandwidth."""


class TransferPool:
    """A few threads for one node; callbacks run in the daemon's thread."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self._busy = 0
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._done: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = _thread.allocate_lock()
        self._closed = False
        reactor.add_reader(self._wakeup, self._call_back)

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        """Call `work` in a thread, then `on_done` with its result or its exception."""
        self._waiting.append((work, on_done))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < MAX_THREADS:
            self._busy += 1
            _thread.start_new_thread(self._run, self._waiting.popleft())

    def _run(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        try:
            result: Any = work()
        except Exception as error:  # noqa: BLE001 - the callback gets it, whatever it is
            result = error
        self._done.put((on_done, result))
        with self._closing:  # the descriptor of a closed eventfd may be reused
            if not self._closed:
                os.eventfd_write(self._wakeup, 1)

    def _call_back(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        while not self._done.empty():
            on_done, result = self._done.get()
            self._busy -= 1
            on_done(result)
        self._start()

    def close(self) -> None:
        """Drop waiting work and call back no more."""
        self._waiting.clear()
        self.reactor.remove_reader(self._wakeup)
        with self._closing:
            self._closed = True
            os.close(self._wakeup)
