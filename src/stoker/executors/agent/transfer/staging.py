"""Results on their way into a directory: what was changed there meanwhile is never overwritten.

All of it is put into a directory of its own beside the rest first, on the same disk. Then file
by file is moved to its place. Whatever breaks that off, it can be done again.
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

from stoker.core.text import printable
from stoker.executors.agent.session.timeout_pipe import PIECE
from stoker.executors.agent.transfer.safe_untar import directory, parts_of, stays_inside
from stoker.executors.agent.transfer.tar_reader import Refused

MUNGED = "/rsyncd-munged/"
"""What rsync puts before links that it does not vouch for, so that nobody can follow them."""
MAX_ENTRIES = 500_000
"""Files in one directory."""
LONGEST_MENTIONED = 120
"""Characters of a name in a sentence."""
MOST = 1000
"""Names that are tried for a file whose own is taken."""

_turn = threading.Condition()
_busy: set[tuple[str, ...]] = set()


class AttemptWorkspace(Struct, frozen=True):
    """Whose results they are."""

    label: str = "new"
    """What people call the job."""
    attempt: int = 0
    since: float = float("inf")
    """When its directory was looked at: what was changed here later is not what it had."""
    work: str | None = None
    """How the path of its directory over there ends."""
    stage: str | None = None
    """A name that nobody else uses, and that is the same when it is done again."""
    umask: int = 0o022


class Mentioned(Struct):
    """How many there are of something, and the first of them: there may be very many."""

    count: int = 0
    first: tuple[str, ...] = ()

    def add(self, *names: str) -> None:
        """One more."""
        self.count += 1
        if self.count == 1:
            self.first = tuple(printable(name, LONGEST_MENTIONED) for name in names)


class StagedResults:
    """A directory here, and the results of one attempt that come into it."""

    def __init__(self, into: str, owner: AttemptWorkspace) -> None:
        self.into, self.owner = into, owner
        self.stage = os.path.join(into, f".stoker-{owner.stage or secrets.token_hex(6)}")
        self.beside = Mentioned()
        """Files that were changed here, each with where the job's own is."""
        self.left = Mentioned()
        """Links that lead out of its directory."""
        self._alone = alone("stage", self.stage)

    def __enter__(self) -> Self:
        self._alone.__enter__()
        try:
            os.makedirs(self.into, exist_ok=True)
            remove_tree(self.stage)
            os.mkdir(self.stage, 0o700)
        except BaseException:
            self._alone.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            remove_tree(self.stage)
        finally:
            self._alone.__exit__(None, None, None)

    def link(self, name: str, target: str) -> str | None:
        """What a link leads to from here; none if that is not among the results."""
        name = "/".join(parts_of(name))
        head, own, inside = target.partition(self.owner.work or "\0")
        if own and head.startswith("/") and inside[:1] in ("", "/"):
            if ".." not in inside.split("/"):
                return posixpath.relpath(f"/{inside}", f"/{posixpath.dirname(name)}")
        elif stays_inside(name, target):
            return target
        if not _leads_to(os.path.join(self.into, name), target):
            self.left.add(name)
        return None

    def land(self) -> None:
        """Move everything to its place."""
        base = os.open(self.into, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with alone("into", os.path.realpath(self.into)):
                waiting = [""]
                while waiting:
                    waiting += reversed(self._enter(base, waiting.pop()))
        finally:
            os.close(base)

    def _enter(self, base: int, here: str) -> list[str]:
        """Put what is in one directory into its place; returns those inside it."""
        start = f"{here}/" if here else ""
        place = directory(base, parts_of(here), 0o777 & ~self.owner.umask)
        inner = []
        try:
            for name in _names(os.path.join(self.stage, here)):
                path = os.path.join(self.stage, here, name)
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    inner.append(start + name)
                elif not stat.S_ISLNK(mode) or self._unmunged(path, start + name):
                    self._settle(path, place, name, start)
        finally:
            os.close(place)
        return inner

    def _unmunged(self, path: str, name: str) -> bool:
        """Make a link that rsync brought what it is to be; False if it does not come."""
        said = os.readlink(path)
        if not said.startswith(MUNGED):
            return True
        target = self.link(name, said.removeprefix(MUNGED))
        os.unlink(path)
        if target is not None:
            os.symlink(target, path)
        return target is not None

    def _settle(self, path: str, place: int, name: str, start: str) -> None:
        try:
            here = os.stat(name, dir_fd=place, follow_symlinks=False)
        except FileNotFoundError:
            os.replace(path, name, dst_dir_fd=place)
            return
        if here.st_ctime <= self.owner.since and not stat.S_ISDIR(here.st_mode):
            os.replace(path, name, dst_dir_fd=place)
        elif not _same(path, place, name):
            self.beside.add(start + name, start + self._put_beside(path, place, name))

    def _put_beside(self, path: str, place: int, name: str) -> str:
        for other in self._others(name):
            try:
                os.stat(other, dir_fd=place, follow_symlinks=False)
            except FileNotFoundError:
                os.replace(path, other, dst_dir_fd=place)
                return other
            if _same(path, place, other):
                return other  # an earlier try got as far as this
        raise Refused(
            f"'{name}' was changed locally, and all alternative names for the job's version exist."
        )

    def _others(self, name: str) -> Iterator[str]:
        own = f"{name}.{self.owner.label}"
        yield own
        yield f"{own}.{self.owner.attempt}"
        yield from (f"{own}.{self.owner.attempt}.{number}" for number in range(2, MOST))

    def remark(self) -> str | None:
        """What its owner should know."""
        said = []
        if count := self.beside.count:
            name, other = self.beside.first
            said.append(
                f"{name} was changed locally; the job's version is {other}" if count == 1 else
                f"{count} files were changed locally; the job's version of {name} is {other}, "
                "of the others likewise"
            )  # fmt: skip
        if count := self.left.count:
            (name,) = self.left.first
            said.append(
                f"the link {name} points outside the job directory and was not fetched"
                if count == 1 else
                f"{count} links point outside the job directory and were not fetched, "
                f"for example {name}"
            )  # fmt: skip
        return "; ".join(said) or None


def _names(path: str) -> list[str]:
    """What is in a directory, in order."""
    with os.scandir(path) as scan:
        names = [entry.name for entry in islice(scan, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise Refused(f"there are more than {MAX_ENTRIES} files in one directory.")
    return sorted(names)


def remove_tree(path: str) -> None:
    """Remove a directory, if it is there, as far as that can be done."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # a node may have sent a thousand directories, one in the other
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


def _same(path: str, place: int, name: str) -> bool:
    """Whether a file that came and one that is here have the same content."""
    one, two = os.lstat(path), os.stat(name, dir_fd=place, follow_symlinks=False)
    if stat.S_IFMT(one.st_mode) != stat.S_IFMT(two.st_mode):
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(path) == os.readlink(name, dir_fd=place)
    if not stat.S_ISREG(one.st_mode) or one.st_size != two.st_size:
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with (
            open(os.open(path, flags), "rb", buffering=0) as first,
            open(os.open(name, flags, dir_fd=place), "rb", buffering=0) as second,
        ):
            while True:
                pieces = first.read(PIECE), second.read(PIECE)
                if pieces[0] != pieces[1]:
                    return False
                if not pieces[0]:
                    return True
    except PermissionError:
        return False  # what cannot be read cannot be known to be the same


def _leads_to(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


@contextmanager
def alone(*key: str) -> Iterator[None]:
    """One at a time; the next finds what the one before has done."""
    with _turn:
        _turn.wait_for(lambda: key not in _busy)
        _busy.add(key)
    try:
        yield
    finally:
        with _turn:
            _busy.discard(key)
            _turn.notify_all()
