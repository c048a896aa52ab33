"""A machine's connection, made again and again for as long as the machine is ours."""

from __future__ import annotations

import time
from typing import Protocol

from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.session import AgentSession, Answer, Bulk
from stoker.executors.reactor import Reactor
from stoker.executors.ssh.address import Address

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STABLE = 30.0
"""Seconds after which a connection that is lost does not count as one more failure."""
EXIT_PATIENCE, EXIT_LOOK = 1.0, 0.02
"""Seconds that ssh may take to end after its output has, and between two looks at it."""
HELLO_PATIENCE = 25.0
"""Seconds for a login; ssh itself gives up on a silent network sooner."""
QUIET, PATIENCE = 10.0, 20.0
"""Seconds without an answer after which the agent is asked for one, and that it has to answer.
ssh notices a dead network far sooner; this is for a shell that was killed or hangs."""
ROOT = ".stoker"
"""Where everything of ours is on a machine, below its user's home."""


class SessionListener(Protocol):
    """Who wants to know about the connection."""

    def up(self) -> None:
        """It is there."""

    def down(self, why: str) -> None:
        """It is gone, or could not be made."""

    def news(self, words: list[str]) -> None:
        """The agent says something that nobody asked for."""


class ReconnectingSession:
    """Keeps a link to a machine; nothing here ever waits."""

    def __init__(
        self, address: Address, control: str, install: str, poller: Reactor, owner: SessionListener
    ) -> None:
        self.address, self.control, self.install = address, control, install
        self.poller, self.owner = poller, owner
        self.root = ROOT
        self.link: AgentSession | None = None
        self.failures = 0
        self.try_at: float | None = time.monotonic()
        self.give_up_at: float | None = None
        self.asked_at: float | None = None
        """When the agent was asked whether it is still there."""
        self.up_at: float | None = None
        """When the agent of this link answered first."""

    @property
    def up(self) -> bool:
        """Whether the agent answers."""
        return self.link is not None and self.link.up

    def ask(self, answer: Answer | None, verb: str, *words: str, lines: int = 1) -> None:
        """Send a request with an answer of at most `lines` lines, if there is a connection."""
        if self.link is not None and self.link.up:
            self.link.ask(answer, verb, *words, lines=lines)

    def fetch(self, bulk: Bulk, verb: str, *words: str, most: int) -> None:
        """Send a request with an answer of at most `most` bytes, if there is a connection."""
        if self.link is not None and self.link.up:
            self.link.fetch(bulk, verb, *words, most=most)

    def tick(self) -> float | None:
        """Connect when it is time; seconds until the next look."""
        now = time.monotonic()
        if self.link is None and self.try_at is not None and now >= self.try_at:
            self._connect()
        if self.give_up_at is not None and now >= self.give_up_at and self.link is not None:
            self.link.close(f"login succeeded, but no shell answered within {HELLO_PATIENCE:.0f} s")
        candidates = (self._await_exit(now), self._look_after(now), self.try_at, self.give_up_at)
        moments = [moment for moment in candidates if moment is not None]
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _await_exit(self, now: float) -> float | None:
        """Let ssh end before its failure is reported; return when to look again."""
        link = self.link
        if link is None or link.ended_at is None:
            return None
        if link.process.poll() is None and now < link.ended_at + EXIT_PATIENCE:
            return now + EXIT_LOOK
        link.give_up()
        return self.try_at

    def _look_after(self, now: float) -> float | None:
        """See that the agent is alive; the next moment to do so."""
        link = self.link
        if link is None or not link.up:
            self.asked_at = None
            return None
        if self.asked_at is not None and link.answered >= self.asked_at:
            self.asked_at = None
        if self.asked_at is None:
            if now < link.answered + QUIET:
                return link.answered + QUIET
            self.asked_at = now
            link.ping()
        elif now >= self.asked_at + PATIENCE:
            self.asked_at = None
            link.close("the shell stopped answering")
            return self.try_at
        return self.asked_at + PATIENCE

    def renew(self) -> None:
        """Begin anew, if there is a connection."""
        if self.link is not None and self.link.up:
            self.link.close("the connection was restarted")
            self.hurry()

    def hurry(self) -> None:
        """Somebody is waiting for it: do not sit out the pause."""
        if self.link is None and self.try_at is not None:
            self.try_at = time.monotonic()

    def _connect(self) -> None:
        self.try_at = None
        self.give_up_at = time.monotonic() + HELLO_PATIENCE
        names = {"ROOT": ROOT, "INSTALL": self.install}
        try:
            self.link = AgentSession(
                self.address, self.control, names, self.poller, self._news, self._over
            )
        except OSError as error:
            self._over(f"ssh cannot be started: {error.strerror or error}")

    def _news(self, words: list[str]) -> None:
        if words[0] == "hello":
            if self.up_at is not None:
                raise ProtocolError("a second greeting")
            self.up_at, self.give_up_at = time.monotonic(), None
            self.owner.up()
        else:
            self.owner.news(words)

    def _over(self, why: str) -> None:
        now, link, up_at = time.monotonic(), self.link, self.up_at
        self.link = self.give_up_at = self.up_at = None
        if up_at is not None and now >= up_at + STABLE:
            self.failures = 0
        pause = min(FIRST_PAUSE * 2 ** min(self.failures, 10), LONGEST_PAUSE)
        if link is not None and link.malformed:
            pause = LONGEST_PAUSE
        self.failures += 1
        self.try_at = now + pause
        self.owner.down(why)

    def close(self) -> None:
        """For good."""
        link, self.link = self.link, None
        self.try_at = self.give_up_at = None
        if link is not None:
            link.over = lambda _: None
            link.close("closed")
