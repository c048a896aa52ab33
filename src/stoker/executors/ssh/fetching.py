"""What comes back from attempts: their logs while they run, and all the rest when they end."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from stoker.executors.ssh import results
from stoker.executors.ssh.attempts import Attempt, Key, key_of
from stoker.executors.ssh.connection import Connection
from stoker.executors.ssh.mirror import Piece, pieces
from stoker.executors.ssh.travel import Travel
from stoker.executors.ssh.worker import Worker

COPY, COPY_FOLLOWED = 2.0, 0.2
"""Seconds between copies of logs; while somebody follows one."""
FOLLOWED = 3.0
"""Seconds for which somebody who has just read a log is taken to go on reading."""
PIECE = 1 << 20
"""Bytes of logs, or of results, that go over the agent's own line at a time."""
TRIES, AGAIN = 3, 1.0
"""How often files are carried anew when the connection breaks, and the pause before."""
NOTHING, UNLISTED = "0", "2"
"""What an attempt wrote in its directory, as the agent says it."""

Ended = Callable[[Attempt, str | None, str | None], None]
"""Told that all there was has come, or in words what is missing; and what is to be known of it."""


class Host(Struct, frozen=True):
    """What the machine is called here, and what we are called there."""

    name: str
    install: str
    shared: bool
    """Whether it sees our files where they are: then nothing is carried."""


class Ending(Struct):
    """What has come so far of an attempt that is over."""

    attempt: Attempt
    how: list[str]
    tar: bytes | None = None
    trouble: str | None = None
    remark: str | None = None
    tries: int = 0


