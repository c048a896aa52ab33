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

from stoker.core.model.units import BadValue
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

    def __init__(self, max_entries: int = 200_000) -> None:
        self._max_entries = max_entries
        self._known: dict[tuple[int, ...], bytes] = {}
        self._lock = threading.Lock()

    def find(self, key: tuple[int, ...]) -> bytes | None:
        """Return the hash of the file with this identity, size and times, if it is known."""
        return self._known.get(key)

    def keep(self, key: tuple[int, ...], digest: bytes) -> None:
        """Store a hash; drop the oldest one if there are too many."""
        with self._lock:
            self._known[key] = digest
            while len(self._known) > self._max_entries:
                del self._known[next(iter(self._known))]


class _Entry(Struct):
    """One file, link or empty directory."""

    name: str
    kind: bytes
    """`f`, `x` (an executable file), `l` or `d`."""
    stat: os.stat_result | None = None


def take_snapshot(
    base: str,
    paths: Sequence[str] = (".",),
    exclude: Sequence[str] = (),
    max_bytes: int | None = None,
    cache: Hashes | None = None,
) -> DirectorySnapshot:
    """Read everything below `paths`, which are in `base`, and return the snapshot.

    What `.stokerignore` files and `exclude` name stays out, but not a path that is given.
    """
    at, base = time.time(), os.path.abspath(base)
    entries: dict[str, _Entry] = {}
    for path in paths:
        for entry in _below(base, path, IgnoreRules.always(exclude)):
            entries[entry.name] = entry
    ordered = [entries[name] for name in sorted(entries)]
    size = sum(entry.stat.st_size for entry in ordered if entry.stat and entry.kind != b"l")
    if max_bytes is not None and size > max_bytes:
        raise TooLarge(_too_large(base, ordered, size, max_bytes))
    return _named(base, ordered, _digests(base, ordered, cache or Hashes()), at)


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


def _below(base: str, path: str, rules: IgnoreRules) -> Iterator[_Entry]:
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
        yield _Entry(name, kind, entry)
    else:
        raise BadPath(f"'{path}' is neither a file nor a directory: {whole}.")


def _walk(base: str, name: str, rules: IgnoreRules) -> Iterator[_Entry]:
    """Yield everything in a directory that no rule excludes; links are never followed."""
    waiting = [(name, rules)]
    while waiting:
        directory, rules = waiting.pop()
        start = f"{directory}/" if directory else ""
        try:
            with os.scandir(os.path.join(base, directory)) as scan:
                entries = list(scan)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            raise BadPath(_unreadable(directory or base, error)) from None
        if any(entry.name == excludes.NAME for entry in entries):
            rules = _entered(rules, base, directory)
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
                yield _Entry(inner, kind, status)
        if empty and directory:
            yield _Entry(directory, b"d")


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


def _digests(base: str, entries: list[_Entry], cache: Hashes) -> dict[str, bytes]:
    """Return the hash of each content; files that were removed meanwhile have none."""
    digests: dict[str, bytes | None] = {}
    later: dict[str, Future[bytes | None]] = {}
    now = time.time_ns()
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    try:
        for entry in entries:
            if entry.stat is None:
                digests[entry.name] = b""
            elif (known := cache.find(_key(entry.stat))) is not None:
                digests[entry.name] = known
            elif entry.stat.st_size >= BIG and entry.kind != b"l":
                later[entry.name] = pool.submit(_digest, base, entry, cache, now)
            else:
                digests[entry.name] = _digest(base, entry, cache, now)
        digests.update({name: future.result() for name, future in later.items()})
    finally:
        pool.shutdown(
            cancel_futures=True
        )  # hashes that are not needed if another file cannot be read
    return {name: digest for name, digest in digests.items() if digest is not None}


def _digest(base: str, entry: _Entry, cache: Hashes, now: int) -> bytes | None:
    """Return the hash of one content. `hashlib` lets other threads run meanwhile."""
    assert entry.stat is not None
    path = os.path.join(base, entry.name)
    total = blake2b(digest_size=32)
    try:
        if entry.kind == b"l":
            total.update(os.fsencode(os.readlink(path)))
        else:
            # A pipe may have replaced the file: opening that would block.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    total.update(piece)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadPath(_unreadable(entry.name, error)) from None
    if now - entry.stat.st_ctime_ns > FRESH:
        cache.keep(_key(entry.stat), total.digest())
    return total.digest()


def _key(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, *_stamp(status))


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _named(
    base: str, entries: list[_Entry], digests: dict[str, bytes], at: float
) -> DirectorySnapshot:
    entries = [entry for entry in entries if entry.name in digests]
    total = blake2b(digest_size=20, person=b"stoker tree 1")
    for entry in entries:
        # Paths have no zero byte and digests one length: different trees give different bytes.
        total.update(entry.kind + os.fsencode(entry.name) + b"\0" + digests[entry.name])
    return DirectorySnapshot(
        id=total.hexdigest(),
        base=base,
        names=tuple(entry.name for entry in entries),
        size=sum(entry.stat.st_size for entry in entries if entry.stat and entry.kind != b"l"),
        links=tuple(entry.name for entry in entries if entry.kind == b"l"),
        stamps=tuple(_stamp(entry.stat) if entry.stat else None for entry in entries),
        at=at,
    )


# ------------------------------------------------------------------------------ messages


def _too_large(base: str, entries: list[_Entry], size: int, max_bytes: int) -> str:
    """Return the message about a directory that is too large: its size, the cause, what to do."""
    largest = sorted(_groups(entries).items(), key=lambda group: (-group[1], group[0]))[:3]
    blame = ", ".join(f"{name} ({amount(bytes)})" for name, bytes in largest)
    return (
        f"{base} has {amount(size)} to send, more than {amount(max_bytes)}; "
        f"the largest are {blame}: exclude unneeded files in {excludes.NAME}, "
        "select files with --send, or use a directory that this machine and the node share."
    )


def _groups(entries: list[_Entry]) -> dict[str, int]:
    """Return the size of each entry of the base, or of the one directory that has everything."""
    start, groups = "", {"/": 0}
    while len(groups) == 1 and next(iter(groups)).endswith("/"):
        groups = {}
        for entry in entries:
            if entry.stat is not None and entry.name.startswith(start):
                head, slash, _ = entry.name[len(start) :].partition("/")
                group = start + head + slash
                groups[group] = groups.get(group, 0) + entry.stat.st_size
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
