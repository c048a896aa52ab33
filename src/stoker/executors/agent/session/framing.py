"""Parse what a node sends over its connection: lines and bulk data, both bounded. Pure.

Login scripts print, and so may other programs that sshd runs before our shell. Our lines begin
with a nonce that no job has seen. Nothing else about them is trusted: a node may send any bytes.
"""

from __future__ import annotations

import os
from collections import deque

MAX_LINE_BYTES = 1 << 16
"""Bytes of a line; the agent's own lines are far shorter."""
MAX_HEADER_BYTES = 128
"""Bytes of a header of bulk data."""
MAX_DIGITS = 18
"""More digits do not fit into the integers of the journal."""


class ProtocolError(ValueError):
    """A node sent what the protocol does not allow; the message says what."""


def number(word: str, maximum: int = 10**MAX_DIGITS - 1) -> int:
    """Return a word as a number from 0 to `maximum`; only ASCII digits count."""
    if not (word.isascii() and word.isdigit()) or len(word) > MAX_DIGITS or int(word) > maximum:
        raise ProtocolError(f"{word[:40]!a} where a number up to {maximum} was expected")
    return int(word)


class Lines:
    """Replies and notifications: short lines, complete when their newline has arrived."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{nonce} ".encode()
        self._rest = b""
        self.noise = 0
        """Bytes that were no part of our lines."""

    def feed(self, chunk: bytes) -> list[list[str]]:
        """Return the words of every line of ours that is complete now."""
        *lines, unfinished = (self._rest + chunk).split(b"\n")
        if len(unfinished) > MAX_LINE_BYTES:
            if self._mark in unfinished:
                raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
            # The end of a long noise may be the beginning of our mark.
            self.noise += len(unfinished) - len(self._mark)
            unfinished = unfinished[-len(self._mark) :]
        self._rest = unfinished
        received = []
        for line in lines:
            before, mark, words = line.partition(self._mark)  # noise need not end with a newline
            self.noise += len(before) + (not mark)
            if mark:
                received.append(os.fsdecode(words).split(" "))
        return received


class Bulks:
    """Bulk data in portions: `NONCE NUMBER LENGTH`, that many bytes, and a length of 0 at the end.

    Only what was requested is accepted, in the order of the requests.
    """

    def __init__(self, nonce: str) -> None:
        self._mark = f"{nonce} ".encode()
        self._rest = bytearray()
        self._expected: deque[tuple[str, int]] = deque()
        """Numbers of the requests without a reply, and the maximum bytes of each reply."""
        self._body = bytearray()
        """What has arrived of the first of them."""
        self._missing = 0
        """Bytes of the current portion that have not arrived yet."""
        self.noise = 0
        """Bytes that were part of no reply."""
        self.received = 0
        """Bytes of all replies."""

    def expect(self, request: str, maximum: int) -> None:
        """Expect a reply of at most this number of bytes."""
        self._expected.append((request, maximum))

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """Return every reply that is complete now, with the number of its request."""
        self._rest += chunk
        complete = []
        while self._rest:
            if self._missing:
                portion = self._rest[: self._missing]
                self._body += portion
                self._missing -= len(portion)
                self.received += len(portion)
                del self._rest[: len(portion)]
            elif not self._read_header():
                break
            elif not self._missing:
                request, _ = self._expected.popleft()
                body, self._body = bytes(self._body), bytearray()
                complete.append((request, body))
        return complete

    def _read_header(self) -> bool:
        """Read the next header if it is complete; drop noise in front of it."""
        start = self._rest.find(self._mark)
        noise = start if start >= 0 else max(len(self._rest) - len(self._mark) + 1, 0)
        del self._rest[:noise]
        self.noise += noise
        end = self._rest.find(b"\n", 0, MAX_HEADER_BYTES) if start >= 0 else -1
        if end < 0:
            if start >= 0 and len(self._rest) >= MAX_HEADER_BYTES:
                raise ProtocolError("an unterminated header of bulk data")
            return False
        words = self._rest[len(self._mark) : end].decode("ascii", "replace").split(" ")
        del self._rest[: end + 1]
        if len(words) != 2:
            raise ProtocolError(f"a header of bulk data with {len(words)} words")
        if not self._expected or words[0] != self._expected[0][0]:
            raise ProtocolError(f"bulk data for request {words[0][:40]!a}, which is not expected")
        self._missing = number(words[1], self._expected[0][1] - len(self._body))
        return True
