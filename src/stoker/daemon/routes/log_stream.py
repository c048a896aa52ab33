"""GET /jobs/{selector}/log: a log from its start, from a tail or offset, or as it grows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

CHUNK_BYTES = 1 << 16
MIN_POLL_SECONDS = 0.05
"""The log may be on a network file system, where no event tells that it grew; it is polled only
while a client follows it."""
MAX_POLL_SECONDS = 0.25


def start_of_tail(path: str, lines: int) -> int:
    """Return the offset at which the last lines begin."""
    try:
        with open(path, "rb") as file:
            at = end = os.fstat(file.fileno()).st_size
            data = b""
            while at > 0 and data.count(b"\n") <= lines:
                step = min(CHUNK_BYTES, at)
                at -= step
                file.seek(at)
                data = file.read(step) + data
    except OSError:
        return 0
    tail = data.splitlines(keepends=True)[-lines:] if lines else []
    return end - sum(map(len, tail))


def start_since(path: str, seconds: int) -> int:
    """Return the start of a log that was written in the last seconds, else its end."""
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return 0 if time.time() - status.st_mtime <= seconds else status.st_size


async def follow(
    path: str, start: int, is_over: Callable[[], Awaitable[bool]] | None = None
) -> AsyncIterator[bytes]:
    """Yield a log as it grows, until its attempt is over; without `is_over`, as it is now."""
    at, pause = start, MIN_POLL_SECONDS
    ended = is_over is None or await is_over()
    while True:
        data = _read(path, at)
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


def _read(path: str, at: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(CHUNK_BYTES)
    except OSError:
        return b""
