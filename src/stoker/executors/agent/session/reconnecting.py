"""ReconnectingSession: the connection to a node, opened again whenever it is lost."""

from __future__ import annotations

import time
from typing import Protocol

from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.session import AgentSession, OnBytes, OnReply
from stoker.executors.agent.session.transport import Transport
from stoker.executors.reactor import Reactor

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
STABLE_SECONDS = 30.0
"""A connection that is lost after this time does not count as one more failure."""
EXIT_SECONDS, EXIT_POLL_SECONDS = 1.0, 0.02
"""Time that the transport's process has to exit after its output ended, and between checks."""
HELLO_SECONDS = 25.0
"""Time for a login; ssh itself gives up on a silent network sooner."""
KEEPALIVE_SECONDS, REPLY_SECONDS = 10.0, 20.0
"""Time without a reply after which the agent is pinged, and that it then has to reply.
ssh notices a dead network far sooner; this is for a shell that was killed or hangs."""
ROOT = ".stoker"
"""The directory of stoker on a node, below the user's home."""


class SessionListener(Protocol):
    """Receives the events of a connection."""

    def on_up(self) -> None:
        """Handle an agent that has answered."""

    def on_down(self, why: str) -> None:
        """Handle a connection that was lost, or could not be opened."""

    def on_notification(self, words: list[str]) -> None:
        """Handle a line of the agent that is no reply."""


class ReconnectingSession:
    """Keeps a connection to a node; it never blocks."""

    def __init__(
        self, transport: Transport, install: str, reactor: Reactor, listener: SessionListener
    ) -> None:
        self.transport, self.install = transport, install
        self.reactor, self.listener = reactor, listener
        self.root = ROOT
        self.session: AgentSession | None = None
        self.failures = 0
        self.try_at: float | None = time.monotonic()
        self.give_up_at: float | None = None
        self.pinged_at: float | None = None
        """When the agent was pinged, until it replies."""
        self.up_at: float | None = None
        """When the agent of this session answered first."""

    @property
    def is_up(self) -> bool:
        """Whether the agent answers."""
        return self.session is not None and self.session.is_up

    def request(self, on_reply: OnReply | None, verb: str, *words: str, max_lines: int = 1) -> None:
        """Send a request with a reply of at most `max_lines` lines, if there is a connection."""
        if self.session is not None and self.session.is_up:
            self.session.request(on_reply, verb, *words, max_lines=max_lines)

    def request_bytes(self, on_bytes: OnBytes, verb: str, *words: str, max_bytes: int) -> None:
        """Send a request with a reply of at most `max_bytes` bytes, if there is a connection."""
        if self.session is not None and self.session.is_up:
            self.session.request_bytes(on_bytes, verb, *words, max_bytes=max_bytes)

    def tick(self) -> float | None:
        """Connect when it is time; return the seconds until the next check."""
        now = time.monotonic()
        if self.session is None and self.try_at is not None and now >= self.try_at:
            self._connect()
        if self.give_up_at is not None and now >= self.give_up_at and self.session is not None:
            self.session.close(
                f"login succeeded, but no shell answered within {HELLO_SECONDS:.0f} s"
            )
        candidates = (self._await_exit(now), self._check_alive(now), self.try_at, self.give_up_at)
        moments = [moment for moment in candidates if moment is not None]
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _await_exit(self, now: float) -> float | None:
        """Let the transport's process exit before its failure is reported; return when to check."""
        session = self.session
        if session is None or session.ended_at is None:
            return None
        if session.process.poll() is None and now < session.ended_at + EXIT_SECONDS:
            return now + EXIT_POLL_SECONDS
        session.fail()
        return self.try_at

    def _check_alive(self, now: float) -> float | None:
        """Ping an agent that was silent for too long; return the time of the next check."""
        session = self.session
        if session is None or not session.is_up:
            self.pinged_at = None
            return None
        if self.pinged_at is not None and session.last_reply >= self.pinged_at:
            self.pinged_at = None
        if self.pinged_at is None:
            if now < session.last_reply + KEEPALIVE_SECONDS:
                return session.last_reply + KEEPALIVE_SECONDS
            self.pinged_at = now
            session.ping()
        elif now >= self.pinged_at + REPLY_SECONDS:
            self.pinged_at = None
            session.close("the shell stopped answering")
            return self.try_at
        return self.pinged_at + REPLY_SECONDS

    def reset(self) -> None:
        """Close the connection, if there is one, and open it again."""
        if self.session is not None and self.session.is_up:
            self.session.close("the connection was restarted")
            self.reconnect_now()

    def reconnect_now(self) -> None:
        """Connect without waiting for the end of the pause."""
        if self.session is None and self.try_at is not None:
            self.try_at = time.monotonic()

    def _connect(self) -> None:
        self.try_at = None
        self.give_up_at = time.monotonic() + HELLO_SECONDS
        variables = {"ROOT": ROOT, "INSTALL": self.install}
        try:
            self.session = AgentSession(
                self.transport, variables, self.reactor, self._on_notification, self._on_closed
            )
        except OSError as error:
            self._on_closed(f"ssh cannot be started: {error.strerror or error}")

    def _on_notification(self, words: list[str]) -> None:
        if words[0] == "hello":
            if self.up_at is not None:
                raise ProtocolError("a second greeting")
            self.up_at, self.give_up_at = time.monotonic(), None
            self.listener.on_up()
        else:
            self.listener.on_notification(words)

    def _on_closed(self, why: str) -> None:
        now, session, up_at = time.monotonic(), self.session, self.up_at
        self.session = self.give_up_at = self.up_at = None
        if up_at is not None and now >= up_at + STABLE_SECONDS:
            self.failures = 0
        pause = min(MIN_PAUSE_SECONDS * 2 ** min(self.failures, 10), MAX_PAUSE_SECONDS)
        if session is not None and session.is_malformed:
            pause = MAX_PAUSE_SECONDS
        self.failures += 1
        self.try_at = now + pause
        self.listener.on_down(why)

    def close(self) -> None:
        """Close the connection for good."""
        session, self.session = self.session, None
        self.try_at = self.give_up_at = None
        if session is not None:
            session.on_closed = lambda _: None
            session.close("closed")
