"""ReconnectingSession: the connection to a node, opened again whenever it is lost."""

from __future__ import annotations

import time
from typing import Protocol

from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.session import AgentSession, OnBytes, OnReply
from stoker.executors.agent.session.transport import NotReady, Transport
from stoker.executors.reactor import Reactor, Timer

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
STABLE_SECONDS = 30.0
"""A connection that is lost after this time does not count as one more failure."""
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
        self.give_up_at = 0.0
        """When an agent that has not answered is given up."""
        self.pinged_at: float | None = None
        """When the agent was pinged, until it replies."""
        self.up_at: float | None = None
        """When the agent of this session answered first."""
        self.retry = Timer(reactor, self._connect)
        self._check = Timer(reactor, self._check_alive)

    @property
    def run_name(self) -> str:
        """The name of the directory with the records of attempts."""
        return f"{self.install}{self.transport.run_suffix}"

    def open(self) -> None:
        """Connect in a moment."""
        self.retry.request(0.0)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or one will be tried."""
        return self.session is not None or self.retry.is_set

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

    def _check_alive(self) -> float | None:
        """Ping an agent that was silent for too long; return the seconds to the next check."""
        session, now = self.session, time.monotonic()
        if session is None:
            return None
        if not session.is_up:
            if now >= self.give_up_at:
                session.close(
                    f"login succeeded, but no shell answered within {HELLO_SECONDS:.0f} s"
                )
                return None
            return self.give_up_at - now
        if self.pinged_at is not None and session.last_reply >= self.pinged_at:
            self.pinged_at = None
        if self.pinged_at is None:
            if now < session.last_reply + KEEPALIVE_SECONDS:
                return session.last_reply + KEEPALIVE_SECONDS - now
            self.pinged_at = now
            session.ping()
        elif now >= self.pinged_at + REPLY_SECONDS:
            session.close("the shell stopped answering")
            return None
        return self.pinged_at + REPLY_SECONDS - now

    def reset(self) -> None:
        """Close the connection, if there is one, and open it again."""
        if self.session is not None and self.session.is_up:
            self.session.close("the connection was restarted")
            self.reconnect_now()

    def reconnect_now(self) -> None:
        """Connect without waiting for the end of the pause."""
        if self.retry.is_set:
            self.retry.request(0.0)

    def _connect(self) -> None:
        self.give_up_at = time.monotonic() + HELLO_SECONDS
        self._check.request(HELLO_SECONDS)
        variables = {"ROOT": ROOT, "INSTALL": self.install, "RUN_NAME": self.run_name}
        try:
            self.session = AgentSession(
                self.transport, variables, self.reactor, self._on_notification, self._on_closed
            )
        except NotReady as error:
            self._on_closed(str(error))
        except OSError as error:
            self._on_closed(f"ssh cannot be started: {error.strerror or error}")

    def _on_notification(self, words: list[str]) -> None:
        if words[0] == "hello":
            if self.up_at is not None:
                raise ProtocolError("a second greeting")
            self.up_at = time.monotonic()
            self._check.request(KEEPALIVE_SECONDS)
            self.listener.on_up()
        else:
            self.listener.on_notification(words)

    def _on_closed(self, why: str) -> None:
        now, session, up_at = time.monotonic(), self.session, self.up_at
        self.session = self.up_at = self.pinged_at = None
        if up_at is not None and now >= up_at + STABLE_SECONDS:
            self.failures = 0
        pause = min(MIN_PAUSE_SECONDS * 2 ** min(self.failures, 10), MAX_PAUSE_SECONDS)
        if session is not None and session.is_malformed:
            pause = MAX_PAUSE_SECONDS
        self.failures += 1
        self.retry.request(pause)
        self.listener.on_down(why)

    def close(self) -> None:
        """Close the connection, until it is opened again."""
        session, self.session = self.session, None
        self.up_at = self.pinged_at = None
        self.retry.cancel()
        self._check.cancel()
        if session is not None:
            session.on_closed = lambda _: None
            session.close("closed")
