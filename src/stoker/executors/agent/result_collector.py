"""What comes back from attempts: their logs while they run, and all the rest when they end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from msgspec import Struct

from stoker.core.job import Carry
from stoker.core.text import printable
from stoker.executors.agent.attempt import Key, RemoteAttempt, key_of
from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import CarryError, LinkLost, RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync as saved
from stoker.executors.agent.transfer import result_download
from stoker.executors.agent.transfer.log_mirror import (
    CUT,
    LONGEST_HEADING,
    MOST_PIECES,
    SAID,
    TAR,
    Piece,
    pieces,
)
from stoker.executors.agent.transfer.uploads import NEVER, TreeUploads
from stoker.executors.linux.thread_pool import TransferPool

COPY, COPY_FOLLOWED = 2.0, 0.2
"""Seconds between copies of logs; while somebody follows one."""
FOLLOWED = 3.0
"""Seconds for which somebody who has just read a log is taken to go on reading."""
PIECE = 1 << 20
"""Bytes of logs, or of results, that go over the agent's own line at a time."""
LONGEST_LIST = 16 << 20
"""Bytes of the names of all files that an attempt wrote."""
LONGEST_REASON = 400
"""Characters of why files did not come."""
TRIES, AGAIN = 3, 1.0
"""How often files are carried anew when the connection breaks, and the pause before."""
NOTHING, UNLISTED = "0", "2"
"""What an attempt wrote in its directory, as the agent says it."""
SAVED = "saved"
"""Its word for checkpoints."""

Ended = Callable[[RemoteAttempt, str | None, str | None], None]
"""Told that all there was has come, or in words what is missing; and what is to be known of it."""
Heard = Callable[[RemoteAttempt, bytes, int], None]
"""Told what was added to an attempt's report, and where."""


class Host(Struct, frozen=True):
    """What the machine is called here, and what we are called there."""

    name: str
    install: str
    shared: bool
    """Whether it sees our files where they are: then nothing is carried."""


class PendingResult(Struct):
    """What has come so far of an attempt that is over."""

    attempt: RemoteAttempt
    how: list[str]
    tar: bytes | None = None
    trouble: str | None = None
    remark: str | None = None
    tries: int = 0
    repeated: int = 0
    """Pieces of its logs in a row that brought nothing new."""


