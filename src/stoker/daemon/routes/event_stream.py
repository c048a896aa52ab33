"""GET /events: server-sent events; a client may resume after the last event it has."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from stoker.core.events import Event
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, reply_only
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.http.codec import encode
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.store.codec import event_kind
from stoker.store.port import Store

MAX_BACKLOG_BYTES = 4 << 20
"""How far a slow client may fall behind before it is disconnected."""
MAX_WRITE_BYTES = 1 << 16
"""Written at once; as much again may wait in the connection."""
PAGE_SIZE = 500
KEEP_ALIVE_SECONDS = 15.0

Ask = Callable[[CommandHandler], Awaitable[Any]]
IsVisible = Callable[[Event], bool]


class EncodedEvents:
    """Encodes each commit once for all clients: with 50 of them that is most of the work."""

    def __init__(self) -> None:
        self._latest: tuple[Sequence[Event], bytes] = ((), b"")

    def encode(self, last: int, events: Sequence[Event]) -> bytes:
        """Return a commit as text; all clients are given the same commit in turn."""
        if self._latest[0] is not events:
            self._latest = (events, _as_text(enumerate(events, last - len(events) + 1)))
        return self._latest[1]


class EventSubscriber:
    """One client: first the events that it has missed, then those that happen."""

    def __init__(
        self, store: Store, publisher: Publisher, ask: Ask, encoded: EncodedEvents,
        abort: Callable[[], None], is_visible: IsVisible | None = None,
    ) -> None:  # fmt: skip
        """`abort` closes the connection of the client.

        `is_visible` is called by the daemon's thread; None: the client sees all events.
        """
        self._is_visible = is_visible
        self._store, self._publisher, self._ask = store, publisher, ask
        self._encoded, self._abort = encoded, abort
        self._event_loop = asyncio.get_running_loop()
        self._after = 0
        """The number of the last event that the client has, as it says."""
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._has_unsent = asyncio.Event()
        self._is_closed = False

    def __call__(self, seq: int, events: Sequence[Event]) -> None:
        """Take the events of a commit; called by the daemon's thread."""
        if self._is_closed:  # closed while it was being added
            self._publisher.remove_stream(self)
        elif self._is_visible is None:
            self._event_loop.call_soon_threadsafe(self._add, seq, events)
        else:
            numbered = enumerate(events, seq - len(events) + 1)
            if visible := [each for each in numbered if self._is_visible(each[1])]:
                self._event_loop.call_soon_threadsafe(self._add_some, visible)

    def _add(self, seq: int, events: Sequence[Event]) -> None:
        if seq <= self._after:
            return
        if seq - len(events) < self._after:
            events = events[self._after - seq :]
        self._queue(self._encoded.encode(seq, events))

    def _add_some(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take those events of a commit that the client may see."""
        if unknown := [each for each in events if each[0] > self._after]:
            self._queue(_as_text(unknown))

    def _queue(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._unsent_bytes and self._unsent_bytes + len(data) > MAX_BACKLOG_BYTES:
            # Too slow. It does not read, so nothing but the end of the connection reaches it;
            # it may resume with the last id it has.
            self.close()
            self._abort()
            return
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._has_unsent.set()

    def close(self) -> None:
        """Drop what was not sent, and take no more events; safe to repeat."""
        self._is_closed = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._has_unsent.set()
        self._publisher.remove_stream(self)

    def _page(self, after: int | None, state: State, now: Instant) -> CommandResult:
        """Return a page of missed events, and the number of the last one if there are more.

        With the last page, subscribe to new ones.
        """
        page = [] if after is None else list(self._store.events(after, PAGE_SIZE))
        is_full = len(page) == PAGE_SIZE
        if not (is_full or self._is_closed):
            self._publisher.add_stream(self)
        last = page[-1][0] if is_full else None
        if self._is_visible is not None:
            page = [each for each in page if self._is_visible(each[1])]
        return reply_only((page, last))

    async def stream(self, after: int | None) -> AsyncIterator[bytes]:
        """Yield the events after a sequence number (None: from now on) until the client closes."""
        self._after = after or 0
        try:
            yield b": stoker\n\n"
            async for data in self._batches(after):
                for at in range(0, len(data), MAX_WRITE_BYTES):
                    yield data[at : at + MAX_WRITE_BYTES]
        except CommandRejected:
            return  # the daemon is stopping; the next one has all events
        finally:
            self.close()

    async def _batches(self, after: int | None) -> AsyncIterator[bytes]:
        is_last = False
        while not is_last:
            page, last = await self._ask(partial(self._page, after))
            after, is_last = last, last is None
            if page:
                missed = _as_text(page)
                del page  # a client that does not read keeps this frame alive
                yield missed
        while not self._is_closed:
            if not self._unsent:
                try:
                    await asyncio.wait_for(self._has_unsent.wait(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
            self._has_unsent.clear()
            while self._unsent:
                yield self._take()

    def _take(self) -> bytes:
        """Take as much as is written at once, or one commit that is larger."""
        batch = [self._unsent.popleft()]
        size = len(batch[0])
        while self._unsent and size + len(self._unsent[0]) <= MAX_WRITE_BYTES:
            batch.append(self._unsent.popleft())
            size += len(batch[-1])
        self._unsent_bytes -= size
        return b"".join(batch)


def _as_text(numbered: Iterable[tuple[int, Event]]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event_kind(event).encode(), encode(event))
        for seq, event in numbered
    )
