"""The event stream loses no event, and a slow subscriber costs little."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.core.events import Event, StartFailed
from stoker.daemon.http.codec import StreamedReply
from stoker.daemon.routes import event_stream as stream
from stoker.daemon.routes.event_stream import EncodedEvents, EventSubscriber


class Journal:
    """Numbered events; more may be written while a subscriber is served."""

    def __init__(self, events: int = 0, busy: bool = False) -> None:
        self.written: list[Event] = []
        self.readers: list[Any] = []
        self.publisher = SimpleNamespace(
            add_stream=self.readers.append, remove_stream=self._remove_stream
        )
        self.engine = SimpleNamespace(seq=0)
        self.store = SimpleNamespace(events=self.events)
        self.busy = busy
        self.encoded = EncodedEvents()
        self.aborted = 0
        self.write(events)

    def _remove_stream(self, reader: Any) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def write(self, count: int = 1, *, size: int = 0) -> None:
        """Commit events, in one commit."""
        for _ in range(count):
            id = len(self.written) + 1
            self.written.append(StartFailed(at=0.0, job=id, attempt=0, why="x" * size))
        self.engine.seq = len(self.written)
        new = self.written[-count:] if count else []
        for reader in self.readers[:]:
            reader(self.engine.seq, new)

    def events(self, after: int, limit: int) -> list[tuple[int, Event]]:
        return list(enumerate(self.written, 1))[after : after + limit]

    async def ask(self, decide: Any) -> Any:
        """Reply, and write more events before the next request."""
        answer = decide(None, None).reply(None)
        if self.busy:
            self.write()
        return answer

    def abort(self) -> None:
        self.aborted += 1

    def add_stream(self, reader: Any) -> None:
        self.readers.append(reader)

    def remove_stream(self, reader: Any) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def reader(self) -> EventSubscriber:
        store: Any = self.store
        publisher: Any = self
        return EventSubscriber(store, publisher, self.ask, self.encoded, self.abort)


def numbers(data: bytes) -> list[int]:
    return [int(line[4:]) for line in data.split(b"\n") if line.startswith(b"id: ")]


async def read(pieces: AsyncIterator[bytes], until: int) -> list[int]:
    """Return the numbers of the events up to one, as a subscriber gets them."""
    data = b""
    async for piece in pieces:
        data += piece
        if until in numbers(data) and data.endswith(b"\n\n"):
            break
    return numbers(data)


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 10))


async def settle() -> None:
    """Run callbacks of other threads."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "past", [0, 1, stream.PAGE_SIZE - 1, stream.PAGE_SIZE, stream.PAGE_SIZE + 1, 1300]
)
def test_events_during_the_read_of_the_past_are_sent_once(past: int) -> None:
    async def scenario() -> None:
        journal = Journal(past, busy=True)
        pieces = journal.reader().stream(0)
        await anext(pieces)
        seen = await read(pieces, past + 1)
        journal.write(2)
        journal.write()
        last = len(journal.written)
        seen += await read(pieces, last)
        assert seen == list(range(1, last + 1))

    run(scenario())


def test_without_a_number_a_subscriber_gets_events_from_now_on() -> None:
    async def scenario() -> None:
        journal = Journal(5)
        pieces = journal.reader().stream(None)
        await anext(pieces)
        waiting = asyncio.ensure_future(read(pieces, 6))
        await settle()
        journal.write()
        assert await waiting == [6]

    run(scenario())


def test_a_subscriber_that_is_ahead_gets_events_after_its_number() -> None:
    async def scenario() -> None:
        journal = Journal(5)
        pieces = journal.reader().stream(8)
        await anext(pieces)
        waiting = asyncio.ensure_future(read(pieces, 11))
        await settle()
        journal.write(2)
        journal.write(3)
        journal.write(1)
        assert await waiting == [9, 10, 11]

    run(scenario())


def test_a_commit_is_encoded_once_for_all_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Event] = []
    real = stream.encode
    monkeypatch.setattr(stream, "encode", lambda event: encoded.append(event) or real(event))

    async def scenario() -> None:
        journal = Journal()
        streams = [journal.reader().stream(None) for _ in range(50)]
        for pieces in streams:
            await anext(pieces)
        waiting = [asyncio.ensure_future(read(pieces, 4)) for pieces in streams]
        await settle()
        journal.write(2)
        journal.write(2)
        assert await asyncio.gather(*waiting) == [[1, 2, 3, 4]] * 50
        assert len(encoded) == 4

    run(scenario())


def test_many_events_are_written_in_pieces_and_few_together() -> None:
    async def scenario() -> None:
        journal = Journal()
        pieces = journal.reader().stream(None)
        await anext(pieces)
        waiting = asyncio.ensure_future(anext(pieces))
        await settle()
        journal.write(1, size=3 * stream.MAX_WRITE_BYTES)
        for _ in range(100):
            journal.write()
        sizes = [len(await waiting)]
        data = b""
        while 101 not in numbers(data):
            data += (piece := await anext(pieces))
            sizes.append(len(piece))
        assert max(sizes) <= stream.MAX_WRITE_BYTES
        assert len(sizes) <= 6

    run(scenario())


# -- subscribers that do not read-----------------------------------------------------------


def test_a_subscriber_that_falls_behind_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_BACKLOG_BYTES", 5000)

    async def scenario() -> None:
        journal = Journal()
        reader = journal.reader()
        pieces = reader.stream(None)
        await anext(pieces)
        first = asyncio.ensure_future(anext(pieces))
        await settle()
        limit = 0
        for _ in range(100):
            journal.write(1, size=200)
            await settle()
            limit = max(limit, reader._unsent_bytes)
        await first
        assert 3000 < limit <= 5000
        assert (reader._unsent_bytes, len(reader._unsent), journal.aborted) == (0, 0, 1)
        assert journal.readers == []
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)

    run(scenario())


def test_a_single_large_commit_does_not_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_BACKLOG_BYTES", 5000)

    async def scenario() -> None:
        journal = Journal()
        pieces = journal.reader().stream(None)
        await anext(pieces)
        waiting = asyncio.ensure_future(read(pieces, 1))
        await settle()
        journal.write(1, size=50_000)
        assert await waiting == [1]
        assert journal.aborted == 0

    run(scenario())


def test_a_subscriber_that_disconnects_during_a_write_is_removed_at_once() -> None:
    """Not at the next garbage collection: until then, every event would be kept for it."""

    async def scenario() -> None:
        journal = Journal(10)
        gone, blocked = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if numbers(message.get("body", b"")):
                blocked.set()
                await asyncio.Event().wait()  # a full connection

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        reader = journal.reader()
        response = StreamedReply(reader.stream(0))
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        serving = asyncio.ensure_future(response(scope, receive, send))
        await blocked.wait()
        journal.write(1)
        await settle()
        assert journal.readers == [reader]
        assert reader._unsent_bytes
        gone.set()
        await serving
        assert journal.readers == []
        assert not reader._unsent_bytes

    run(scenario())


def test_a_subscriber_that_disconnects_before_it_is_added_is_never_added() -> None:
    async def scenario() -> None:
        journal = Journal(3)
        reader = journal.reader()
        reader.close()
        this: Any = None
        reader._page(0, this, this)
        assert journal.readers == []
        journal.readers.append(reader)  # the daemon was adding it
        journal.write()
        assert journal.readers == []

    run(scenario())
