"""How the agent's words are told from everything else that comes over its connection. Pure.

Login scripts talk, and so may whatever sshd runs before our shell. What is ours begins with a
nonce that nobody else has ever seen.
"""

from __future__ import annotations

import os

LONGEST_LINE = 1 << 16
"""No line of the agent comes near; whatever does is noise."""


class Lines:
    """Answers and news: short lines, whole when their newline is there."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{nonce} ".encode()
        self._rest = b""

    def feed(self, chunk: bytes) -> list[list[str]]:
        """The words of every line of ours that has come to its end."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            # The end of a long noise may be the beginning of our mark.
            self._rest = self._rest[-len(self._mark) :]
        found = []
        for line in lines:
            _, mark, words = line.partition(self._mark)  # noise need not end with a newline
            if mark:
                found.append(os.fsdecode(words).split(" "))
        return found


class Bulks:
    """Bytes in portions: `NONCE NUMBER LENGTH`, so many bytes, and a length of 0 in the end."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{nonce} ".encode()
        self._rest = bytearray()
        self._number = ""
        self._missing = 0
        """Bytes of the portion that have not come yet."""
        self._portions: dict[str, bytearray] = {}

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """Every answer that is whole now, with the number of its request."""
        self._rest += chunk
        found = []
        while self._rest:
            if self._missing:
                portion = self._rest[: self._missing]
                self._portions.setdefault(self._number, bytearray()).extend(portion)
                self._missing -= len(portion)
                del self._rest[: len(portion)]
            elif not self._announced():
                break
            elif not self._missing:
                found.append((self._number, bytes(self._portions.pop(self._number, b""))))
        return found

    def _announced(self) -> bool:
        """Read the next announcement, if it is all here; noise in front of it goes."""
        start = self._rest.find(self._mark)
        del self._rest[: start if start >= 0 else max(len(self._rest) - len(self._mark) + 1, 0)]
        end = self._rest.find(b"\n") if start >= 0 else -1
        if end < 0:
            return False
        _, number, length = self._rest[:end].split(b" ")
        del self._rest[: end + 1]
        self._number, self._missing = number.decode(), int(length)
        return True
