"""GET /jobs/{selector}/log: a log from its start, from a tail or offset, or as it grows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

CHUNK_BYTES = 1 << 16
MIN_POLL_SECONDS = 0.05
"""The log may be on a network file system, where no event tells that it grew; it is polled only
while a client follows it."""
MAX_POLL_SECONDS = 0.25


class FilePart(NamedTuple):
    """A part of a file, and what is known of the file."""

    data: bytes = b""
    size: int = 0
    changed_at: float = 0.0


ReadPart = Callable[[int, int], Awaitable[FilePart]]
"""Returns a number of bytes from an offset on, at most; of an unreadable file, nothing."""


def part_reader(path: str) -> ReadPart:
    """Return what reads a file of this daemon's user."""

    async def read(offset: int, size: int) -> FilePart:
        return _read(path, offset, size)

    return read


def _read(path: str, offset: int, size: int) -> FilePart:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            file.seek(offset)
            return FilePart(file.read(size), status.st_size, status.st_mtime)
    except OSError:
        return FilePart()


async def start_of_tail(read: ReadPart, lines: int) -> int:
    """Return the offset at which the last lines begin."""
    at = end = (await read(0, 0)).size
    data = b""
    while at > 0 and data.count(b"\n") <= lines:
        step = min(CHUNK_BYTES, at)
        at -= step
        data = (await read(at, step)).data + data
    tail = data.splitlines(keepends=True)[-lines:] if lines else []
    return end - sum(map(len, tail))


async def start_since(read: ReadPart, seconds: int) -> int:
    """Return the start of a log that was written in the last seconds, else its end."""
    part = await read(0, 0)
    return 0 if time.time() - part.changed_at <= seconds else part.size


async def follow(
    read: ReadPart, start: int, is_over: Callable[[], Awaitable[bool]] | None = None
) -> AsyncIterator[bytes]:
    """Yield a log as it grows, until its attempt is over; without `is_over`, as it is now."""
    at, pause = start, MIN_POLL_SECONDS
    ended = is_over is None or await is_over()
    while True:
        data = (await read(at, CHUNK_BYTES)).data
        if data:
            at += len(data)
            pause = MIN_POLL_SECONDS
            yield data
        elif is_over is None or ended:
            return
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
            ended = await is_over()  # before reading, so that the last bytes are not missed
