"""Detects that a failed attempt ran out of memory, from kernel counters and its log."""

from __future__ import annotations

import os
import time

CUDA_SIGNS = (
    b"CUDA out of memory",
    b"CUDA_ERROR_OUT_OF_MEMORY",
    b"torch.cuda.OutOfMemoryError",
    b"torch.OutOfMemoryError",
    b"HIP out of memory",
    b"CUDNN_STATUS_ALLOC_FAILED",
    b"RESOURCE_EXHAUSTED: Out of memory",
    b"cudaErrorMemoryAllocation",
)
TAIL = 16384


def cuda_out_of_memory(*logs: str | None) -> bool:
    """Return whether the end of a log reports that CUDA ran out of memory."""
    ends = [tail(path) for path in logs if path is not None]
    return any(sign in end for end in ends for sign in CUDA_SIGNS)


def last_line(sign: bytes, *logs: str | None) -> str | None:
    """Return the rest of the last line of a log that begins with `sign`; None without one."""
    for path in logs:
        lines = tail(path).splitlines() if path is not None else []
        if lines and lines[-1].startswith(sign):
            return lines[-1].removeprefix(sign).decode(errors="replace")
    return None


def tail(path: str, size: int = TAIL) -> bytes:
    """Return the last bytes of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - size, 0))
            return file.read(size)
    except OSError:
        return b""


class OomCounter:
    """Counts kernel kills for memory since boot; read at most once a second before starts."""

    def __init__(self) -> None:
        self._seen = oom_kills()
        self._when = time.monotonic()

    def before(self) -> int:
        """Return the count before an attempt starts."""
        now = time.monotonic()
        if now - self._when > 1.0:
            self._seen, self._when = oom_kills(), now
        return self._seen


def oom_kills() -> int:
    """Return the number of processes that the kernel killed for memory since boot."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
