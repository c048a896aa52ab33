"""Read a tar stream that a node made: bounded in memory and time, whatever is in it.

`tarfile` of the standard library keeps every member, believes the sizes of headers, and searches
them with regular expressions that take minutes on the wrong input. What tar programs write for
plain files is little: POSIX headers, GNU's and POSIX's ways to write long names and large sizes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol

BLOCK, PIECE = 512, 1 << 18
MAX_MEMBERS = 200_000
"""Files in one stream."""
MAX_EXTENSION = 64 << 10
"""Bytes of the records before a member, such as long names."""
MAX_PADDING = 1 << 20
"""Zeros between two members, or two archives."""
MAX_TIME = (1 << 32) - 1
NOT_AN_ARCHIVE = "the received data is not a complete tar archive."


class Refused(Exception):
    """The content of the stream is not accepted; the message is one sentence."""


class TruncatedArchive(Refused, EOFError):
    """The stream is incomplete, or no archive."""


class Source(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most this number of bytes; none at the end."""


class Kind(Enum):
    """The type of a member."""

    FILE = "file"
    SECOND_NAME = "hard link"
    LINK = "symbolic link"
    DIRECTORY = "directory"
    OTHER = "other"
    """A pipe, a device or something unknown."""


class Member(NamedTuple):
    """One file of an archive, without its content."""

    name: str
    kind: Kind
    size: int
    mode: int
    mtime: int
    target: str


_KINDS = {
    b"0": Kind.FILE, b"\0": Kind.FILE, b"7": Kind.FILE, b"1": Kind.SECOND_NAME, b"2": Kind.LINK,
    b"5": Kind.DIRECTORY,
}  # fmt: skip
_GNU_NAME, _GNU_TARGET, _GNU_SPARSE, _RECORDS, _GLOBAL_RECORDS = b"L", b"K", b"S", b"x", b"g"
_WITHOUT_CONTENT = frozenset(b"123456")
_OCTAL = re.compile(rb"[0-7]{1,12}")
_DECIMAL = re.compile(rb"([0-9]{1,18})(?:\.[0-9]{0,18})?")


class Archive:
    """The members of a stream of tar archives, one after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = 0
        """Bytes of the current member that were not read, without its padding."""
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        count = 0
        while (member := self._next()) is not None:
            count += 1
            if count > MAX_MEMBERS:
                raise Refused(f"there are more than {MAX_MEMBERS} files in one archive.")
            yield member
            for _ in self.content():
                pass

    def content(self) -> Iterator[bytes]:
        """Yield the unread content of the current member, in pieces."""
        while self._left:
            piece = self._source.read(min(self._left, PIECE))
            if not piece:
                raise TruncatedArchive(NOT_AN_ARCHIVE)
            self._left -= len(piece)
            yield piece
        self._exactly(self._padding)
        self._padding = 0

    # -- headers ------------------------------------------------------------------------

    def _next(self) -> Member | None:
        extension: dict[str, bytes] = {}
        bytes_left = MAX_EXTENSION
        while (header := self._header()) is not None:
            type, size = header[156:157], _number(header[124:136])
            if type in (_GNU_NAME, _GNU_TARGET, _RECORDS, _GLOBAL_RECORDS):
                bytes_left -= size + BLOCK
                if bytes_left < 0:
                    raise TruncatedArchive(NOT_AN_ARCHIVE)
                data = self._exactly(size + _padding(size))[:size]
                if type == _RECORDS:
                    extension |= _records(data)
                elif type != _GLOBAL_RECORDS:
                    extension["path" if type == _GNU_NAME else "linkpath"] = data.rstrip(b"\0")
                continue
            if type == _GNU_SPARSE or any(key.startswith("GNU.sparse") for key in extension):
                raise Refused(
                    "the archive contains a sparse file, which needs rsync; install rsync on "
                    "the node."
                )
            return self._member(header, type, size, extension)
        if bytes_left < MAX_EXTENSION:
            raise TruncatedArchive(NOT_AN_ARCHIVE)
        return None

    def _member(self, header: bytes, type: bytes, size: int, extension: dict[str, bytes]) -> Member:
        name, target = _text(header[:100]), _text(header[157:257])
        if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
            name = prefix + b"/" + name
        if "size" in extension:
            size = _decimal(extension["size"])
        mtime = _decimal(extension["mtime"]) if "mtime" in extension else _time(header[136:148])
        kind = _KINDS.get(type, Kind.OTHER)
        name = extension.get("path", name)
        if kind is Kind.FILE and name.endswith(b"/"):
            kind = Kind.DIRECTORY  # as before there was a letter for it
        self._left = 0 if type[0] in _WITHOUT_CONTENT else size
        self._padding = _padding(self._left)
        return Member(
            os.fsdecode(name),
            kind,
            self._left,
            _number(header[100:108]) & 0o7777,
            min(mtime, MAX_TIME),
            os.fsdecode(extension.get("linkpath", target)),
        )

    def _header(self) -> bytes | None:
        """Return the next header; zeros before it end an archive, and another one may follow."""
        for _ in range(MAX_PADDING // BLOCK):
            block = self._exactly(BLOCK, or_end=True)
            if not block:
                return None
            if any(block):
                if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 0x20:
                    raise TruncatedArchive(NOT_AN_ARCHIVE)
                return block
        raise TruncatedArchive(NOT_AN_ARCHIVE)

    def _exactly(self, size: int, or_end: bool = False) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._source.read(size - len(data))
            if not piece:
                if or_end and not data:
                    return b""
                raise TruncatedArchive(NOT_AN_ARCHIVE)
            data += piece
        return data


def _padding(size: int) -> int:
    """Return the number of bytes that fill the last block."""
    return -size % BLOCK


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or binary if it is large."""
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
        if value >> 62:
            raise TruncatedArchive(NOT_AN_ARCHIVE)
        return value
    digits = field.strip(b"\0 ")
    if not digits:
        return 0
    if not _OCTAL.fullmatch(digits):
        raise TruncatedArchive(NOT_AN_ARCHIVE)
    return int(digits, 8)


def _time(field: bytes) -> int:
    """Return the modification time; 0 for times before 1970."""
    return 0 if field[0] == 0xFF else _number(field)


def _decimal(digits: bytes) -> int:
    """Return a time of a record in whole seconds; 0 for times before 1970."""
    match = _DECIMAL.fullmatch(digits.removeprefix(b"-"))
    if match is None:
        raise TruncatedArchive(NOT_AN_ARCHIVE)
    return 0 if digits.startswith(b"-") else int(match[1])


def _records(data: bytes) -> dict[str, bytes]:
    """Parse POSIX records `LENGTH KEY=VALUE`; the length includes itself and a newline."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + 8)
        digits = data[at : max(blank, at)]
        if not digits.isdigit():
            raise TruncatedArchive(NOT_AN_ARCHIVE)
        end = at + int(digits)
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= blank + 1 or data[end - 1] != 0x0A or not equals:
            raise TruncatedArchive(NOT_AN_ARCHIVE)
        records[key.decode(errors="replace")] = value
        at = end
    return records
