"""Everything that happens, as server-sent events, for readers who may come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from stoker.core.events import Event
from stoker.core.state import State
from stoker.daemon.desk import Decide, answered
from stoker.daemon.http import encode
from stoker.daemon.loop import Loop
from stoker.engine import Decision, Moment, Refusal

BUFFER = 10_000
"""Events a slow reader may fall behind before it is disconnected."""
PAGE = 500
STILL_HERE = 15.0

Ask = Callable[[Decide], Awaitable[Any]]


class Reader:
    """One reader: first what it has missed, then what happens."""

    def __init__(self, loop: Loop, ask: Ask) -> None:
        self.loop, self.ask = loop, ask
        self.here = asyncio.get_running_loop()
        self.queue: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()

    def __call__(self, seq: int, events: Sequence[Event]) -> None:
        """Called by the loop, which never waits for us."""
        self.here.call_soon_threadsafe(self._put, seq, events)

    def _put(self, seq: int, events: Sequence[Event]) -> None:
        for number, event in enumerate(events, seq - len(events) + 1):
            if self.queue.qsize() >= BUFFER:
                self.queue.put_nowait(None)
                return
            self.queue.put_nowait((number, event))

    def _join(self, state: State, now: Moment) -> Decision:
        self.loop.readers.append(self)
        return answered(self.loop.engine.seq)

    def _page(self, after: int) -> Decide:
        return lambda state, now: answered(list(self.loop.store.events(after, PAGE)))

    async def stream(self, after: int | None) -> AsyncIterator[bytes]:
        """Events behind a sequence number (from now on without one), until the reader leaves."""
        try:
            reached = await self.ask(self._join)
        except Refusal:
            return  # this daemon is about to end: the next one has all of it
        try:
            yield b": stoker\n\n"
            behind = reached if after is None else after
            while behind < reached:
                page = await self.ask(self._page(behind))
                if not page:
                    break
                for seq, event in page:
                    if seq <= reached:
                        yield _sse(seq, event)
                    behind = min(seq, reached)  # what came since then is in the queue
            while True:
                try:
                    item = await asyncio.wait_for(self.queue.get(), STILL_HERE)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if item is None:
                    return  # too slow: it may come back with the last id it has
                if item[0] > max(behind, reached):
                    yield _sse(*item)
        finally:
            self.loop.readers.remove(self)


def _sse(seq: int, event: Event) -> bytes:
    kind = type(event).__name__
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), encode(event))
