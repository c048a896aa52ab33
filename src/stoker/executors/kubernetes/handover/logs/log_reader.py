"""LogReader: the log of an attempt's pod, split into output, training report and exit. Pure.

Every entry of the log begins with its time, which is how reading continues after a cut: the log is
requested again from the second of the last entry, and entries that are known are skipped. The
kubelet splits long lines into entries without a line end between them, so a time may also occur
within a line.
"""

from __future__ import annotations

import re

from msgspec import Struct

OUT, ERR, REPORT = "out", "err", "report"
TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) "
_TIME_AT_START = re.compile(TIME)
_TIME_WITHIN = re.compile(TIME)
ENTRY_STEP = 4096
"""Entries of one long line have a multiple of this many bytes (containerd: 16384)."""


class Piece(Struct, frozen=True):
    """Bytes of one stream, and their position in it."""

    stream: str
    offset: int
    data: bytes


class LogPosition(Struct):
    """How far a log was read; a later daemon continues there."""

    first: str = ""
    """The time of the first entry."""
    last: str = ""
    count: int = 0
    """Entries that were read with the time `last`."""
    out: int = 0
    """Bytes of output that were read."""


class LogReader:
    """Reads the log of one pod, over several requests."""

    def __init__(self, nonce: str, position: LogPosition | None = None) -> None:
        """With a position, the next request is for the whole log, if that still begins there."""
        self._nonce = f"{nonce} ".encode()
        self.position = position or LogPosition()
        self._known = self.position if position is not None and position.first else None
        """Where an earlier daemon was, until it is clear whether the log was rotated since."""
        if self._known is not None:
            self.position = LogPosition()
        self.exit_code: int | None = None
        """The code that the wrapper has told."""
        self.is_at_barrier = False
        """Whether it has reached its barrier."""
        self.is_past_barrier = position is not None and position.out > 0
        self.is_cancelled = False
        """Whether it gave up at its barrier."""
        self.lacks_gpus = False
        """Whether its container does not see its GPUs."""
        self.trouble = ""
        """What the kubelet has written instead of the log."""
        self._rest = b""
        self._skipped = 0
        """Entries with the time `last` that were seen in this request."""
        self._is_skipping = False

    @property
    def since(self) -> str | None:
        """The time from which the log is to be requested; None: from its start."""
        return self.position.last or None

    def begin(self) -> None:
        """Begin to read the reply to another request."""
        self.trouble = ""
        self._rest, self._skipped, self._is_skipping = b"", 0, bool(self.position.last)

    def feed(self, data: bytes) -> list[Piece]:
        """Return what is new in the next bytes of the log."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return self._merged([piece for line in lines for piece in self._line(line + b"\n")])

    def finish(self) -> list[Piece]:
        """Return what the last line has, if it has no end."""
        rest, self._rest = self._rest, b""
        return self._merged(self._line(rest)) if rest else []

    def read_message(self, message: str) -> list[Piece]:
        """Return the report in a termination message, which has the end of the log."""
        lines = message.encode().split(b"\n")
        marked = (line.removeprefix(self._nonce) for line in lines if line.startswith(self._nonce))
        return [piece for line in marked for piece in self._marked(line)]

    # -- lines --------------------------------------------------------------------------

    def _line(self, line: bytes) -> list[Piece]:
        """Return the pieces of the entries of one line."""
        if _TIME_AT_START.match(line) is None:  # not of the log: an error of the kubelet
            self.trouble = line.decode(errors="replace").strip() or self.trouble
            return []
        text = b"".join(self._content(time, entry) for time, entry in _entries(line))
        pieces: list[Piece] = []
        before, found, marked = text.partition(self._nonce)
        if before:
            self.is_past_barrier = True  # the line that says so may have been rotated away
            pieces.append(Piece(OUT, self.position.out, before))
            self.position.out += len(before)
        if found:
            pieces += self._marked(marked.removesuffix(b"\n"))
        return pieces

    def _content(self, time: str, entry: bytes) -> bytes:
        """Return an entry if it is new, and note its time."""
        position = self.position
        if not position.first:
            position.first = time
            self._resume(time)
            position = self.position
        if self._is_skipping:
            if time < position.last:
                return b""
            if time == position.last:
                self._skipped += 1
                if self._skipped <= position.count:
                    return b""
            self._is_skipping = False
        position.count = position.count + 1 if time == position.last else 1
        position.last = time
        return entry

    def _resume(self, first: str) -> None:
        """Skip what an earlier daemon has read, if the beginning of the log was dropped since."""
        known, self._known = self._known, None
        if known is not None and known.first != first:
            self.position, self._is_skipping = known, True

    def _marked(self, text: bytes) -> list[Piece]:
        """Handle a line of the wrapper."""
        kind, _, rest = text.partition(b" ")
        if kind == b"x":
            self.is_cancelled, self.lacks_gpus = rest == b"cancelled", rest == b"lacks"
            self.exit_code = int(rest) if rest.isdigit() else self.exit_code
        elif kind == b"b":
            self.is_at_barrier = True
        elif kind == b"g":
            self.is_past_barrier = True
        elif kind in (b"r", b"e"):
            offset, _, line = rest.partition(b" ")
            if offset.isdigit():
                stream = REPORT if kind == b"r" else ERR
                return [Piece(stream, int(offset), line + b"\n")]
        return []

    @staticmethod
    def _merged(pieces: list[Piece]) -> list[Piece]:
        """Join adjacent pieces of a stream."""
        merged: list[Piece] = []
        latest: dict[str, int] = {}
        for piece in pieces:
            index = latest.get(piece.stream)
            if index is not None:
                before = merged[index]
                if before.offset + len(before.data) == piece.offset:
                    merged[index] = Piece(piece.stream, before.offset, before.data + piece.data)
                    continue
            latest[piece.stream] = len(merged)
            merged.append(piece)
        return merged


def _entries(line: bytes) -> list[tuple[str, bytes]]:
    """Return time and content of the entries of one line."""
    entries: list[tuple[str, bytes]] = []
    begin, at, time = 0, 0, ""
    match = _TIME_AT_START.match(line)
    if match is not None:
        time, begin, at = match[0][:-1].decode(), match.end(), match.end()
    while (match := _TIME_WITHIN.search(line, at)) is not None:
        at = match.end()
        size = match.start() - begin
        if size and size % ENTRY_STEP == 0:
            entries.append((time, line[begin : match.start()]))
            time, begin = match[0][:-1].decode(), match.end()
    entries.append((time, line[begin:]))
    return entries
