"""All events, as server-sent events, for readers that may come and go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from stoker.core.events import Event
from stoker.core.state import State
from stoker.daemon.context import CommandHandler, reply_only
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.http.codec import encode
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.store.codec import event_kind

MAX_BEHIND = 4 << 20
"""Bytes that a slow reader may fall behind before it is disconnected."""
PIECE = 1 << 16
"""Bytes that are written at once; as much again may wait in the connection."""
PAGE = 500
STILL_HERE = 15.0

Ask = Callable[[CommandHandler], Awaitable[Any]]


class Batches:
    """Encodes each commit once for all readers: with 50 of them that is most of the work."""

    def __init__(self) -> None:
        self._latest: tuple[Sequence[Event], bytes] = ((), b"")

    def encode(self, last: int, events: Sequence[Event]) -> bytes:
        """Return a commit as readers get it; they are told of the same one one after another."""
        if self._latest[0] is not events:
            self._latest = (events, _sse(enumerate(events, last - len(events) + 1)))
        return self._latest[1]


class EventSubscriber:
    """One reader: first what it has missed, then what happens."""

    def __init__(
        self, loop: Daemon, ask: Ask, batches: Batches, hang_up: Callable[[], None]
    ) -> None:
        self.loop, self.ask, self.batches, self.hang_up = loop, ask, batches, hang_up
        self.here = asyncio.get_running_loop()
        self.after = 0
        """The number of the last event that the reader has, by its own account."""
        self.waiting: deque[bytes] = deque()
        self.behind = 0
        """Bytes that wait to be written."""
        self.arrived = asyncio.Event()
        self.left = False

    def __call__(self, seq: int, events: Sequence[Event]) -> None:
        """Called by the loop, which never waits for us."""
        if self.left:  # it left in the same moment in which it was put on the list
            self._leave_list()
        else:
            self.here.call_soon_threadsafe(self._put, seq, events)

    def _put(self, seq: int, events: Sequence[Event]) -> None:
        if self.left or seq <= self.after:
            return
        if seq - len(events) < self.after:
            events = events[self.after - seq :]
        data = self.batches.encode(seq, events)
        if self.behind and self.behind + len(data) > MAX_BEHIND:
            # Too slow: it may come back with the last id it has. It does not read, so that
            # nothing but the end of the connection would reach it.
            self.leave()
            self.hang_up()
            return
        self.waiting.append(data)
        self.behind += len(data)
        self.arrived.set()

    def leave(self) -> None:
        """Forget what was not read; safe to repeat."""
        self.left = True
        self.waiting.clear()
        self.behind = 0
        self.arrived.set()
        self._leave_list()

    def _leave_list(self) -> None:
        self.loop.publisher.remove_stream(self)

    def _page(self, after: int | None) -> CommandHandler:
        """Return what a reader has missed; with the last of it, it is told of what happens."""

        def decide(state: State, now: Instant) -> CommandResult:
            page = [] if after is None else list(self.loop.store.events(after, PAGE))
            if len(page) < PAGE and not self.left:
                self.loop.publisher.add_stream(self)
            return reply_only(page)

        return decide

    async def stream(self, after: int | None) -> AsyncIterator[bytes]:
        """Events behind a sequence number (from now on without one), until the reader leaves."""
        self.after = after or 0
        try:
            yield b": stoker\n\n"
            async for data in self._parts(after):
                for at in range(0, len(data), PIECE):
                    yield data[at : at + PIECE]
        except CommandRejected:
            return  # this daemon is about to end: the next one has all of it
        finally:
            self.leave()

    async def _parts(self, after: int | None) -> AsyncIterator[bytes]:
        full = True
        while full:
            page = await self.ask(self._page(after))
            full = len(page) == PAGE
            if page:
                after, missed = page[-1][0], _sse(page)
                del page  # a reader that does not read keeps us here
                yield missed
        while not self.left:
            if not self.waiting:
                try:
                    await asyncio.wait_for(self.arrived.wait(), STILL_HERE)
                except TimeoutError:
                    yield b": still here\n\n"
            self.arrived.clear()
            while self.waiting:
                yield self._take()

    def _take(self) -> bytes:
        """Take out of what waits as much as is written at once, or one commit that is larger."""
        taken = [self.waiting.popleft()]
        size = len(taken[0])
        while self.waiting and size + len(self.waiting[0]) <= PIECE:
            taken.append(self.waiting.popleft())
            size += len(taken[-1])
        self.behind -= size
        return b"".join(taken)


def _sse(numbered: Iterable[tuple[int, Event]]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event_kind(event).encode(), encode(event))
        for seq, event in numbered
    )
