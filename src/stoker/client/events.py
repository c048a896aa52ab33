"""The daemon's event stream, for a caller that waits for other descriptors as well."""

from __future__ import annotations

import select

from stoker import wire
from stoker.client import fast_json, transport
from stoker.client.client import Client
from stoker.wire import JsonObject


class EventStream:
    """Server-sent events over one connection, read when its descriptor is readable."""

    def __init__(self, client: Client, after: int | None = None) -> None:
        self.client = client
        self.last = after
        self.reopen()

    def reopen(self) -> None:
        """Connect (again), after the last event that was read."""
        target = f"{wire.PREFIX}/events"
        if self.last is not None:
            target += f"?after={self.last}"
        reply = self.client.open("GET", target, None, None, retry=True)
        self._sock, data = reply.detach()
        self._decoder = transport.ChunkedDecoder()
        self._text = b""
        self._events: list[tuple[str, JsonObject]] = []
        self._parse(data)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def wait(self, other_fd: int | None, seconds: float) -> bool | None:
        """Wait for events or another descriptor; False if the daemon closed the connection."""
        watched = [self.fileno()] if other_fd is None else [self.fileno(), other_fd]
        # TLS may have buffered data, which select does not report.
        pending = getattr(self._sock, "pending", None)
        ready = watched[:1] if pending and pending() else select.select(watched, [], [], seconds)[0]
        return self.receive() if self.fileno() in ready else None

    def receive(self) -> bool:
        """Read what has arrived; False if the daemon closed the connection."""
        try:
            piece = self._sock.recv(transport.RECEIVE_BYTES)
        except OSError:
            piece = b""
        self._parse(piece)
        return bool(piece)

    def _parse(self, data: bytes) -> None:
        """Add the events that `data` completes."""
        *blocks, self._text = (self._text + self._decoder.feed(data)).split(b"\n\n")
        for block in blocks:
            lines = block.decode("utf-8", "replace").split("\n")
            fields = dict(line.split(": ", 1) for line in lines if ": " in line)
            if "data" in fields:
                self.last = int(fields["id"])
                content = {"seq": self.last, **fast_json.loads(fields["data"])}
                self._events.append((fields["event"], content))

    def take(self) -> list[tuple[str, JsonObject]]:
        """Return the events since the last call: kind and content."""
        events, self._events = self._events, []
        return events
