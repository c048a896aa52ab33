"""The daemon's stream of events, for a caller that waits for other things as well."""

from __future__ import annotations

from stoker import wire
from stoker.client import fast_json as jsonlight
from stoker.client import transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client


class EventStream:
    """Server-sent events over one connection, read when its descriptor is readable."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.last: int | None = None
        self.reopen()

    def reopen(self) -> None:
        """Connect (again), behind the last event that was seen."""
        target = f"{wire.PREFIX}/events"
        if self.last is not None:
            target += f"?after={self.last}"
        reply = self.client.open("GET", target, None, None, retry=True)
        self._sock, self._raw = reply.detach()
        self._text = b""
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._digest()

    def fileno(self) -> int:
        """What to wait on."""
        return self._sock.fileno()

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def receive(self) -> bool:
        """Take in what has arrived; False when the daemon hung up."""
        try:
            piece = self._sock.recv(transport.CHUNK)
        except OSError:
            piece = b""
        self._raw += piece
        self._digest()
        return bool(piece)

    def _digest(self) -> None:
        """Take whole events out of what has arrived."""
        self._unchunk()
        *blocks, self._text = self._text.split(b"\n\n")
        for block in blocks:
            self._read(block)

    def _unchunk(self) -> None:
        """Take whole chunks out of the raw bytes."""
        while True:
            head, end, rest = self._raw.partition(b"\r\n")
            if not end:
                return
            size = int(head.split(b";")[0] or b"0", 16)
            if len(rest) < size + 2:
                return
            self._text += rest[:size]
            self._raw = rest[size + 2 :]

    def _read(self, block: bytes) -> None:
        fields = dict(
            line.split(": ", 1)
            for line in block.decode("utf-8", "replace").split("\n")
            if ": " in line
        )
        if "data" in fields:
            self.last = int(fields["id"])
            self._events.append((fields["event"], jsonlight.loads(fields["data"])))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """The events received since the last time: kind and content."""
        taken, self._events = self._events, []
        return taken
