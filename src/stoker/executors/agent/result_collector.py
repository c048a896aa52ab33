"""ResultCollector: logs of attempts while they run, results and checkpoints at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from msgspec import Struct

from stoker.core.model.spec import FileTransfer
from stoker.core.model.units import printable
from stoker.executors.agent.attempt import Phase, RemoteAttempt, parse_attempt
from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import CarryError, LinkLost, RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync, result_download
from stoker.executors.agent.transfer.log_mirror import (
    CUT,
    LONGEST_HEADING,
    MOST_PIECES,
    REPORT,
    TAR,
    Piece,
    pieces,
)
from stoker.executors.agent.transfer.uploads import ALWAYS_EXCLUDED, TreeUploads
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.port import AttemptId
from stoker.executors.reactor import Timer

COPY_SECONDS, COPY_FOLLOWED_SECONDS = 2.0, 0.2
"""Between copies of logs; of logs that a client follows."""
FOLLOW_SECONDS = 3.0
"""Time after a read of a log during which its client counts as following it."""
PIECE = 1 << 20
"""Bytes of logs, or of results, that the agent sends at a time."""
MAX_LIST_BYTES = 16 << 20
"""Bytes of the names of all files that an attempt wrote."""
MAX_REASON_LENGTH = 400
"""Characters of the reason for which files were not fetched."""
MAX_TRIES, RETRY_SECONDS = 3, 1.0
"""How often files are fetched again when the connection is lost, and the pause before."""
NOTHING, UNLISTED = "0", "2"
"""What an attempt wrote in its directory, as the agent reports it."""
SAVED = "saved"
"""The agent's word for checkpoints."""
LACKS_MEMORY = "memory"
"""The agent's word for a process that the kernel killed because memory ran out."""

OnCollected = Callable[[RemoteAttempt, str | None, str | None], None]
"""Called when everything has arrived, with what is missing and a remark on the results."""
OnReportData = Callable[[RemoteAttempt, bytes, int], None]
"""Called with what was appended to an attempt's report, and at which offset."""


class Host(Struct, frozen=True):
    """Names of a node and of this state."""

    name: str
    install: str
    shares_files: bool
    """Whether the node sees the files of this one: nothing is copied then."""


class PendingResult(Struct):
    """What has arrived so far of an attempt that has ended."""

    attempt: RemoteAttempt
    outcome: list[str]
    tar: bytes | None = None
    trouble: str | None = None
    remark: str | None = None
    tries: int = 0
    repetitions: int = 0
    """Pieces of its logs in a row without new data."""


