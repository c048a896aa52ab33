"""The files by which an attempt is started once and its end is never forgotten."""

from __future__ import annotations

import contextlib
import os

from msgspec import Struct


class Claim(Struct):
    """What an attempt's claim file says."""

    keeper: tuple[int, int] | None = None
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

    @property
    def alive(self) -> bool:
        """Whether the very process that was started is still there."""
        return self.pid is not None and _is(self.pid, self.ticks)

    def keeper_alive(self, exits: Exits) -> bool:
        """Whether somebody may still write the end down."""
        return _is(*self.keeper) if self.keeper is not None else exits.any_keeper()


def _is(pid: int, ticks: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == ticks


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
            _read_line(claim, line.split())
    return claim


def _read_line(claim: Claim, words: list[bytes]) -> None:
    match words[0]:
        case b"pid":
            claim.pid, claim.ticks = int(words[1]), int(words[2])
            claim.started = (float(words[3]), float(words[4]))
            claim.keeper = (int(words[6]), int(words[7]))
        case b"exit":
            claim.status, claim.ended_at = int(words[1]), float(words[3])
        case b"failed":
            why = b" ".join(words[1:]).decode("utf-8", "replace")
            claim.failed = why or "it could not be started"
        case b"taken":
            claim.taken = True


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


class Exits:
    """The ends that keepers wrote to disk, one file per keeper."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def read(self) -> dict[str, tuple[int, float]]:
        """Wait status and wall time by attempt (`job.attempt`)."""
        found: dict[str, tuple[int, float]] = {}
        for name in os.listdir(self.directory):
            with contextlib.suppress(OSError), open(f"{self.directory}/{name}", "rb") as file:
                for line in file.read().splitlines():
                    words = line.split()
                    with contextlib.suppress(ValueError, IndexError):
                        found[words[0].decode()] = (int(words[2]), float(words[4]))
        return found

    def any_keeper(self, but: frozenset[int] | set[int] = frozenset()) -> bool:
        """Whether any keeper of this state is still there, besides these."""
        return any(
            name.isdigit() and int(name) not in but and _a_keeper(int(name))
            for name in os.listdir(self.directory)
        )

    def drop(self, mine: set[int]) -> None:
        """Remove the files of keepers that are gone. Only after their ends are in the journal."""
        for name in os.listdir(self.directory):
            if name.isdigit() and int(name) not in mine and not _a_keeper(int(name)):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{name}")


def _a_keeper(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().startswith(b"stoker-keeper")
    except OSError:
        return False
