"""StagedResults: installs results in a directory; files that were changed there are kept.

All results are first put into a staging directory on the same disk, then moved one by one. If that
is interrupted, it can be repeated.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Self

from msgspec import Struct

from stoker.core.model.units import printable
from stoker.executors.agent.session.timeout_pipe import PIECE
from stoker.executors.agent.transfer.safe_untar import directory, parts_of, stays_inside
from stoker.executors.agent.transfer.tar_reader import Refused

MUNGED = "/rsyncd-munged/"
"""The prefix by which rsync disables links."""
MAX_ENTRIES = 500_000
"""Files in one directory."""
MAX_MENTIONED_LENGTH = 120
"""Characters of a file name in a remark."""
MAX_OTHER_NAMES = 1000
"""Names that are tried for a file that cannot have its own name."""

_turn = threading.Condition()
_busy: set[tuple[str, ...]] = set()


class AttemptWorkspace(Struct, frozen=True):
    """The attempt that results belong to, and its directory."""

    label: str = "new"
    """The id of the job, as users see it."""
    attempt: int = 0
    since: float = float("inf")
    """When its directory was read; the attempt did not have later changes of files here."""
    work: str | None = None
    """The end of the path of its directory on the node."""
    stage: str | None = None
    """The name of its staging directory: unique, and the same in every try."""
    umask: int = 0o022


class FileMentions(Struct):
    """The number of files in a remark, and the first of them: there may be very many."""

    count: int = 0
    first: tuple[str, ...] = ()

    def add(self, *names: str) -> None:
        """Count one more."""
        self.count += 1
        if self.count == 1:
            self.first = tuple(printable(name, MAX_MENTIONED_LENGTH) for name in names)


class StagedResults:
    """The results of one attempt, on their way into a directory of this node."""

    def __init__(self, into: str, workspace: AttemptWorkspace) -> None:
        self.into, self.workspace = into, workspace
        self.stage = os.path.join(into, f".stoker-{workspace.stage or secrets.token_hex(6)}")
        self.beside = FileMentions()
        """Files that were changed here, each with the name of the job's version."""
        self.left = FileMentions()
        """Links that point outside the directory of the attempt."""
        self._lock = exclusive("stage", self.stage)

    def __enter__(self) -> Self:
        self._lock.__enter__()
        try:
            os.makedirs(self.into, exist_ok=True)
            remove_tree(self.stage)
            os.mkdir(self.stage, 0o700)
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            remove_tree(self.stage)
        finally:
            self._lock.__exit__(None, None, None)

    def link(self, name: str, target: str) -> str | None:
        """Return the target of a link on this node; None if it is not among the results."""
        name = "/".join(parts_of(name))
        head, separator, inside = target.partition(self.workspace.work or "\0")
        if separator and head.startswith("/") and inside[:1] in ("", "/"):
            if ".." not in inside.split("/"):
                return posixpath.relpath(f"/{inside}", f"/{posixpath.dirname(name)}")
        elif stays_inside(name, target):
            return target
        if not _points_to(os.path.join(self.into, name), target):
            self.left.add(name)
        return None

    def install(self) -> None:
        """Move all results from the staging directory to their places."""
        base = os.open(self.into, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with exclusive("into", os.path.realpath(self.into)):
                waiting = [""]
                while waiting:
                    waiting += reversed(self._install_directory(base, waiting.pop()))
        finally:
            os.close(base)

    def _install_directory(self, base: int, directory_name: str) -> list[str]:
        """Move the files of one directory to their places; return the directories in it."""
        start = f"{directory_name}/" if directory_name else ""
        target = directory(base, parts_of(directory_name), 0o777 & ~self.workspace.umask)
        inner = []
        try:
            for name in _names(os.path.join(self.stage, directory_name)):
                path = os.path.join(self.stage, directory_name, name)
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    inner.append(start + name)
                elif not stat.S_ISLNK(mode) or self._unmunged(path, start + name):
                    self._install_file(path, target, name, start)
        finally:
            os.close(target)
        return inner

    def _unmunged(self, path: str, name: str) -> bool:
        """Restore a link that rsync disabled; return False if it is left out."""
        munged = os.readlink(path)
        if not munged.startswith(MUNGED):
            return True
        target = self.link(name, munged.removeprefix(MUNGED))
        os.unlink(path)
        if target is not None:
            os.symlink(target, path)
        return target is not None

    def _install_file(self, path: str, directory_fd: int, name: str, start: str) -> None:
        try:
            present = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            os.replace(path, name, dst_dir_fd=directory_fd)
            return
        if present.st_ctime <= self.workspace.since and not stat.S_ISDIR(present.st_mode):
            os.replace(path, name, dst_dir_fd=directory_fd)
        elif not _is_same(path, directory_fd, name):
            self.beside.add(start + name, start + self._install_beside(path, directory_fd, name))

    def _install_beside(self, path: str, directory_fd: int, name: str) -> str:
        for other in self._other_names(name):
            try:
                os.stat(other, dir_fd=directory_fd, follow_symlinks=False)
            except FileNotFoundError:
                os.replace(path, other, dst_dir_fd=directory_fd)
                return other
            if _is_same(path, directory_fd, other):
                return other  # by an earlier try
        raise Refused(
            f"'{name}' was changed locally, and all alternative names for the job's version exist."
        )

    def _other_names(self, name: str) -> Iterator[str]:
        labelled = f"{name}.{self.workspace.label}"
        yield labelled
        yield f"{labelled}.{self.workspace.attempt}"
        yield from (
            f"{labelled}.{self.workspace.attempt}.{number}" for number in range(2, MAX_OTHER_NAMES)
        )

    def remark(self) -> str | None:
        """Return what the user should know about these results."""
        remarks = []
        if count := self.beside.count:
            name, other = self.beside.first
            remarks.append(
                f"{name} was changed locally; the job's version is {other}" if count == 1 else
                f"{count} files were changed locally; the job's version of {name} is {other}, "
                "of the others likewise"
            )  # fmt: skip
        if count := self.left.count:
            (name,) = self.left.first
            remarks.append(
                f"the link {name} points outside the job directory and was not fetched"
                if count == 1 else
                f"{count} links point outside the job directory and were not fetched, "
                f"for example {name}"
            )  # fmt: skip
        return "; ".join(remarks) or None


def _names(path: str) -> list[str]:
    """Return the sorted names in a directory."""
    with os.scandir(path) as scan:
        names = [entry.name for entry in islice(scan, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise Refused(f"there are more than {MAX_ENTRIES} files in one directory.")
    return sorted(names)


def remove_tree(path: str) -> None:
    """Remove a directory, if it exists, as far as possible."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # a node may have sent a thousand nested directories
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


def _is_same(path: str, directory_fd: int, name: str) -> bool:
    """Return whether a staged file and one in the target directory have the same content."""
    one, two = os.lstat(path), os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    if stat.S_IFMT(one.st_mode) != stat.S_IFMT(two.st_mode):
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(path) == os.readlink(name, dir_fd=directory_fd)
    if not stat.S_ISREG(one.st_mode) or one.st_size != two.st_size:
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with (
            open(os.open(path, flags), "rb", buffering=0) as first,
            open(os.open(name, flags, dir_fd=directory_fd), "rb", buffering=0) as second,
        ):
            while True:
                pieces = first.read(PIECE), second.read(PIECE)
                if pieces[0] != pieces[1]:
                    return False
                if not pieces[0]:
                    return True
    except PermissionError:
        return False  # unreadable files count as different


def _points_to(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


@contextmanager
def exclusive(*key: str) -> Iterator[None]:
    """Let one thread at a time do what the key names."""
    with _turn:
        _turn.wait_for(lambda: key not in _busy)
        _busy.add(key)
    try:
        yield
    finally:
        with _turn:
            _busy.discard(key)
            _turn.notify_all()