class ResultCollector:
    """Fetches output and results from one node."""

    def __init__(
        self,
        host: Host,
        connection: ReconnectingSession,
        pool: TransferPool,
        uploads: TreeUploads,
        attempts: dict[AttemptId, RemoteAttempt],
        on_collected: OnCollected,
        on_report_data: OnReportData,
        poll: Callable[[], None],
    ) -> None:
        """`poll` is called when it must be found out again whether an attempt runs."""
        self.host, self.connection, self.pool, self.uploads = host, connection, pool, uploads
        self.attempts = attempts
        self.on_collected, self.on_report_data = on_collected, on_report_data
        self.poll = poll
        self._timer = Timer(connection.reactor, self._copy_output)
        self.followed: dict[int, float] = {}
        self._is_copying = False
        self._copied_at = 0.0
        self._turn = 0
        self._waiting: list[Callable[[], None]] = []
        """Fetches that wait until the home directory of the node is known."""

    def on_shell_known(self) -> None:
        """Begin fetches that waited for the home directory of the node."""
        waiting, self._waiting = self._waiting, []
        for fetch in waiting:
            fetch()

    def on_disconnect(self) -> None:
        """Forget all fetches: they begin again over the next connection."""
        self._is_copying = False
        self._waiting.clear()
        for attempt in self.attempts.values():
            attempt.stop_collecting()

    # -- while they run -----------------------------------------------------------------

    def follow(self, job: int) -> None:
        """Copy the output of a job more often for a while: a client reads it."""
        if any(attempt.job == job for attempt in self.attempts):
            self.followed[job] = time.monotonic() + FOLLOW_SECONDS
            self.on_running()

    def on_running(self) -> None:
        """Begin to copy logs: an attempt runs."""
        if not self._is_copying:
            self._timer.request(0.0)

    def _copy_output(self) -> float | None:
        """Copy logs when it is time; return the seconds until then."""
        running = [each for each in self.attempts.values() if each.phase is Phase.RUNNING]
        if not running or self._is_copying or not self.connection.is_up:
            return None
        now = time.monotonic()
        is_followed = any(self.followed.get(each.id.job, 0.0) > now for each in running)
        pause = COPY_FOLLOWED_SECONDS if is_followed else COPY_SECONDS
        due = self._copied_at + pause
        if now < due:
            return due - now
        self._is_copying, self._copied_at = True, now
        # The output of one attempt must not delay the others: they take turns at being first.
        self._turn = (self._turn + 1) % len(running)
        turns = running[self._turn :] + running[: self._turn]
        words = [word for each in turns for word in (each.word, *each.offsets)]
        max_bytes = _max_bytes(len(running))
        self.connection.request_bytes(
            self._on_output, "read_new", str(PIECE), *words, max_bytes=max_bytes
        )
        return None

    def _on_output(self, data: bytes) -> None:
        self._is_copying = False
        received = pieces(data)
        before = [each.mirror.offsets for each in self.attempts.values()]
        trouble = self._copy(received)
        progress = before != [each.mirror.offsets for each in self.attempts.values()]
        if trouble is None and _has_more(received) and progress:
            self._copied_at = 0.0
        self.on_running()

    def _copy(self, received: list[Piece]) -> str | None:
        for piece in received:
            id = parse_attempt(piece.key)
            attempt = self.attempts.get(id) if id is not None else None
            if attempt is None or piece.what == TAR:
                continue
            if piece.what.removeprefix(CUT) == REPORT:
                self._take_report(attempt, piece)
            else:
                try:
                    attempt.mirror.take(piece)
                except OSError as error:
                    return f"the log is incomplete: {error.strerror}"
        return None

    def _take_report(self, attempt: RemoteAttempt, piece: Piece) -> None:
        """Pass on new data of a report; pieces may repeat, and a report may be truncated."""
        offset = attempt.report_offset
        if piece.what != REPORT:
            attempt.report_offset = 0
        elif piece.offset <= offset < piece.offset + len(piece.data):
            data = piece.data[offset - piece.offset :]
            attempt.report_offset += len(data)
            self.on_report_data(attempt, data, offset)

    # -- when they end ------------------------------------------------------------------

    def collect(self, attempt: RemoteAttempt, outcome: list[str]) -> None:
        """Fetch the rest of the logs of an ended attempt, and its results."""
        if attempt.is_collecting:
            return
        attempt.collect(outcome)
        result = PendingResult(attempt, outcome)
        paths = () if self.host.shares_files else attempt.carry.bring or ()
        self.connection.request_bytes(
            lambda data: self._on_collected(result, data), "collect", str(PIECE),
            attempt.word, *attempt.offsets, *paths, max_bytes=PIECE + _max_bytes(1),
        )  # fmt: skip

    def collect_without_exit(self, attempt: RemoteAttempt, why: str) -> None:
        """Fetch the results of an attempt that ended without a record."""
        if attempt.is_collecting:
            return
        attempt.lost_reason = why
        attempt.collect(outcome := ["lost"])

        def on_reply(words: list[str]) -> None:
            if attempt.outcome is not outcome or self.attempts.get(attempt.id) is not attempt:
                return
            attempt.stop_collecting()
            if words[0] == "busy":  # a process of it lives: it has not ended and is polled again
                attempt.lost_reason, attempt.is_observed = None, False
                self.poll()
            else:
                self.collect(attempt, ["lost", *(words[1:] or [UNLISTED])])

        kind = "nothing" if self.host.shares_files else result_kind(attempt.carry)
        self.connection.request(on_reply, "end_unrecorded", attempt.word, kind)

    def _on_collected(self, result: PendingResult, data: bytes) -> None:
        """Take a piece of the logs; the first one has the results too, if they are small."""
        if not self._is_current(result):
            return
        attempt, received = result.attempt, pieces(data)
        result.tar = next((piece.data for piece in received if piece.what == TAR), result.tar)
        before = attempt.offsets
        result.trouble = self._copy(received)
        if result.trouble is None and _has_more(received):
            # What was being copied when it ended comes twice, then more follows.
            result.repetitions = result.repetitions + 1 if attempt.offsets == before else 0
            if result.repetitions > MAX_TRIES:
                raise ProtocolError("the same output repeatedly")
            self.connection.request_bytes(
                lambda data: self._on_collected(result, data),
                "read_new", str(PIECE), attempt.word, *attempt.offsets, max_bytes=_max_bytes(1),
            )  # fmt: skip
        else:
            self._install(result)

    def _is_current(self, result: PendingResult) -> bool:
        """Return whether the connection over which this was requested is still open."""
        attempt = result.attempt
        return attempt.outcome is result.outcome and self.attempts.get(attempt.id) is attempt

    def _install(self, result: PendingResult) -> None:
        """Install the results: small ones are here, others are named or listed by the agent."""
        attempt, tar = result.attempt, result.tar
        written = result.outcome[1] if len(result.outcome) > 1 else NOTHING

        def on_done(outcome: Exception | str | None) -> None:
            if self._is_current(result):
                self._on_installed(result, outcome)

        if written == UNLISTED:
            self._keep(result, f"the disk of {self.host.name} is full")
        elif written == NOTHING or tar is None:
            self._finish(result)
        elif tar:
            self.pool.submit(lambda: _unpack(tar, attempt), on_done)
        elif attempt.carry.bring:
            names = b"".join(os.fsencode(path) + b"\0" for path in attempt.carry.bring)
            self._download(result, names)
        else:
            self.connection.request_bytes(
                lambda names: self._on_listed(result, names),
                "read_file", f"{attempt.word}.list", str(MAX_LIST_BYTES), max_bytes=MAX_LIST_BYTES,
            )  # fmt: skip

    def _on_listed(self, result: PendingResult, names: bytes) -> None:
        if names:
            self._download(result, names)
        elif self._is_current(result):
            self._keep(
                result, "the job wrote too many files to list; name directories with --bring"
            )

    def _download(self, result: PendingResult, names: bytes) -> None:
        attempt, shell = result.attempt, self.uploads.shell
        if not self._is_current(result):
            return
        if shell is None:
            self._waiting.append(lambda: self._download(result, names))
            return
        work = f"{self.host.install}.{attempt.word}"

        def retry() -> None:
            self._download(result, names)

        def on_done(outcome: Exception | str | None) -> None:
            if self._is_current(result) and not self._retry(result, outcome, retry):
                self._on_installed(result, outcome)

        self.pool.submit(lambda: _download(shell, work, names, attempt), on_done)

    def _retry(
        self, result: PendingResult, outcome: Exception | str | None, retry: Callable[[], None]
    ) -> bool:
        """Fetch again if the connection was lost; return False if that is of no use."""
        if not isinstance(outcome, LinkLost) or result.tries >= MAX_TRIES:
            return False
        # Most likely the agent's connection is lost too, which is noticed in a moment.
        result.tries += 1
        self.pool.submit(lambda: time.sleep(RETRY_SECONDS), lambda _: retry())
        return True

    def _on_installed(self, result: PendingResult, outcome: Exception | str | None) -> None:
        if isinstance(outcome, Exception):
            self._keep(result, _message(outcome))
        else:
            result.remark = outcome
            self._finish(result)

    def _finish(self, result: PendingResult) -> None:
        result.tries = 0
        if result.trouble is None:
            self._fetch_checkpoints(result, None)
        else:
            self._keep(result, result.trouble)

    def _keep(self, result: PendingResult, why: str) -> None:
        """Keep the results on the node when it forgets the attempt."""
        word = result.attempt.word
        place = f"~/{self.connection.root}/kept/{self.host.install}.{word}"

        def on_kept(_: list[str]) -> None:
            if self._is_current(result):
                trouble = f"{why.rstrip('.')}; see {self.host.name}:{place}"
                self._fetch_checkpoints(result, trouble)

        self.connection.request(on_kept, "keep_results", word)

    # -- checkpoints --------------------------------------------------------------------

    def _fetch_checkpoints(self, result: PendingResult, trouble: str | None) -> None:
        """Fetch checkpoints last: later attempts may resume from them on any node."""
        attempt, shell = result.attempt, self.uploads.shell
        directory = attempt.checkpoints
        if not self._is_current(result):
            return
        if SAVED not in result.outcome or directory is None:
            self.on_collected(attempt, trouble, result.remark)
            return

        def retry() -> None:
            self._fetch_checkpoints(result, trouble)

        if shell is None:
            self._waiting.append(retry)
            return

        def on_done(outcome: Exception | None) -> None:
            if self._is_current(result) and not self._retry(result, outcome, retry):
                self._on_checkpoints(result, trouble, outcome)

        self.pool.submit(lambda: checkpoint_sync.download(shell, directory, attempt.part), on_done)

    def _on_checkpoints(
        self, result: PendingResult, trouble: str | None, error: Exception | None
    ) -> None:
        attempt = result.attempt
        name = checkpoint_sync.name_of(attempt.checkpoints or "")

        def on_marked(_: list[str]) -> None:
            if self._is_current(result):
                attempt.checkpoints_left = error is not None
                troubles = "; ".join(filter(None, (trouble, failure))) or None
                self.on_collected(attempt, troubles, result.remark)

        failure = None
        if error is not None:
            why = _message(error).rstrip(".")
            node = self.host.name
            failure = f"checkpoints could not be fetched ({why}); the job can resume only on {node}"
        self.connection.request(
            on_marked, "mark_ahead" if error is not None else "unmark_ahead", name
        )


