"""LogScanner: size of a job's output, and whether the loss in it is not a number."""

from __future__ import annotations

import os
import re

from msgspec import Struct

MAX_BYTES = 64 * 1024
"""Of what was appended since the last look, only the end is read."""
_BAD_LOSS = re.compile(rb"(?:\b|_)loss\b.{0,20}?\b(?:nan|inf)\b", re.IGNORECASE)
_LOSS = re.compile(rb"(?:\b|_)loss\b.{0,20}?\d", re.IGNORECASE)
_LINE_ENDS = re.compile(rb"[\r\n]+")


class _File(Struct):
    """What was read of one file."""

    size: int = 0
    bad_run: int = 0
    """Losses in a row that were not a number, up to the end."""


class LogScanner:
    """Looks at the output of one attempt."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    @property
    def has_nan(self) -> bool:
        """Whether the last two losses in a file were not numbers: scalers skip single ones."""
        return any(file.bad_run > 1 for file in self._files.values())

    def read(self, *paths: str) -> int | None:
        """Read what was appended; return the size of all files, None if there is none."""
        total = None
        for path in paths:
            file = self._files.setdefault(path, _File())
            size = self._read(path, file)
            if size is not None:
                total = (total or 0) + size
        return total

    @staticmethod
    def _read(path: str, file: _File) -> int | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            size = os.fstat(fd).st_size
            if size < file.size:
                file.size = 0
            begin = max(file.size, size - MAX_BYTES)
            data = os.pread(fd, size - begin, begin) if size > begin else b""
        except OSError:
            return None
        finally:
            os.close(fd)
        file.size = size
        if b"oss" in data or b"OSS" in data:
            for line in _LINE_ENDS.split(data):
                if _BAD_LOSS.search(line):
                    file.bad_run += 1
                elif _LOSS.search(line):
                    file.bad_run = 0
        return size
