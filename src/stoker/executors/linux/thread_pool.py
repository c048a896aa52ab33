"""TransferPool: blocking work in threads, its results handed back to the daemon's thread."""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from stoker.executors.reactor import Reactor

MAX_THREADS = 4
"""Transfers to or from one node at a time: more would only share its bandwidth."""


class TransferPool:
    """A few threads for one node; callbacks run in the daemon's thread."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self._busy, self._closed = 0, False
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

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
        self.reactor.call_soon_threadsafe(partial(self._finish, on_done, result))

    def _finish(self, on_done: Callable[[Any], None], result: Any) -> None:
        self._busy -= 1
        if not self._closed:
            self._start()
            on_done(result)

    def close(self) -> None:
        """Drop waiting work and call back no more."""
        self._waiting.clear()
        self._closed = True
