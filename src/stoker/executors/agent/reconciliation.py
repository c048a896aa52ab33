"""A machine answers again: what happened there meanwhile, before anything new is done with it.

First, whatever was started elsewhere in the meantime is killed here. Then every attempt that is
known on either side is looked at. Only then may the machine be used.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from stoker.core.events import AttemptsFound, Event, IdsReserved
from stoker.executors.agent.attempt import Key, key_of, word_of
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.linux.thread_pool import TransferPool

AGAIN = 0.1
"""Seconds between looks at something that was killed."""
IGNORED = ("free", "void", "ready", "undecided")
"""Answers about an attempt that needs nothing done: it has not begun."""
MAX_KEYS = 100_000
"""Attempts that a node may list."""
MAX_ATTEMPTS, MAX_GAP = 100_000, 1_000_000
"""No job has that many attempts, and no journal has lost that many jobs: a node that says so is
not believed."""


class Reconciliation:
    """What is done once after every connection; a new object for each."""

    def __init__(
        self,
        connection: ReconnectingSession,
        worker: TransferPool,
        known: Callable[[Key], bool],
        superseded: Callable[[Key], bool],
        next_id: Callable[[], int],
        tell: Callable[[Event], None],
        then: Callable[[], None],
    ) -> None:
        """`known` tells whether the core waits for an attempt's end, `superseded` whether it has
        given it up, `next_id` which job the journal does not know of yet; `then` is called at last.
        """
        self.connection, self.worker = connection, worker
        self.known, self.superseded, self.next_id = known, superseded, next_id
        self.tell, self.then = tell, then
        self.ended: tuple[Key, ...] = ()
        """What was killed on return."""
        self._link = connection.link

    @property
    def _current(self) -> bool:
        return self.connection.up and self.connection.link is self._link

    def end(self, strays: list[Key]) -> None:
        """What was restarted elsewhere must be over before anybody counts on this machine."""
        self._end(strays, lambda: self.connection.ask(self._listed([]), "keys", lines=MAX_KEYS + 1))

    def _end(self, strays: list[Key], then: Callable[[], None]) -> None:
        if not strays:
            then()
            return
        key, *rest = strays
        standing: list[str] = []
        alive: list[str] = []

        def killed(words: list[str]) -> None:
            alive.extend(words[1:])  # until the next look, at least

        def looked(words: list[str]) -> None:
            if words[0] != "done":
                standing.append(words[0])
                return
            if alive or standing in (["running"], ["busy"], ["ready"]):
                self.worker.do(lambda: time.sleep(AGAIN), lambda _: self._again(strays, then))
                return
            # A claim that we took must stay: its order may yet come.
            if standing not in (["free"], ["void"]):
                self.connection.ask(None, "forget", word_of(key))
            self.ended = (*self.ended, key)
            self._end(rest, then)

        self.connection.ask(None, "release", word_of(key))
        self.connection.ask(killed, "signal", str(int(signal.SIGKILL)), word_of(key))
        self.connection.ask(looked, "look", word_of(key), lines=2)

    def _again(self, strays: list[Key], then: Callable[[], None]) -> None:
        if self._current:
            self._end(strays, then)

    def _listed(self, found: list[Key]) -> Callable[[list[str]], None]:
        def listed(words: list[str]) -> None:
            if words[0] == "key":
                key = key_of(words[1])
                if key is not None and not self.known(key):
                    found.append(key)
            elif words[0] == "done" and found:
                words = [word_of(key) for key in found]
                self.connection.ask(
                    self._looked(frozenset(found), []), "look", *words, lines=len(words) + 1
                )
            elif words[0] == "done":
                self.then()

        return listed

    def _looked(self, asked: frozenset[Key], late: list[Key]) -> Callable[[list[str]], None]:
        """Attempts that the machine knows of and nobody waits for."""

        def looked(words: list[str]) -> None:
            if words[0] == "done":
                self._end(late, self.then)
                return
            key = key_of(words[1]) if len(words) > 1 else None
            if key is None or key not in asked or words[0] in IGNORED:
                return
            unknown = key[0] - self.next_id() in range(MAX_GAP)
            if unknown:
                self.tell(IdsReserved(at=time.time(), next_id=key[0] + 1))
            if words[0] not in ("running", "busy"):
                if unknown:  # the only place where anything of it is left
                    self.connection.ask(None, "keep", word_of(key))
                self.connection.ask(None, "forget", word_of(key))
            elif self.superseded(key):
                late.append(key)  # the machine was removed meanwhile, and what it ran given up
            elif key[1] < MAX_ATTEMPTS:
                # The journal has lost it. It goes on, and its number is never used again.
                self.tell(AttemptsFound(at=time.time(), job=key[0], attempt=key[1]))

        return looked
