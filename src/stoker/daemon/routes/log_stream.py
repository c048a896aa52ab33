"""Reading job logs, from the end, from a moment on, or as they grow."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

CHUNK = 1 << 16
PAUSE = 0.05
"""A file has no way to tell that it grew, so a follower looks; only while there is one."""
LONGEST_PAUSE = 0.25


def start_of_tail(path: str, lines: int) -> int:
    """Where the last so many lines begin."""
    try:
        with open(path, "rb") as file:
            at = end = os.fstat(file.fileno()).st_size
            found = b""
            while at > 0 and found.count(b"\n") <= lines:
                step = min(CHUNK, at)
                at -= step
                file.seek(at)
                found = file.read(step) + found
    except OSError:
        return 0
    wanted = found.splitlines(keepends=True)[-lines:] if lines else []
    return end - sum(map(len, wanted))


def start_since(path: str, seconds: int) -> int:
    """Logs carry no times; a log untouched for that long has nothing to show."""
    try:
        recent = time.time() - os.stat(path).st_mtime <= seconds
    except OSError:
        return 0
    return 0 if recent else os.stat(path).st_size


async def whole(path: str, start: int) -> AsyncIterator[bytes]:
    """A log as it is, from `start` on."""
    at = start
    while data := _read(path, at):
        at += len(data)
        yield data


async def follow(
    path: str, start: int, is_over: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """A log as it grows, until nothing more can come."""
    at, pause = start, PAUSE
    ended = await is_over()
    while True:
        data = _read(path, at)
        if data:
            at += len(data)
            pause = PAUSE
            yield data
        elif ended:
            return
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            ended = await is_over()  # asked before reading, so that the last bytes are not missed


def _read(path: str, at: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(CHUNK)
    except OSError:
        return b""