def result_kind(carry: FileTransfer) -> str:
    """Return what the agent prepares: what the attempt changed, named paths, or nothing."""
    if carry.bring is None:
        return "changed"
    return "named" if carry.bring else "nothing"


def _unpack(tar: bytes, attempt: RemoteAttempt) -> str | None:
    """Install results that came through the agent's connection; return a remark."""
    target, exclude = _target(attempt)
    return result_download.unpack(tar, target, exclude, attempt.workspace)


def _download(shell: RemoteShell, work: str, names: bytes, attempt: RemoteAttempt) -> str | None:
    """Install results that are too large for the agent's connection; return a remark."""
    target, exclude = _target(attempt)
    source = f"{shell.root}/work/{work}"
    return result_download.download(shell, source, names, target, exclude, attempt.workspace)


def _target(attempt: RemoteAttempt) -> tuple[str, tuple[str, ...]]:
    """Return the directory that receives results, and the patterns that are left out."""
    carry = attempt.carry
    return carry.into or attempt.directory, (*ALWAYS_EXCLUDED, *carry.exclude)


def _has_more(received: list[Piece]) -> bool:
    """Return whether more data follows."""
    return sum(len(piece.data) for piece in received if piece.what != TAR) >= PIECE


def _message(error: Exception) -> str:
    """Return what went wrong, short enough for a part of a sentence."""
    text = str(error) if isinstance(error, CarryError) else repr(error)
    return printable(text, MAX_REASON_LENGTH)


def _max_bytes(attempts: int) -> int:
    """Return the maximum size of a reply with new output of this number of attempts."""
    return PIECE + attempts * MOST_PIECES * LONGEST_HEADING
