"""Claim files, by which an attempt is started at most once, and the log of exits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable

from msgspec import Struct

from stoker.core.model.job import AttemptId
from stoker.executors.linux.procfs import ENDED, has_open, process_state, read_stat
from stoker.executors.local.supervisor import PROCESS_NAME


class Claim(Struct):
    """The content of an attempt's claim file."""

    supervisor: tuple[int, int] | None = None
    """Pid and start time of the supervisor that has it."""
    note: bytes = b""
    """Its placement, as JSON."""
    pid: int | None = None
    ticks: int = 0
    started: tuple[float, float] | None = None
    """Boot and wall time of the start."""
    status: int | None = None
    """The wait status, once it has ended."""
    ended_at: float | None = None
    used: tuple[float, int] | None = None
    """CPU seconds, and MiB of its largest process."""
    failed: str | None = None
    """Why it could not be started."""
    revoked: bool = False
    """A later daemon made the claim, so that no supervisor starts this attempt any more."""
    withdrawn: bool = False
    """Its supervisor did not start it, for want of memory, processes or disk."""
    was_signalled: bool = False
    """A process of it was sent the signal that asks it to stop."""

    @property
    def is_alive(self) -> bool:
        """Whether its main process still runs."""
        return self.pid is not None and process_state(self.pid, self.ticks) in RUNS

    @property
    def is_unreaped(self) -> bool:
        """Whether its main process still exists, perhaps as a zombie."""
        return self.pid is not None and process_state(self.pid, self.ticks) != ""

    @property
    def is_supervisor_alive(self) -> bool:
        """Whether its supervisor still runs."""
        return self.supervisor is not None and process_state(*self.supervisor) in RUNS

    @property
    def is_empty(self) -> bool:
        """Whether no supervisor has written to it yet."""
        return self == Claim()


RUNS = frozenset("RSDTtIWKP")
"""States of processes that are neither zombies nor dead."""


def claim_path(run_dir: str, attempt: AttemptId) -> str:
    """Return the path of an attempt's claim file."""
    return f"{run_dir}/{attempt}"


def read_claim(path: str) -> Claim | None:
    """Return what the claim file of an attempt says; None if there is none."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    claim = Claim()
    for line in lines:
        with contextlib.suppress(ValueError, IndexError):  # a line cut short by a full disk
            _read_line(claim, line.split(), line)
    return claim


def _read_line(claim: Claim, words: list[bytes], line: bytes) -> None:
    match words[0]:
        case b"keeper":
            if not claim.revoked:  # the first line decides
                claim.supervisor = (int(words[1]), int(words[2]))
                claim.note = b"".join(line.split(None, 3)[3:])
        case b"pid":
            claim.pid, claim.ticks = int(words[1]), int(words[2])
            claim.started = (float(words[3]), float(words[4]))
            claim.supervisor = (int(words[6]), int(words[7]))
        case b"exit":
            claim.status, claim.ended_at = int(words[1]), float(words[3])
        case b"used":
            claim.used = float(words[1]), int(words[2])
        case b"failed":
            why = b" ".join(words[1:]).decode("utf-8", "replace")
            claim.failed = why or "the job could not be started"
        case b"taken":
            claim.revoked = claim.supervisor is None  # the first line decides
        case b"withdrawn":
            claim.withdrawn = True
        case b"signalled":
            claim.was_signalled = True


def note_signal(path: str) -> None:
    """Record that the attempt is sent a signal, so that a later daemon can classify its exit."""
    with contextlib.suppress(OSError):  # it was deleted, which is noticed elsewhere
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, b"signalled\n")
        finally:
            os.close(fd)


def create_claim(path: str) -> bool:
    """Revoke an attempt that was never claimed; False if a supervisor has claimed it.

    No supervisor can start the attempt afterwards.
    """
    # Whole or not at all: an empty claim would mean that a supervisor died during a start.
    part = f"{path}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(fd, b"taken\n")
    os.close(fd)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(part)
    return True


def revoke_empty_claim(path: str) -> bool:
    """Revoke an attempt with an empty claim file; return False if a supervisor wrote to it first.

    The first line decides: a supervisor that was stopped between creating the file and writing
    its line finds "taken" when it continues, and starts nothing.
    """
    with open(path, "ab") as file:
        file.write(b"taken\n")
    return (read_claim(path) or Claim()).revoked


class ExitLog:
    """The exits that supervisors recorded, one file per supervisor."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._read: dict[str, tuple[tuple[int, int], dict[str, tuple[int, float]]]] = {}
        """By file: its inode and size when it was last read, and the exits in it."""

    def _names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self.directory)
        return []

    def read(self) -> dict[str, tuple[int, float]]:
        """Return wait status and wall time by attempt (`job.attempt`)."""
        exits: dict[str, tuple[int, float]] = {}
        for name in self._names():
            exits |= self._exits_in(name)
        return exits

    def find(self, attempt: AttemptId) -> tuple[int, float] | None:
        """Return wait status and wall time of the exit of one attempt, if it is recorded."""
        exits = (self._exits_in(name).get(str(attempt)) for name in self._names())
        return next((exit for exit in exits if exit), None)

    def _exits_in(self, name: str) -> dict[str, tuple[int, float]]:
        """Return the exits in one file, which is read again only when it has grown."""
        with contextlib.suppress(OSError), open(f"{self.directory}/{name}", "rb") as file:
            stat = os.fstat(file.fileno())
            version = stat.st_ino, stat.st_size
            if self._read.get(name, (None, {}))[0] != version:
                self._read[name] = version, _parse_exits(file.read(stat.st_size))
            return self._read[name][1]
        return {}

    def supervisors(self) -> set[int]:
        """Return the supervisors of this state that still run."""
        pids = (int(name) for name in self._names() if name.isdigit())
        return {pid for pid in pids if self._is_supervisor(pid)}

    def _is_supervisor(self, pid: int) -> bool:
        """Return whether a process is a supervisor, also of an earlier version.

        Whatever that is called, it has its own exit log open.
        """
        stat = read_stat(pid)
        if stat is None or stat.state in ENDED:
            return False
        path = f"{os.path.realpath(self.directory)}/{pid}"
        return stat.name == PROCESS_NAME.encode() or has_open(pid, path)

    def restore(self, supervisors: Iterable[int]) -> None:
        """Create the files of living supervisors again, by which a later daemon finds them."""
        for pid in supervisors:
            if self._is_supervisor(pid):
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                os.close(os.open(f"{self.directory}/{pid}", flags, 0o600))

    def remove_ended(self, current: set[int], unfinished: Collection[AttemptId] = ()) -> None:
        """Remove the files of supervisors that have ended, once their exits are in the journal.

        A supervisor may have recorded an exit and ended a moment ago: a file with the exit of an
        unfinished attempt stays.
        """
        running = {*current, *self.supervisors()}
        names = {str(attempt) for attempt in unfinished}
        self.read()
        for name in self._names():
            if not name.isdigit() or int(name) in running:
                continue
            if self._read.get(name, (None, {}))[1].keys().isdisjoint(names):
                self._read.pop(name, None)
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{name}")


def _parse_exits(text: bytes) -> dict[str, tuple[int, float]]:
    """Return the exits in a file, without a line that was cut short."""
    exits: dict[str, tuple[int, float]] = {}
    for line in text.splitlines():
        words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            exits[words[0].decode()] = (int(words[2]), float(words[4]))
    return exits