class ResultCollector:
    """The way back from one machine."""

    def __init__(
        self,
        host: Host,
        connection: ReconnectingSession,
        worker: TransferPool,
        travel: TreeUploads,
        attempts: dict[Key, RemoteAttempt],
        ended: Ended,
        heard: Heard,
    ) -> None:
        self.host, self.connection, self.worker, self.travel = host, connection, worker, travel
        self.attempts, self.ended, self.heard = attempts, ended, heard
        self.followed: dict[int, float] = {}
        self._copying = False
        self._copy_at = 0.0
        self._turn = 0
        self._parked: list[Callable[[], None]] = []
        """What is to be done as soon as it is known where things lie."""

    def way_known(self) -> None:
        """The machine has said where its files are."""
        parked, self._parked = self._parked, []
        for carry in parked:
            carry()

    def lost(self) -> None:
        """The connection is gone: whatever was being fetched is fetched again."""
        self._copying = False
        self._parked.clear()
        for attempt in self.attempts.values():
            attempt.over = None

    # -- while they run -----------------------------------------------------------------

    def follow(self, job: int) -> None:
        """Copy this job's output quickly for a while: a client reads it as it grows."""
        if any(key[0] == job for key in self.attempts):
            self.followed[job] = time.monotonic() + FOLLOWED

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
        words = [word for each in turns for word in (each.word, *each.offsets)]
        most = _most_bytes(len(running))
        self.connection.fetch(self._copied, "grown", str(PIECE), *words, most=most)
        return pause

    def _copied(self, bulk: bytes) -> None:
        self._copying = False
        found = pieces(bulk)
        before = [each.mirror.offsets for each in self.attempts.values()]
        trouble = self._copy(found)
        progress = before != [each.mirror.offsets for each in self.attempts.values()]
        if trouble is None and _more(found) and progress:
            self._copy_at = 0.0

    def _copy(self, found: list[Piece]) -> str | None:
        for piece in found:
            key = key_of(piece.key)
            attempt = self.attempts.get(key) if key is not None else None
            if attempt is None or piece.what == TAR:
                continue
            if piece.what.removeprefix(CUT) == SAID:
                self._hear(attempt, piece)
            else:
                try:
                    attempt.mirror.take(piece)
                except OSError as error:
                    return f"the log is incomplete: {error.strerror}"
        return None

    def _hear(self, attempt: RemoteAttempt, piece: Piece) -> None:
        """What was asked for twice comes twice; a report that was emptied begins anew."""
        if piece.what != SAID:
            attempt.said = 0
        elif piece.offset <= attempt.said < piece.offset + len(piece.data):
            news, at = piece.data[attempt.said - piece.offset :], attempt.said
            attempt.said += len(news)
            self.heard(attempt, news, at)

    # -- when they end ------------------------------------------------------------------

    def fetch(self, attempt: RemoteAttempt, how: list[str]) -> None:
        """It is over: fetch the rest of its logs and what it wrote."""
        if attempt.over is not None:
            return
        attempt.over = how
        ending = PendingResult(attempt, how)
        paths = () if self.host.shared else attempt.carry.bring or ()
        self.connection.fetch(
            lambda bulk: self._collected(ending, bulk), "collect", str(PIECE),
            attempt.word, *attempt.offsets, *paths, most=PIECE + _most_bytes(1),
        )  # fmt: skip

    def salvage(self, attempt: RemoteAttempt, why: str) -> None:
        """It is over, and nobody knows how: what it wrote comes back all the same."""
        if attempt.over is not None:
            return
        attempt.lost, attempt.over = why, (search := ["lost"])

        def listed(words: list[str]) -> None:
            if attempt.over is not search or self.attempts.get(attempt.key) is not attempt:
                return
            attempt.over = None
            if words[0] == "busy":  # something of it lives: it is not over, and is looked at again
                attempt.lost, attempt.heard = None, False
            else:
                self.fetch(attempt, ["lost", *(words[1:] or [UNLISTED])])

        brings = "nothing" if self.host.shared else result_kind(attempt.carry)
        self.connection.ask(listed, "salvage", attempt.word, brings)

    def _collected(self, ending: PendingResult, bulk: bytes) -> None:
        """A piece of its logs, and with the first one what it wrote, if that is little."""
        if not self._wanted(ending):
            return
        attempt, found = ending.attempt, pieces(bulk)
        ending.tar = next((piece.data for piece in found if piece.what == TAR), ending.tar)
        before = attempt.offsets
        ending.trouble = self._copy(found)
        if ending.trouble is None and _more(found):
            # What was being copied when it ended comes twice, but then there is more.
            ending.repeated = ending.repeated + 1 if attempt.offsets == before else 0
            if ending.repeated > TRIES:
                raise ProtocolError("the same output repeatedly")
            self.connection.fetch(
                lambda bulk: self._collected(ending, bulk),
                "grown", str(PIECE), attempt.word, *attempt.offsets, most=_most_bytes(1),
            )  # fmt: skip
        else:
            self._bring(ending)

    def _wanted(self, ending: PendingResult) -> bool:
        """Whether the connection over which this was asked for is still the one we have."""
        attempt = ending.attempt
        return attempt.over is ending.how and self.attempts.get(attempt.key) is attempt

    def _bring(self, ending: PendingResult) -> None:
        """Put what it wrote where it belongs, in one of three ways."""
        attempt, tar = ending.attempt, ending.tar
        wrote = ending.how[1] if len(ending.how) > 1 else NOTHING

        def brought(result: Exception | str | None) -> None:
            if self._wanted(ending):
                self._brought(ending, result)

        if wrote == UNLISTED:
            self._keep(ending, f"the disk of {self.host.name} is full")
        elif wrote == NOTHING or tar is None:
            self._finish(ending)
        elif tar:
            self.worker.do(lambda: _unpack(tar, attempt), brought)
        elif attempt.carry.bring:
            names = b"".join(os.fsencode(path) + b"\0" for path in attempt.carry.bring)
            self._carry(ending, names)
        else:
            self.connection.fetch(
                lambda names: self._listed(ending, names),
                "pull", f"{attempt.word}.list", str(LONGEST_LIST), most=LONGEST_LIST,
            )  # fmt: skip

    def _listed(self, ending: PendingResult, names: bytes) -> None:
        if names:
            self._carry(ending, names)
        elif self._wanted(ending):
            self._keep(
                ending, "the job wrote too many files to list; name directories with --bring"
            )

    def _carry(self, ending: PendingResult, names: bytes) -> None:
        attempt, way = ending.attempt, self.travel.way
        if not self._wanted(ending):
            return
        if way is None:
            self._parked.append(lambda: self._carry(ending, names))
            return
        work = f"{self.host.install}.{attempt.word}"

        def again() -> None:
            self._carry(ending, names)

        def brought(result: Exception | str | None) -> None:
            if self._wanted(ending) and not self._again(ending, result, again):
                self._brought(ending, result)

        self.worker.do(lambda: _download(way, work, names, attempt), brought)

    def _again(
        self, ending: PendingResult, result: Exception | str | None, again: Callable[[], None]
    ) -> bool:
        """Whether it is worth another try."""
        if not isinstance(result, LinkLost) or ending.tries >= TRIES:
            return False
        # Most likely the whole connection is lost and will say so in a moment.
        ending.tries += 1
        self.worker.do(lambda: time.sleep(AGAIN), lambda _: again())
        return True

    def _brought(self, ending: PendingResult, result: Exception | str | None) -> None:
        if isinstance(result, Exception):
            self._keep(ending, _sentence(result))
        else:
            ending.remark = result
            self._finish(ending)

    def _finish(self, ending: PendingResult) -> None:
        ending.tries = 0
        if ending.trouble is None:
            self._bring_saved(ending, None)
        else:
            self._keep(ending, ending.trouble)

    def _keep(self, ending: PendingResult, why: str) -> None:
        """Have it put aside over there, so that it is not forgotten with the attempt."""
        word = ending.attempt.word
        place = f"~/{self.connection.root}/kept/{self.host.install}.{word}"

        def kept(_: list[str]) -> None:
            if self._wanted(ending):
                trouble = f"{why.rstrip('.')}; see {self.host.name}:{place}"
                self._bring_saved(ending, trouble)

        self.connection.ask(kept, "keep", word)

    # -- checkpoints --------------------------------------------------------------------

    def _bring_saved(self, ending: PendingResult, trouble: str | None) -> None:
        """At last, what later attempts go on from: they may be on any machine."""
        attempt, way = ending.attempt, self.travel.way
        here = attempt.checkpoints
        if not self._wanted(ending):
            return
        if SAVED not in ending.how or here is None:
            self.ended(attempt, trouble, ending.remark)
            return

        def again() -> None:
            self._bring_saved(ending, trouble)

        if way is None:
            self._parked.append(again)
            return

        def brought(result: Exception | None) -> None:
            if self._wanted(ending) and not self._again(ending, result, again):
                self._saved(ending, trouble, result)

        self.worker.do(lambda: saved.bring(way, here, attempt.part), brought)

    def _saved(self, ending: PendingResult, trouble: str | None, result: Exception | None) -> None:
        attempt = ending.attempt
        name = saved.name_of(attempt.checkpoints or "")

        def marked(_: list[str]) -> None:
            if self._wanted(ending):
                attempt.ahead = result is not None
                self.ended(attempt, "; ".join(filter(None, (trouble, said))) or None, ending.remark)

        said = None
        if result is not None:
            why = _sentence(result).rstrip(".")
            node = self.host.name
            said = f"checkpoints could not be fetched ({why}); the job can resume only on {node}"
        self.connection.ask(marked, "mark" if result is not None else "unmark", name)


