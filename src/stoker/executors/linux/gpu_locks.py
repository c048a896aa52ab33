"""GPU locks: how the daemons of several users on one machine leave each other's GPUs alone.

Each user has one lock file per GPU, `UUID.UID`, in a directory that all users share, and a job
holds a shared flock on its user's file. A daemon locks its own file first and looks at the files
of other users afterwards, so two daemons never both keep an idle GPU. The processes of a job
inherit its lock, so the lock ends with the last of them, not with the daemon.

A system daemon has its files in a directory of its own, which the gate makes; daemons look at both.

Any user can put anything into that directory: nothing here waits for a file or a lock, and a file
counts only if its type and its owner are what its name says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from math import inf

from stoker.core.measurement.foreign_use import UNAVAILABLE
from stoker.core.model.job import AttemptId
from stoker.executors.linux.shared_locks import lock_shared

logger = logging.getLogger(__name__)

COMMON = "/tmp/stoker-gpus"  # noqa: S108 - sticky and checked before use
SYSTEM = "/run/stoker/gpus"
"""The directory of a system daemon, which alone can write to it."""
MAX_FILES = 10_000
"""Directory entries that are looked at; more than that are put there to keep us busy."""
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
LOOK_SECONDS = 1.0
"""Seconds for which one look at the directory serves the questions about all GPUs."""
_SHARED_MODE = 0o1777
_HINDRANCES = {
    errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENXIO, errno.ENODEV,
    errno.EAGAIN,
}  # fmt: skip
"""Errors that do not pass by themselves: a link, a mode, a socket, a lease, a read-only disk."""

Names = dict[str, list[int]]
"""The users with a lock file, by GPU."""


class UntrustedError(Exception):
    """A file or directory is not what its name says."""


class GpuLocks:
    """The locks of this user's jobs on real GPUs, and what other users have locked."""

    def __init__(
        self,
        directory: str = COMMON,
        uid: int | None = None,
        report: Callable[[str], None] | None = None,
        is_system: bool = False,
        other: str | None = None,
    ) -> None:
        """`other` is the directory of the other kind of daemon, by default the usual one.

        With `is_system`, the directory is that of a system daemon: it exists already.
        """
        self.directory, self.is_system = directory, is_system
        self.uid = os.getuid() if uid is None else uid
        self.problems: dict[str, str] = {}
        """What is wrong with the locks at the moment, each reported when it came up."""
        self._report = report or _log_problem
        self._held: dict[AttemptId, dict[str, int]] = {}
        """Descriptors by path, by attempt."""
        self._pauses: dict[str, tuple[float, float, str]] = {}
        """GPUs that could not be locked: when to try again, the length of the pause, and why."""
        self._looked: tuple[float, Names] = (-inf, {})
        other = {COMMON: SYSTEM, SYSTEM: COMMON}.get(directory) if other is None else other
        self._elsewhere = type(self)(other, self.uid, report, not is_system, "") if other else None
        if self._elsewhere is not None:
            self._elsewhere.problems = self.problems

    def path(self, uuid: str) -> str:
        """Return the path of this user's lock file for a GPU."""
        return f"{self.directory}/{uuid}.{self.uid}"

    def take(self, key: AttemptId, uuids: tuple[str, ...]) -> str | None:
        """Lock GPUs for an attempt, all or none; return what prevents it, None if it may start."""
        now, held = time.monotonic(), dict[str, int]()
        paused = (self._pauses[uuid] for uuid in uuids if uuid in self._pauses)
        reason = next((why for until, _, why in paused if until > now), None)
        try:
            reason = reason or self._lock_all(sorted(uuids), held)
        except OSError as error:
            reason = self._pause(uuids, error)
        if reason is not None:
            _close(held.values())
            return reason
        self._end_pause(uuids)
        self._held[key] = held
        return None

    def create(self, uuids: Iterable[str]) -> None:
        """Create the lock files of this user, for its jobs to lock that run as other users."""
        for uuid in uuids:
            with (
                contextlib.suppress(UntrustedError),
                self._opened(may_create=True) as directory,
            ):
                os.close(self._open_own(directory, f"{uuid}.{self.uid}"))

    def holder(self, uuid: str) -> str | None:
        """Return what keeps this user from a GPU now: another user's lock, or a lock error."""
        if uuid in self._pauses and self._pauses[uuid][0] <= time.monotonic():
            self._try_again(uuid)
        if uuid in self._pauses:
            return self._pauses[uuid][2]
        try:
            with self._opened() as directory:
                if time.monotonic() - self._looked[0] > LOOK_SECONDS:
                    self._looked = time.monotonic(), self._names(directory)
                owner = self._other_owner(directory, uuid, self._looked[1])
        except (OSError, UntrustedError):
            owner = None  # a start would report it
        if owner is None and self._elsewhere is not None:
            return self._elsewhere.holder(uuid)
        return f"the stoker of {owner}" if owner else None

    def _try_again(self, uuid: str) -> None:
        """End a pause if a lock can be taken: no start has to fail to find out that it cannot."""
        held: dict[str, int] = {}
        try:
            self._lock_all([uuid], held)
        except OSError as error:
            self._pause([uuid], error)
        else:
            self._end_pause([uuid])
        finally:
            _close(held.values())

    def drop(self, key: AttemptId) -> None:
        """Let go of an attempt's locks; its processes may still have theirs."""
        _close(self._held.pop(key, {}).values())

    def paths(self, key: AttemptId) -> list[str]:
        """Return the files that are locked for an attempt, for its process to lock as well."""
        return list(self._held.get(key, ()))

    def _lock_all(self, uuids: Iterable[str], held: dict[str, int]) -> str | None:
        try:
            with self._opened(may_create=True) as directory:
                for uuid in uuids:
                    self._lock_own(directory, uuid, held)
                reason = self._used_by_others(directory, uuids)
        except UntrustedError as error:
            self._problem(self.directory, f"{error}; GPUs are used without locks")
            reason = None
        if reason is None and self._elsewhere is not None:
            return self._elsewhere._used_here(uuids)  # noqa: SLF001 - of the same class
        return reason

    def _used_by_others(self, directory: int, uuids: Iterable[str]) -> str | None:
        names = self._names(directory)
        owners = (self._other_owner(directory, uuid, names) for uuid in uuids)
        return next((f"the stoker of {owner}" for owner in owners if owner is not None), None)

    def _used_here(self, uuids: Iterable[str]) -> str | None:
        """Return what keeps from these GPUs, for locks with files in another directory."""
        try:
            with self._opened() as directory:
                return self._used_by_others(directory, uuids)
        except FileNotFoundError:
            return None
        except UntrustedError as error:
            self._problem(self.directory, f"{error}; GPU locks there are not seen")
            return None

    def _lock_own(self, directory: int, uuid: str, held: dict[str, int]) -> None:
        name = f"{uuid}.{self.uid}"
        try:
            held[self.path(uuid)] = fd = self._open_own(directory, name)
        except UntrustedError as error:
            self._problem(name, f"{error}; this GPU is used without a lock")
            return
        lock_shared(fd, self.path(uuid))
        self._solved(name)

    def _open_own(self, directory: int, name: str) -> int:
        """Open our file, and make it if need be.

        Not with a plain O_CREAT: where fs.protected_regular is set, that is refused for a file
        of another user in a sticky directory, and it would follow a link.
        """
        with contextlib.suppress(FileNotFoundError):
            return self._open(directory, name, self.uid)
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, 0o644, dir_fd=directory)
        except FileExistsError:  # another daemon of ours was faster
            return self._open(directory, name, self.uid)
        except OSError as error:
            raise self._error_to_raise(name, error) from None
        os.fchmod(fd, 0o644)  # whatever our umask is, others must see whether it is locked
        return fd

    def _open(self, directory: int, name: str, uid: int) -> int:
        """Open the lock file of a user; without O_NONBLOCK a FIFO or a lease would stop us."""
        path = f"{self.directory}/{name}"
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(name, flags, dir_fd=directory)
        except OSError as error:
            raise self._error_to_raise(name, error) from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(fd)
            raise UntrustedError(f"{path} is not a lock file")
        if not self._belongs_to(status, uid):
            os.close(fd)
            # Not by name: there may be thousands of them, and each lookup reads a file.
            raise UntrustedError(f"{path} belongs to user {status.st_uid}, not {uid}")
        return fd

    def _error_to_raise(self, name: str, error: OSError) -> Exception:
        """Return the error to raise: only one that may pass is a reason to try again."""
        if error.errno not in _HINDRANCES:
            return error
        path = f"{self.directory}/{name}".rstrip("/")
        return UntrustedError(f"{path} cannot be used ({error.strerror})")

    @staticmethod
    def _belongs_to(status: os.stat_result, uid: int) -> bool:
        return status.st_uid == uid

    @contextlib.contextmanager
    def _opened(self, may_create: bool = False):  # type: ignore[no-untyped-def]
        """Open the directory, if users cannot remove each other's files there."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            try:
                fd = os.open(self.directory, flags)
            except FileNotFoundError:
                if not may_create or self.is_system:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.directory)
                fd = os.open(self.directory, flags)
        except OSError as error:
            if error.errno in {*_HINDRANCES, errno.ENOTDIR}:
                raise UntrustedError(
                    f"{self.directory} cannot be used ({error.strerror})"
                ) from None
            raise
        try:
            status = os.fstat(fd)
            is_of_system = self.is_system and not status.st_mode & 0o022
            if not is_of_system and status.st_mode & _SHARED_MODE != _SHARED_MODE:
                if self.is_system or status.st_uid != os.getuid():
                    text = f"{self.directory} of user {status.st_uid} does not have mode 1777"
                    raise UntrustedError(text)
                os.fchmod(fd, _SHARED_MODE)
            self._solved(self.directory)
            yield fd
        finally:
            os.close(fd)

    def _names(self, directory: int) -> Names:
        """Return which other users have lock files, by GPU."""
        users: Names = {}
        with os.scandir(directory) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_FILES:
                    text = f"{self.directory} has more than {MAX_FILES} files"
                    text += "; GPU locks of other users are not seen"
                    self._problem(f"{self.directory} count", text)
                    return {}
                uuid, _, uid = entry.name.rpartition(".")
                if uid.isascii() and uid.isdigit() and uid == str(int(uid)):
                    users.setdefault(uuid, []).append(int(uid))
        self._solved(f"{self.directory} count")
        return users

    def _other_owner(self, directory: int, uuid: str, names: Names) -> str | None:
        """Return the other user that has locked a GPU, if any."""
        doubt, problem = None, f"{self.directory} {uuid}"
        for uid in names.get(uuid, ()):
            if uid == self.uid:
                continue
            try:
                fd = self._open(directory, f"{uuid}.{uid}", uid)
            except FileNotFoundError:
                continue
            except UntrustedError as error:
                doubt = doubt or error
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _user(uid)
            finally:
                os.close(fd)
        if doubt is None:
            self._solved(problem)
        else:
            self._problem(problem, f"{doubt}; it is ignored")
        return None

    def _pause(self, uuids: Iterable[str], error: OSError) -> str:
        """Leave GPUs alone for a while; return why."""
        problem = f"a GPU lock in {self.directory} cannot be taken ({error.strerror or error})"
        why = f"{UNAVAILABLE}{problem}"
        for uuid in uuids:
            _, last, _ = self._pauses.get(uuid, (0.0, 0.0, ""))
            pause = min(last * 2, LONGEST_PAUSE_SECONDS) or FIRST_PAUSE_SECONDS
            self._pauses[uuid] = (time.monotonic() + pause, pause, why)
        self._problem("locks", f"{problem}; GPU jobs start once the lock can be taken")
        return why

    def _end_pause(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._pauses.pop(uuid, None)
        # All locks are in one directory: what hindered this one may be over for the others too.
        self._pauses = {uuid: (0.0, length, why) for uuid, (_, length, why) in self._pauses.items()}
        if not self._pauses:
            self._solved("locks")

    def _problem(self, what: str, sentence: str) -> None:
        if what not in self.problems:
            self._report(sentence)
        self.problems[what] = sentence

    def _solved(self, what: str) -> None:
        self.problems.pop(what, None)


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _log_problem(sentence: str) -> None:
    logger.warning("%s", sentence)