class Fetching:
    """The way back from one machine."""

    def __init__(
        self,
        host: Host,
        connection: Connection,
        worker: Worker,
        travel: Travel,
        attempts: dict[Key, Attempt],
        ended: Ended,
    ) -> None:
        self.host, self.connection, self.worker, self.travel = host, connection, worker, travel
        self.attempts, self.ended = attempts, ended
        self.followed: dict[int, float] = {}
        self._copying = False
        self._copy_at = 0.0
        self._turn = 0
        self._parked: list[tuple[Ending, bytes]] = []
        """What is to be carried as soon as it is known where it lies."""

    def way_known(self) -> None:
        """The machine has said where its files are."""
        parked, self._parked = self._parked, []
        for ending, names in parked:
            self._carry(ending, names)

    def lost(self) -> None:
        """The connection is gone: whatever was being fetched is fetched again."""
        self._copying = False
        self._parked.clear()
        for attempt in self.attempts.values():
            attempt.over = None

    # -- while they run -----------------------------------------------------------------

    def follow(self, job: int) -> bool:
        """Somebody reads this job's log as it grows; whether that is news. From any thread."""
        if not any(key[0] == job for key in list(self.attempts)):
            return False
        now = time.monotonic()
        news = self.followed.get(job, 0.0) < now
        self.followed[job] = now + FOLLOWED
        return news

    def tick(self) -> float | None:
        """Copy logs when it is time; seconds until the next time."""
        running = [each for each in self.attempts.values() if each.pid and each.over is None]
        if not running or self._copying:
            return None
        now = time.monotonic()
        eager = any(self.followed.get(each.key[0], 0.0) > now for each in running)
        pause = COPY_FOLLOWED if eager else COPY
        due = self._copy_at + pause
        if now < due:
            return due - now
        self._copying, self._copy_at = True, now
        # What one says must not keep the others waiting: they take turns at being the first.
        self._turn = (self._turn + 1) % len(running)
        turns = running[self._turn :] + running[: self._turn]
        words = [word for each in turns for word in (each.word, *each.mirror.offsets)]
        self.connection.fetch(self._copied, "grown", str(PIECE), *words)
        return pause

    def _copied(self, bulk: bytes) -> None:
        self._copying = False
        found = pieces(bulk)
        trouble = self._copy(found)
        if trouble is None and _more(found):
            self._copy_at = 0.0

    def _copy(self, found: list[Piece]) -> str | None:
        for piece in found:
            key = key_of(piece.key)
            attempt = self.attempts.get(key) if key is not None else None
            if attempt is not None and piece.what != "tar":
                try:
                    attempt.mirror.take(piece)
                except OSError as error:
                    return f"its log is not complete: {error.strerror}"
        return None

    # -- when they end ------------------------------------------------------------------

    def fetch(self, attempt: Attempt, how: list[str]) -> None:
        """It is over: fetch the rest of its logs and what it wrote."""
        if attempt.over is not None:
            return
        attempt.over = how
        ending = Ending(attempt, how)
        paths = () if self.host.shared else results.named(attempt.carry)
        self.connection.fetch(
            lambda bulk: self._collected(ending, bulk), "collect", str(PIECE),
            attempt.word, *attempt.mirror.offsets, *paths,
        )  # fmt: skip

    def salvage(self, attempt: Attempt, why: str) -> None:
        """It is over, and nobody knows how: what it wrote comes back all the same."""
        if attempt.over is not None:
            return
        attempt.lost, attempt.over = why, (search := ["lost"])

        def listed(words: list[str]) -> None:
            if attempt.over is search and self.attempts.get(attempt.key) is attempt:
                attempt.over = None
                self.fetch(attempt, ["lost", words[1] if len(words) > 1 else UNLISTED])

        brings = "nothing" if self.host.shared else results.kind(attempt.carry)
        self.connection.ask(listed, "salvage", attempt.word, brings)

    def _collected(self, ending: Ending, bulk: bytes) -> None:
        """A piece of its logs, and with the first one what it wrote, if that is little."""
        if not self._wanted(ending):
            return
        found = pieces(bulk)
        ending.tar = next((piece.data for piece in found if piece.what == "tar"), ending.tar)
        ending.trouble = self._copy(found)
        if ending.trouble is None and _more(found):
            attempt = ending.attempt
            self.connection.fetch(
                lambda bulk: self._collected(ending, bulk),
                "grown", str(PIECE), attempt.word, *attempt.mirror.offsets,
            )  # fmt: skip
        else:
            self._bring(ending)

    def _wanted(self, ending: Ending) -> bool:
        """Whether the connection over which this was asked for is still the one we have."""
        attempt = ending.attempt
        return attempt.over is ending.how and self.attempts.get(attempt.key) is attempt

    def _bring(self, ending: Ending) -> None:
        """Put what it wrote where it belongs, in one of three ways."""
        attempt, tar = ending.attempt, ending.tar
        wrote = ending.how[1] if len(ending.how) > 1 else NOTHING

        def brought(result: Exception | str | None) -> None:
            if self._wanted(ending):
                self._brought(ending, result)

        if wrote == UNLISTED:
            self._keep(ending, "its disk is full")
        elif wrote == NOTHING or tar is None:
            self._finish(ending)
        elif tar:
            self.worker.do(lambda: results.unpack(tar, attempt), brought)
        elif results.named(attempt.carry):
            self._carry(ending, results.names(attempt.carry))
        else:
            word = attempt.word
            self.connection.fetch(lambda names: self._carry(ending, names), "pull", f"{word}.list")

    def _carry(self, ending: Ending, names: bytes) -> None:
        attempt, way = ending.attempt, self.travel.way
        if not self._wanted(ending):
            return
        if way is None:
            self._parked.append((ending, names))
            return
        work = f"{self.host.install}.{attempt.word}"

        def brought(result: Exception | str | None) -> None:
            if not self._wanted(ending):
                return
            if isinstance(result, results.LinkLost) and ending.tries < TRIES:
                # Most likely the whole connection is lost and will say so in a moment.
                ending.tries += 1
                self.worker.do(lambda: time.sleep(AGAIN), lambda _: self._carry(ending, names))
            else:
                self._brought(ending, result)

        self.worker.do(lambda: results.bring(way, work, names, attempt), brought)

    def _brought(self, ending: Ending, result: Exception | str | None) -> None:
        if isinstance(result, Exception):
            self._keep(ending, str(result))
        else:
            ending.remark = result
            self._finish(ending)

    def _finish(self, ending: Ending) -> None:
        if ending.trouble is None:
            self.ended(ending.attempt, None, ending.remark)
        else:
            self._keep(ending, ending.trouble)

    def _keep(self, ending: Ending, why: str) -> None:
        """Have it put aside over there, so that it is not forgotten with the attempt."""
        word = ending.attempt.word
        place = f"~/{self.connection.root}/kept/{self.host.install}.{word}"

        def kept(_: list[str]) -> None:
            if self._wanted(ending):
                trouble = f"{why.rstrip('.')}; see {self.host.name}:{place}"
                self.ended(ending.attempt, trouble, ending.remark)

        self.connection.ask(kept, "keep", word)


def _more(found: list[Piece]) -> bool:
    """Whether there is more where that came from."""
    return sum(len(piece.data) for piece in found if piece.what != "tar") >= PIECE
