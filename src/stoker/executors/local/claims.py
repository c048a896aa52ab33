"""The files by which an attempt is started once and its end is never forgotten."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable

from msgspec import Struct

from stoker.executors.linux.procfs import ENDED, process_state, read_stat


class Claim(Struct):
    """What an attempt's claim file says."""

    keeper: tuple[int, int] | None = None
    """Pid and start time of the supervisor that has it."""
    note: bytes = b""
    """What its daemon had noted down with it: its placement, as JSON."""
    pid: int | None = None
    ticks: int = 0
    started: tuple[float, float] | None = None
    """Boot and wall time of the start."""
    status: int | None = None
    """The wait status, once it has ended."""
    ended_at: float | None = None
    failed: str | None = None
    """Why it could not be started."""
    taken: bool = False
    """A later daemon took the claim, so that nobody can start this attempt any more."""
    withdrawn: bool = False
    """Its supervisor has it and did not start it, for want of memory, processes or disk."""
    signalled: bool = False
    """A process of it was sent the signal that asks it to stop."""

    @property
    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self.pid is not None and process_state(self.pid, self.ticks) in RUNS

    @property
    def unreaped(self) -> bool:
        """Whether the process that was started still exists, perhaps as a zombie."""
        return self.pid is not None and process_state(self.pid, self.ticks) != ""

    @property
    def keeper_alive(self) -> bool:
        """Whether the supervisor that has this attempt still runs."""
        return self.keeper is not None and process_state(*self.keeper) in RUNS

    @property
    def empty(self) -> bool:
        """Whether no supervisor has written to it yet."""
        return self == Claim()


RUNS = frozenset("RSDTtIWKP")
"""States of processes that are neither zombies nor dead."""


def claim_path(run_dir: str, job: int, attempt: int) -> str:
    """Where the claim of one attempt lies."""
    return f"{run_dir}/{job}.{attempt}"


def read_claim(path: str) -> Claim | None:
    """What is known of an attempt; None when nobody has claimed it."""
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
            if not claim.taken:  # the first line decides
                claim.keeper = (int(words[1]), int(words[2]))
                claim.note = b"".join(line.split(None, 3)[3:])
        case b"pid":
            claim.pid, claim.ticks = int(words[1]), int(words[2])
            claim.started = (float(words[3]), float(words[4]))
            claim.keeper = (int(words[6]), int(words[7]))
        case b"exit":
            claim.status, claim.ended_at = int(words[1]), float(words[3])
        case b"failed":
            why = b" ".join(words[1:]).decode("utf-8", "replace")
            claim.failed = why or "the job could not be started"
        case b"taken":
            claim.taken = claim.keeper is None  # the first line decides
        case b"withdrawn":
            claim.withdrawn = True
        case b"signalled":
            claim.signalled = True


def note_signal(path: str) -> None:
    """Write down that the attempt is sent a signal, so that a later daemon can judge its exit."""
    with contextlib.suppress(OSError):  # deleted: its absence is noticed elsewhere
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, b"signalled\n")
        finally:
            os.close(fd)


def take_claim(path: str) -> bool:
    """Make sure that an attempt nobody started is never started; False when somebody was first."""
    # Whole or not at all: an empty claim would say that a keeper died in the middle of a start.
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


def take_empty_claim(path: str) -> bool:
    """Claim an attempt whose claim file has no content; False if a supervisor wrote to it first.

    The first line decides: a supervisor that was stopped between creating the file and writing
    its line finds "taken" when it continues, and starts nothing.
    """
    with open(path, "ab") as file:
        file.write(b"taken\n")
    return (read_claim(path) or Claim()).taken


class ExitLog:
    """The ends that keepers wrote to disk, one file per keeper."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._read: dict[str, tuple[tuple[int, int], dict[str, tuple[int, float]]]] = {}
        """By file: its inode and size when it was last read, and the ends in it."""

    def _names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self.directory)
        return []

    def read(self) -> dict[str, tuple[int, float]]:
        """Wait status and wall time by attempt (`job.attempt`)."""
        found: dict[str, tuple[int, float]] = {}
        for name in self._names():
            found |= self._of(name)
        return found

    def find(self, attempt: str) -> tuple[int, float] | None:
        """Wait status and wall time of the end of one attempt, if it is on record."""
        return next((end for name in self._names() if (end := self._of(name).get(attempt))), None)

    def _of(self, name: str) -> dict[str, tuple[int, float]]:
        """The ends in one file, which is read again only when it has grown."""
        with contextlib.suppress(OSError), open(f"{self.directory}/{name}", "rb") as file:
            stat = os.fstat(file.fileno())
            version = stat.st_ino, stat.st_size
            if self._read.get(name, (None, {}))[0] != version:
                self._read[name] = version, _ends(file.read(stat.st_size))
            return self._read[name][1]
        return {}

    def keepers(self) -> set[int]:
        """The keepers of this state that are still there."""
        return {int(name) for name in self._names() if name.isdigit() and _a_keeper(int(name))}

    def restore(self, keepers: Iterable[int]) -> None:
        """Make the files of living keepers again, by which a later daemon knows of them."""
        for pid in keepers:
            if _a_keeper(pid):
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                os.close(os.open(f"{self.directory}/{pid}", flags, 0o600))

    def drop(self, mine: set[int], unsettled: Collection[str] = ()) -> None:
        """Remove the files of keepers that are gone. Only after their ends are in the journal.

        A keeper may have written an end and left a moment ago: a file that has the end of an
        unsettled attempt stays.
        """
        there = {*mine, *self.keepers()}
        self.read()
        for name in self._names():
            if not name.isdigit() or int(name) in there:
                continue
            if self._read.get(name, (None, {}))[1].keys().isdisjoint(unsettled):
                self._read.pop(name, None)
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{name}")


def _ends(text: bytes) -> dict[str, tuple[int, float]]:
    """The ends in a file, without a line that was cut short."""
    found: dict[str, tuple[int, float]] = {}
    for line in text.splitlines():
        words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            found[words[0].decode()] = (int(words[2]), float(words[4]))
    return found


def _a_keeper(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.name == b"stoker-keeper" and stat.state not in ENDED
