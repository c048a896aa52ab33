"""Reading job logs, from the end, from a moment on, or as they grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable

CHUNK = 1 << 16
PAUSE = 0.05
"""A file has no way to tell that it grew, so a follower looks; only while there is one."""
LONGEST_PAUSE = 0.5


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


async def stream(path: str, start: int, ended: Awaitable[object] | None) -> AsyncIterator[bytes]:
    """Bytes from `start` on; while `ended` is not done, wait for more."""
    over = asyncio.ensure_future(ended) if ended is not None else None
    at, pause = start, PAUSE
    try:
        while True:
            finished = over is None or over.done()
            data = _read(path, at)
            if data:
                at += len(data)
                pause = PAUSE
                yield data
            elif finished:
                return
            else:
                assert over is not None
                await asyncio.wait([over], timeout=pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)
    finally:
        if over is not None:
            over.cancel()


def _read(path: str, at: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(CHUNK)
    except OSError:
        return b""
