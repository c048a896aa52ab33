"""A machine answers again: what happened there meanwhile, before anything new is done with it.

First, whatever was started elsewhere in the meantime is killed here. Then every attempt that is
known on either side is looked at. Only then may the machine be used.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from stoker.core.events import AttemptsFound, Event
from stoker.executors.ssh.attempts import Key, key_of, word_of
from stoker.executors.ssh.connection import Connection
from stoker.executors.ssh.worker import Worker

AGAIN = 0.1
"""Seconds between looks at something that was killed."""


class Reunion:
    """What is done once after every connection; a new object for each."""

    def __init__(
        self,
        connection: Connection,
        worker: Worker,
        known: Callable[[Key], bool],
        tell: Callable[[Event], None],
        then: Callable[[], None],
    ) -> None:
        """`known` tells whether the core waits for an attempt's end; `then` is called at last."""
        self.connection, self.worker, self.known = connection, worker, known
        self.tell, self.then = tell, then
        self.ended: tuple[Key, ...] = ()
        """What was killed on return."""
        self._link = connection.link

    @property
    def _current(self) -> bool:
        return self.connection.up and self.connection.link is self._link

    def end(self, strays: list[Key]) -> None:
        """What was restarted elsewhere must be over before anybody counts on this machine."""
        if not strays:
            self.connection.ask(self._listed([]), "keys")
            return
        key, *rest = strays
        standing: list[str] = []

        def looked(words: list[str]) -> None:
            if words[0] != "done":
                standing.append(words[0])
                return
            if standing in (["running"], ["busy"], ["ready"]):
                self.worker.do(lambda: time.sleep(AGAIN), lambda _: self._again(strays))
                return
            if standing != ["free"]:  # a claim that we took must stay: its order may yet come
                self.connection.ask(None, "forget", word_of(key))
            self.ended = (*self.ended, key)
            self.end(rest)

        self.connection.ask(None, "release", word_of(key))
        self.connection.ask(None, "signal", str(int(signal.SIGKILL)), word_of(key))
        self.connection.ask(looked, "look", word_of(key))

    def _again(self, strays: list[Key]) -> None:
        if self._current:
            self.end(strays)

    def _listed(self, found: list[Key]) -> Callable[[list[str]], None]:
        def listed(words: list[str]) -> None:
            if words[0] == "key":
                key = key_of(words[1])
                if key is not None and not self.known(key):
                    found.append(key)
            elif words[0] == "done":
                if found:
                    self.connection.ask(self._looked, "look", *map(word_of, found))
                self.then()

        return listed

    def _looked(self, words: list[str]) -> None:
        """Attempts that the machine knows of and nobody waits for."""
        key = key_of(words[1]) if len(words) > 1 else None
        if key is None or words[0] in ("free", "ready", "undecided"):
            return
        if words[0] in ("running", "busy"):
            # The journal has lost it. It goes on, and its number is never used again.
            self.tell(AttemptsFound(at=time.time(), job=key[0], attempt=key[1]))
        else:
            self.connection.ask(None, "forget", words[1])
