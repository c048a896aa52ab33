"""LiveHub: one per daemon builds each frame of the live stream once for all readers.

Users that see less of the jobs of others have frames of their own.

Without readers it has no timer, and nothing is noted about changes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import UnsetType
from msgspec.structs import replace

from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.control.change_collector import ChangeCollector, Update
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.http.codec import encode
from stoker.daemon.views.job_columns import public_row
from stoker.engine import CommandRejected
from stoker.schema.live import AlarmsFrame, JobsFrame

FRAME_SECONDS = 0.1
"""Changes of this time are one frame."""
GPU_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 15.0
MAX_QUEUED_FRAMES = 50
MAX_QUEUED_BYTES = 4 << 20
"""How far a reader may fall behind before it is disconnected."""

Ask = Callable[[CommandHandler], Awaitable[Any]]
Topic = str


def sse_frame(event: str, data: Any) -> bytes:
    """Return a frame of server-sent events."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), encode(data))


class LiveReader:
    """One client: its topics, and the frames that it has not read."""

    def __init__(
        self, topics: frozenset[Topic], abort: Callable[[], None], user: str | None = None
    ) -> None:
        """`abort` closes the connection of a reader that is too slow.

        `user` is given if the reader sees only the public part of jobs of others.
        """
        self.topics, self.user = topics, user
        self._abort = abort
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._has_frames = asyncio.Event()
        self.is_closed = False

    def add(self, frame: bytes) -> None:
        """Queue a frame; disconnect a reader with too many."""
        if self.is_closed:
            return
        is_full = len(self._frames) >= MAX_QUEUED_FRAMES or (
            self._frames and self._bytes + len(frame) > MAX_QUEUED_BYTES
        )
        if is_full:
            self.close()
            self._abort()
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._has_frames.set()

    def close(self) -> None:
        """Drop all frames and take no more."""
        self.is_closed = True
        self._frames.clear()
        self._has_frames.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames as they come, and a comment if none comes for long."""
        while not self.is_closed:
            try:
                await asyncio.wait_for(self._has_frames.wait(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._has_frames.clear()
            while self._frames:
                frame = self._frames.popleft()
                self._bytes -= len(frame)
                yield frame


class LiveHub:
    """Runs while there are readers; asks the daemon's thread for what changed."""

    def __init__(
        self, ask: Ask, seq: Callable[[], int], context: RequestContext, publisher: Publisher,
        build_gpus: CommandHandler,
    ) -> None:  # fmt: skip
        """`build_gpus` returns a GpusFrame; `seq` is called by the daemon's thread."""
        self._ask, self._seq, self._build_gpus = ask, seq, build_gpus
        self._collector = ChangeCollector(context, publisher, self._on_change)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._readers: set[LiveReader] = set()
        self._changed, self._started = asyncio.Event(), asyncio.Event()
        self._gpus_due = 0.0

    @property
    def reader_count(self) -> int:
        """The number of readers."""
        return len(self._readers)

    async def add(self, reader: LiveReader) -> None:
        """Give a reader all frames about what changes after this call."""
        self._readers.add(reader)
        if self._task is None:
            self._event_loop = asyncio.get_running_loop()
            self._task = self._event_loop.create_task(self._run())
        await self._started.wait()
        if "gpus" in reader.topics:
            self._gpus_due = 0.0
            self._changed.set()

    def remove(self, reader: LiveReader) -> None:
        """Give a reader no more frames; safe to repeat."""
        reader.close()
        self._readers.discard(reader)
        if not self._readers:
            self._changed.set()

    def _on_change(self) -> None:
        """Wake the hub; called by the daemon's thread."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> None:
        try:
            while self._readers:
                await self._ask(partial(self._collector.start, self._seq))
                self._started.set()
                await self._send_until_unread()
                self._started.clear()
                await self._ask(self._collector.stop)
        except CommandRejected:
            for reader in self._readers:  # the daemon is stopping
                reader.close()
            self._started.set()
        finally:
            self._task = None

    async def _send_until_unread(self) -> None:
        while self._readers:
            await self._send_changes()
            await self._send_gpus()
            await asyncio.sleep(FRAME_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._seconds_to_gpus())

    def _topics(self) -> frozenset[Topic]:
        return frozenset().union(*(reader.topics for reader in self._readers))

    def _seconds_to_gpus(self) -> float | None:
        if "gpus" not in self._topics():
            return None
        return max(self._gpus_due - time.monotonic(), 0.0)

    async def _send_changes(self) -> None:
        if not self._changed.is_set():
            return
        self._changed.clear()
        update: Update = await self._ask(partial(self._collector.take, self._topics()))
        if update.jobs is not None:
            self._send("jobs", update.jobs)
        if update.counts is not None:
            self._send("counts", update.counts)
        if update.sweeps:
            self._send("sweeps", {"seq": update.seq, "sweeps": update.sweeps})
        if update.alarms is not None:
            self._send("alarms", AlarmsFrame(seq=update.seq, alarms=update.alarms))
        if update.has_nodes:
            self._send("nodes", {"seq": update.seq})

    async def _send_gpus(self) -> None:
        if "gpus" in self._topics() and time.monotonic() >= self._gpus_due:
            self._gpus_due = time.monotonic() + GPU_SECONDS
            self._send("gpus", await self._ask(self._build_gpus))

    def _send(self, topic: Topic, data: Any) -> None:
        frames: dict[str | None, bytes] = {}
        for reader in list(self._readers):
            if topic in reader.topics:
                user = reader.user if topic == "jobs" else None
                if user not in frames:
                    frames[user] = sse_frame(topic, data if user is None else _for_user(data, user))
                reader.add(frames[user])


def _for_user(frame: JobsFrame, user: str) -> JobsFrame:
    if isinstance(frame.changed, UnsetType):
        return frame
    rows = [row if row.user == user else public_row(row) for row in frame.changed]
    return replace(frame, changed=rows)
