"""The stream of events misses nothing, whenever a reader comes."""

import asyncio
from types import SimpleNamespace
from typing import Any

from stoker.core.events import Event, JobHeld
from stoker.daemon.stream import Reader


class Journal:
    """Events by number, of which more are written while a reader is being served."""

    def __init__(self) -> None:
        self.written: list[Event] = []
        self.readers: list[Any] = []
        self.engine = SimpleNamespace(seq=0)
        self.store = SimpleNamespace(events=self.events)

    def write(self) -> None:
        event = JobHeld(at=0.0, job=len(self.written) + 1)
        self.written.append(event)
        self.engine.seq = len(self.written)
        for reader in self.readers:
            reader(self.engine.seq, [event])

    def events(self, after: int, most: int) -> list[tuple[int, Event]]:
        return list(enumerate(self.written, 1))[after : after + most]

    async def ask(self, decide: Any) -> Any:
        """Answer, and let something happen before the next question."""
        answer = decide(None, None).reply(None)
        self.write()
        return answer


def test_what_happens_while_the_past_is_read_is_told_once() -> None:
    async def story() -> list[int]:
        journal: Any = Journal()
        for _ in range(3):
            journal.write()
        seen: list[int] = []
        async for piece in Reader(journal, journal.ask).stream(1):
            seen += [int(line[4:]) for line in piece.split(b"\n") if line.startswith(b"id: ")]
            if len(seen) == 2:
                journal.write()
            if seen and seen[-1] == len(journal.written):
                break
        return seen

    seen = asyncio.run(asyncio.wait_for(story(), 10))
    assert seen == list(range(2, seen[-1] + 1))
    assert seen[-1] >= 6
