"""DirectorySnapshot: the files that are uploaded for a job, with an id made of their content.

The name is a hash over paths, kinds, the executable bit and content. So the same files have the
same name wherever and whenever they are looked at, and a machine that has them is sent nothing.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b

from msgspec import Struct

from stoker.core.units import BadValue
from stoker.executors.agent.transfer import ignore_rules as excludes
from stoker.executors.agent.transfer.ignore_rules import IgnoreRules

Stamp = tuple[int, int, int]
"""Size, and the times of the last change to content and to anything, in nanoseconds."""

BIG = 1 << 18
"""From this size on a file is hashed in a thread: below it, handing it over costs more."""
PIECE = 1 << 20
FRESH = 2_000_000_000
"""A file changed less than this ago may change again without its times showing it."""


class BadPath(BadValue):
    """A path that cannot be uploaded; the message is one sentence."""


class TooLarge(BadValue):
    """The files are larger than the limit."""


class DirectorySnapshot(Struct, frozen=True):
    """The files of a directory, and the id of their content."""

    id: str
    base: str
    names: tuple[str, ...]
    """Files, symbolic links and empty directories below `base`, sorted."""
    size: int
    links: tuple[str, ...]
    """The names of symbolic links."""
    stamps: tuple[Stamp | None, ...]
    """Size and times of each name when it was read; None for directories."""
    at: float = 0.0
    """When reading began: later changes are not in it."""


class Hashes:
    """A cache of file hashes, for any number of threads."""

    def __init__(self, most: int = 200_000) -> None:
        self._most = most
        self._known: dict[tuple[int, ...], bytes] = {}
        self._lock = threading.Lock()

    def find(self, key: tuple[int, ...]) -> bytes | None:
        """Return the hash of the file with this identity, size and times, if it is known."""
        return self._known.get(key)

    def keep(self, key: tuple[int, ...], digest: bytes) -> None:
        """Store a hash; drop the oldest one if there are too many."""
        with self._lock:
            self._known[key] = digest
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]


class _Found(Struct):
    """One file, link or empty directory."""

    name: str
    kind: bytes
    """`f`, `x` (an executable file), `l` or `d`."""
    stat: os.stat_result | None = None


def take_snapshot(
    base: str,
    paths: Sequence[str] = (".",),
    exclude: Sequence[str] = (),
    most: int | None = None,
    cache: Hashes | None = None,
) -> DirectorySnapshot:
    """Read everything below `paths`, which are in `base`, and return the snapshot.

    What `.stokerignore` files and `exclude` name stays out, but not a path that is given.
    """
    at, base = time.time(), os.path.abspath(base)
    found: dict[str, _Found] = {}
    for path in paths:
        for each in _below(base, path, IgnoreRules.always(exclude)):
            found[each.name] = each
    there = [found[name] for name in sorted(found)]
    size = sum(each.stat.st_size for each in there if each.stat and each.kind != b"l")
    if most is not None and size > most:
        raise TooLarge(_too_large(base, there, size, most))
    return _named(base, there, _digests(base, there, cache or Hashes()), at)


def changed(tree: DirectorySnapshot) -> str | None:
    """Return the first file that was changed since the snapshot, if there is one."""
    for name, stamp in zip(tree.names, tree.stamps, strict=True):
        if stamp is None:
            continue
        try:
            now = os.lstat(os.path.join(tree.base, name))
        except OSError:
            return name
        if _stamp(now) != stamp:
            return name
    return None


# ------------------------------------------------------------------------------- walking


def _below(base: str, path: str, rules: IgnoreRules) -> Iterator[_Found]:
    """Yield a given path: a file itself, a directory with its content."""
    whole = os.path.normpath(os.path.join(base, path))
    if whole != base and not whole.startswith(base.rstrip("/") + "/"):
        raise BadPath(f"'{path}' is not below {base}; give a path inside it.")
    name = os.path.relpath(whole, base) if whole != base else ""
    parts = name.split("/") if name else []
    for depth in range(len(parts)):
        part = "/".join(parts[:depth])
        if part and os.path.islink(os.path.join(base, part)):
            raise BadPath(f"'{path}' leads through the link '{part}'; give its target instead.")
        rules = _entered(rules, base, part)
    try:
        entry = os.stat(whole, follow_symlinks=not name)
    except OSError as error:
        raise BadPath(f"cannot send '{path}': {error.strerror} ({whole}).") from None
    if stat.S_ISDIR(entry.st_mode):
        yield from _walk(base, name, rules)
    elif (kind := _kind(entry)) is not None and name:
        yield _Found(name, kind, entry)
    else:
        raise BadPath(f"'{path}' is neither a file nor a directory: {whole}.")


def _walk(base: str, name: str, rules: IgnoreRules) -> Iterator[_Found]:
    """Yield everything in a directory that no rule excludes; links are never followed."""
    waiting = [(name, rules)]
    while waiting:
        here, rules = waiting.pop()
        start = f"{here}/" if here else ""
        try:
            with os.scandir(os.path.join(base, here)) as scan:
                entries = list(scan)
        except FileNotFoundError:
            continue  # it went away while we were looking
        except OSError as error:
            raise BadPath(_unreadable(here or base, error)) from None
        if any(entry.name == excludes.NAME for entry in entries):
            rules = _entered(rules, base, here)
        empty = True
        for entry in entries:
            inner = start + entry.name
            is_dir = entry.is_dir(follow_symlinks=False)
            if rules.excluded(inner, is_dir):
                continue
            if is_dir:
                empty = False
                waiting.append((inner, rules))
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = _kind(status)
            if kind is not None:
                empty = False
                yield _Found(inner, kind, status)
        if empty and here:
            yield _Found(here, b"d")


def _kind(status: os.stat_result) -> bytes | None:
    """Return the kind; None for sockets, pipes and devices, which are not uploaded."""
    if stat.S_ISREG(status.st_mode):
        return b"x" if status.st_mode & 0o111 else b"f"
    return b"l" if stat.S_ISLNK(status.st_mode) else None


def _entered(rules: IgnoreRules, base: str, name: str) -> IgnoreRules:
    try:
        with open(os.path.join(base, name, excludes.NAME), "rb") as file:
            return rules.enter(name, os.fsdecode(file.read()))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return rules
    except OSError as error:
        raise BadPath(_unreadable(os.path.join(name, excludes.NAME), error)) from None


def _unreadable(name: str, error: OSError) -> str:
    return (
        f"cannot read '{name}': {error.strerror}; make it readable or exclude it in "
        f"{excludes.NAME}."
    )


# ------------------------------------------------------------------------------- hashing


def _digests(base: str, there: list[_Found], cache: Hashes) -> dict[str, bytes]:
    """Return the hash of each content; files that were removed meanwhile have none."""
    digests: dict[str, bytes | None] = {}
    later: dict[str, Future[bytes | None]] = {}
    now = time.time_ns()
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    try:
        for each in there:
            if each.stat is None:
                digests[each.name] = b""
            elif (known := cache.find(_key(each.stat))) is not None:
                digests[each.name] = known
            elif each.stat.st_size >= BIG and each.kind != b"l":
                later[each.name] = pool.submit(_digest, base, each, cache, now)
            else:
                digests[each.name] = _digest(base, each, cache, now)
        digests.update({name: future.result() for name, future in later.items()})
    finally:
        pool.shutdown(cancel_futures=True)  # those that are left, when one cannot be read
    return {name: digest for name, digest in digests.items() if digest is not None}


def _digest(base: str, found: _Found, cache: Hashes, now: int) -> bytes | None:
    """Return the hash of one content. `hashlib` lets other threads run meanwhile."""
    assert found.stat is not None
    path = os.path.join(base, found.name)
    total = blake2b(digest_size=32)
    try:
        if found.kind == b"l":
            total.update(os.fsencode(os.readlink(path)))
        else:
            # A pipe may have replaced the file: opening that would block.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    total.update(piece)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadPath(_unreadable(found.name, error)) from None
    if now - found.stat.st_ctime_ns > FRESH:
        cache.keep(_key(found.stat), total.digest())
    return total.digest()


def _key(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, *_stamp(status))


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _named(
    base: str, there: list[_Found], digests: dict[str, bytes], at: float
) -> DirectorySnapshot:
    there = [each for each in there if each.name in digests]
    total = blake2b(digest_size=20, person=b"stoker tree 1")
    for each in there:
        # Paths have no zero byte and digests one length: different trees give different bytes.
        total.update(each.kind + os.fsencode(each.name) + b"\0" + digests[each.name])
    return DirectorySnapshot(
        id=total.hexdigest(),
        base=base,
        names=tuple(each.name for each in there),
        size=sum(each.stat.st_size for each in there if each.stat and each.kind != b"l"),
        links=tuple(each.name for each in there if each.kind == b"l"),
        stamps=tuple(_stamp(each.stat) if each.stat else None for each in there),
        at=at,
    )


# ------------------------------------------------------------------------------ messages


def _too_large(base: str, there: list[_Found], size: int, most: int) -> str:
    """Return the message about a directory that is too large: its size, the cause, what to do."""
    largest = sorted(_groups(there).items(), key=lambda group: (-group[1], group[0]))[:3]
    blame = ", ".join(f"{name} ({amount(bytes)})" for name, bytes in largest)
    return (
        f"{base} has {amount(size)} to send, more than {amount(most)}; the largest are {blame}: "
        f"exclude unneeded files in {excludes.NAME}, select files with --send, "
        "or use a directory that this machine and the node share."
    )


def _groups(there: list[_Found]) -> dict[str, int]:
    """Return the size of each entry of the base, or of the one directory that has everything."""
    start, groups = "", {"/": 0}
    while len(groups) == 1 and next(iter(groups)).endswith("/"):
        groups = {}
        for each in there:
            if each.stat is not None and each.name.startswith(start):
                head, slash, _ = each.name[len(start) :].partition("/")
                group = start + head + slash
                groups[group] = groups.get(group, 0) + each.stat.st_size
        start = next(iter(groups))
    return groups


def amount(size: int) -> str:
    """Return a number of bytes with a unit."""
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