def result_kind(carry: Carry) -> str:
    """Return what the agent prepares: what the attempt changed, named paths, or nothing."""
    if carry.bring is None:
        return "changed"
    return "named" if carry.bring else "nothing"


def _unpack(tar: bytes, attempt: RemoteAttempt) -> str | None:
    """Install results that came through the agent's connection; return a remark."""
    target, exclude = _target(attempt)
    return result_download.unpack(tar, target, exclude, attempt.owner)


def _download(way: RemoteShell, work: str, names: bytes, attempt: RemoteAttempt) -> str | None:
    """Install results that are too large for the agent's connection; return a remark."""
    target, exclude = _target(attempt)
    source = f"{way.root}/work/{work}"
    return result_download.bring(way, source, names, target, exclude, attempt.owner)


def _target(attempt: RemoteAttempt) -> tuple[str, tuple[str, ...]]:
    """Return the directory that receives results, and the patterns that are left out."""
    carry = attempt.carry
    return carry.into or attempt.directory, (*NEVER, *carry.exclude)


def _more(found: list[Piece]) -> bool:
    """Whether there is more where that came from."""
    return sum(len(piece.data) for piece in found if piece.what != TAR) >= PIECE


def _sentence(error: Exception) -> str:
    """What went wrong, short enough to stand in a longer sentence."""
    text = str(error) if isinstance(error, CarryError) else repr(error)
    return printable(text, LONGEST_REASON)


def _most_bytes(attempts: int) -> int:
    """The longest answer with new output of so many attempts."""
    return PIECE + attempts * MOST_PIECES * LONGEST_HEADING
