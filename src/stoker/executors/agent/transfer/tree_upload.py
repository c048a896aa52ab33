"""Trees out, results back.

rsync where both ends have it, tar where one has not. Everything here waits, so it is called in
a thread. Whatever goes wrong becomes a CarryError with one sentence.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from stoker.executors.agent.session.remote_shell import (
    MARK,
    MAX_LISTING,
    CarryError,
    DiskFull,
    LinkLost,
    NoRsync,
    RemoteCommand,
    RemoteShell,
    ask,
    host_of,
    listing,
    pipe,
    rsync,
)
from stoker.executors.agent.transfer.ignore_rules import NAME, IgnoreRules
from stoker.executors.agent.transfer.safe_untar import PIECE, TimeoutPipe, Wanted, parts_of, receive
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot, changed
from stoker.executors.agent.transfer.staging import AttemptWorkspace, StagedResults, alone
from stoker.executors.agent.transfer.tar_reader import Refused, TruncatedArchive
from stoker.executors.agent.transfer.upload_progress import UploadProgress

__all__ = [
    "CarryError", "DiskFull", "LinkLost", "RemoteShell", "bring", "listed_there", "pack", "send",
    "unpack",
]  # fmt: skip

ANYBODY = AttemptWorkspace()

# These run as `sh -c TEXT sh WORDS`, passed on by whatever the login shell is: so there is no
# quote and no exclamation mark in them.

# ROOT TREE PART REUSE. The rename is into the directory, where the name is taken if another
# sender won: it fails then, while `mv PART TREE` would put the one inside the other.
TAKE = """umask 077
mkdir -p "$1/trees" && cd "$1/trees" || exit 1
if [ -d "$2" ]; then echo there; exit; fi
if [ -d "$3" ]; then echo begun; fi
if [ -n "$4" ] && [ -d "$4" ]; then echo reuse; fi
mkdir -p "$3/$2" "$3/rest" || exit 1
echo ready
read -r word
if [ "$word" = finish ]; then
    [ -d "$2" ] || mv "$3/$2" . || [ -d "$2" ] || exit 1
fi
if [ -n "$word" ]; then rm -rf "$3"; fi"""
UNPACK = """umask 077
rm -rf "$1" && mkdir "$1" && cd "$1" && exec tar -xpof -"""
LIST = """cd "$1" && find . -type d -print0 && printf "%b" "\\0" &&
find . -type f -print0 -o -type l -print0"""
# Names are passed as words, in portions: lists of names (-T) are not for every tar. So what
# comes is several archives, one after the other. Only GNU's tar sees more in a backslash.
PACK = """cd "$1" || exit 1
plain=
if tar --no-unquote --version >/dev/null 2>&1; then plain=--no-unquote; fi
exec xargs -0 -n 200 sh -c "$2" "$plain" """
PORTION = """count=$#
while [ $count -gt 0 ]; do
    name=$1; shift; count=$((count - 1))
    if [ -e "$name" ] || [ -L "$name" ]; then set -- "$@" "$name"; fi
done
[ $# -eq 0 ] || exec tar $0 -cf - "$@" """


# ------------------------------------------------------------------------------- sending


class Restless(CarryError):
    """A tree that is no longer what its name says."""


def send(
    way: RemoteShell,
    tree: DirectorySnapshot,
    reuse: str | None = None,
    loose: bool = False,
    transfer: UploadProgress | None = None,
) -> None:
    """Put a tree at ROOT/trees/ID; returns when it is there, whole, whoever sent it.

    What a broken connection leaves is gone on from, with rsync; `reuse` names a tree that may
    be there already and is much like this one. `loose`: it may change meanwhile, for its name
    says nothing about its content. The tree is not forced to the other disk. `transfer` counts
    the bytes.
    """
    insist = (lambda _: None) if loose else _insist_on_rest
    mark = blake2b(os.fsencode(way.control), digest_size=4).hexdigest()
    part = f"{tree.id}.{mark}.part"  # two daemons that send the same never meet in one place
    words = (way.root, tree.id, part, reuse or "")
    with alone(way.control, tree.id), RemoteCommand(way, TAKE, *words) as errand:
        said = errand.hear(b"ready")
        if b"there" in said:
            return
        try:
            _transfer(way, tree, part, said, reuse, transfer or UploadProgress(tree.size))
        except LinkLost:
            raise  # what is there already is of use next time
        except CarryError:
            # A disk that is full should not stay so; and why says more than why this failed.
            with contextlib.suppress(CarryError):
                errand.end("remove")
            insist(tree)
            raise
        try:
            insist(tree)
        except CarryError:
            errand.end("remove")
            raise
        errand.end("finish")


def _transfer(
    way: RemoteShell,
    tree: DirectorySnapshot,
    part: str,
    said: list[bytes],
    reuse: str | None,
    transfer: UploadProgress,
) -> None:
    if way.by_rsync:
        with contextlib.suppress(NoRsync):
            _send_by_rsync(way, tree, part, said, reuse, transfer)
            return
    _send_by_tar(way, tree, part, transfer)


def _insist_on_rest(tree: DirectorySnapshot) -> None:
    name = changed(tree)
    if name is not None:
        raise Restless(
            f"'{name}' in {tree.base} changed while it was being sent; "
            f"submit again when it no longer changes, or exclude it in {NAME}."
        )


def _send_by_rsync(
    way: RemoteShell,
    tree: DirectorySnapshot,
    part: str,
    said: list[bytes],
    reuse: str | None,
    transfer: UploadProgress,
) -> None:
    trees = f"{way.root}/trees"
    more = []
    if b"reuse" in said:
        more.append(f"--link-dest={trees}/{reuse}")
    if more or b"begun" in said:
        # Size and time do not prove that a file over there is the one meant: its content does.
        more.append("--checksum")
    # A file under way lies in `rest`: what a kill leaves there must not be in the tree. One that
    # is broken off takes its place all the same, and --checksum tells it from a whole one. What
    # has vanished since the survey is noticed afterwards, unless the tree may change anyway.
    rsync(
        way, tree.names, way.address.host,
        "--links", "--perms", "--times", "--omit-dir-times", "--chmod=D700,F-s",
        "--partial", "--ignore-missing-args", f"--temp-dir={trees}/{part}/rest", *more,
        f"{tree.base.rstrip('/')}/", f"{host_of(way)}:{trees}/{part}/{tree.id}/",
        transfer=transfer,
    )  # fmt: skip


def _send_by_tar(
    way: RemoteShell, tree: DirectorySnapshot, part: str, transfer: UploadProgress
) -> None:
    command = way.shell(UNPACK, f"{way.root}/trees/{part}/{tree.id}")
    try:
        pipe(way, command, way.address.host, lambda out: pack(tree, out, transfer))
    except OSError as error:
        name = error.filename or tree.base
        raise CarryError(f"cannot read '{name}': {error.strerror or error}.") from None


class _Padded:
    """A file that may be cut short while it is read: the length that was announced must hold."""

    def __init__(self, file: io.BufferedReader, transfer: UploadProgress | None) -> None:
        self._file, self._transfer = file, transfer

    def read(self, size: int) -> bytes:
        """So many bytes, whatever there is."""
        if self._transfer is not None:
            self._transfer.count(self._transfer.sent + size)
        return self._file.read(size).ljust(size, b"\0")


def pack(tree: DirectorySnapshot, out: TimeoutPipe, transfer: UploadProgress | None = None) -> None:
    """Write a tree as tar: GNU's format, which every tar on Linux reads."""
    links = set(tree.links)
    # Closing it writes the end of the archive: not to be done for half of one. And no "w|",
    # whose objects write when they are collected, to a descriptor that is another's by then.
    tar = tarfile.TarFile(
        fileobj=out,  # type: ignore[arg-type]
        mode="w",
        format=tarfile.GNU_FORMAT,
        errors="surrogateescape",
        copybufsize=PIECE,
    )
    for name, stamp in zip(tree.names, tree.stamps, strict=True):
        path = os.path.join(tree.base, name)
        info = tarfile.TarInfo(f"./{name}")
        info.mode = 0o700
        if stamp is None:
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            continue
        info.mtime = stamp[1] // 1_000_000_000
        # As with rsync, what has vanished since the survey is noticed afterwards.
        if name in links:
            with contextlib.suppress(FileNotFoundError):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(info)
            continue
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            now = os.fstat(file.fileno())
            info.size = now.st_size
            info.mode = now.st_mode & 0o777
            tar.addfile(info, _Padded(file, transfer))  # type: ignore[arg-type]
    tar.close()
    out.flush()


# ----------------------------------------------------------------------------- fetching


def bring(
    way: RemoteShell,
    remote: str,
    names: bytes | None,
    into: str,
    exclude: Sequence[str] = (),
    owner: AttemptWorkspace = ANYBODY,
) -> str | None:
    """Fetch files from a directory there into one here; each appears whole or not at all.

    `names` are paths below `remote`, with a zero byte or a newline after each; a directory
    stands for all that is in it, and what is no longer there is passed over. None: everything.
    Returns what their owner should know about where they are.
    """
    try:
        os.makedirs(into, exist_ok=True)
        listed = listed_there(way, remote) if names is None else _split(names)
        wanted = _kept(listed, exclude)
        for name in wanted:
            _refuse_links(into, parts_of(name)[:-1])
        if not wanted:
            return None
        with StagedResults(into, owner) as landing:
            _fetch(way, remote, wanted, landing)
            landing.land()
            return landing.remark()
    except Refused as error:
        raise CarryError(f"{way.address.host}: {error}") from None
    except OSError as error:
        raise CarryError(f"cannot write to {into}: {error.strerror}.") from None


def _fetch(way: RemoteShell, remote: str, wanted: list[str], landing: StagedResults) -> None:
    if way.by_rsync:
        with contextlib.suppress(NoRsync):
            # What is here is what rsync starts from, but whether a file is the same is not for
            # its size and time to say: two jobs may write as much in the same second. Links come
            # so that they lead nowhere: rsync itself must not follow one.
            rsync(
                way, wanted, landing.into,
                "--recursive", "--links", "--munge-links", "--times", "--perms",
                "--chmod=Du+rwx,F-s", "--ignore-missing-args", "--ignore-times",
                f"--compare-dest={os.path.abspath(landing.into)}",
                f"{host_of(way)}:{remote.rstrip('/')}/", f"{landing.stage}/",
            )  # fmt: skip
            return
    _bring_by_tar(way, remote, wanted, landing)


def unpack(
    data: bytes, into: str, exclude: Sequence[str] = (), owner: AttemptWorkspace = ANYBODY
) -> str | None:
    """Put a small tar archive that came by another way into a directory."""
    try:
        with StagedResults(into, owner) as landing:
            receive(io.BytesIO(data), landing.stage, _wanted(exclude), landing.link)
            landing.land()
            return landing.remark()
    except Refused as error:
        raise CarryError(f"cannot unpack into {into}: {error}") from None
    except OSError as error:
        raise CarryError(f"cannot write to {into}: {error.strerror}.") from None


def _split(names: bytes) -> list[str]:
    end = b"\0" if b"\0" in names else b"\n"
    return [os.fsdecode(name) for name in names.split(end) if name]


def listed_there(way: RemoteShell, remote: str) -> list[str]:
    """Everything in a directory there: files, links and directories with nothing in them."""
    listed = ask(way, LIST, remote, most=MAX_LISTING)
    raw_directories, _, raw_files = listed.partition(b"\0\0")
    directories, files = _split(raw_directories + b"\0"), _split(raw_files)
    full = {name.rpartition("/")[0] for name in (*directories, *files)}
    return [*files, *(name for name in directories if name not in full and name != ".")]


def _kept(names: Iterable[str], exclude: Sequence[str]) -> list[str]:
    wanted = _wanted(exclude)
    return [name for name in names if wanted(name, name.endswith("/"))]


def _wanted(exclude: Sequence[str]) -> Wanted:
    """Whether neither a path itself nor a directory above it is excluded."""
    rules = IgnoreRules.always(exclude)
    known: dict[str, bool] = {}

    def out(parts: list[str], is_dir: bool) -> bool:
        path = "/".join(parts)
        if not path or not is_dir:
            return bool(path) and (out(parts[:-1], True) or rules.excluded(path, is_dir))
        if path not in known:
            known[path] = out(parts[:-1], True) or rules.excluded(path, True)
        return known[path]

    return lambda name, is_dir: not out(parts_of(name), is_dir)


def _refuse_links(into: str, parts: list[str]) -> None:
    """A link of the user's among the directories here is neither followed nor replaced."""
    for depth in range(1, len(parts) + 1):
        if os.path.islink(os.path.join(into, *parts[:depth])):
            raise Refused(
                f"'{'/'.join(parts[:depth])}' is a symbolic link in {into}; move it away."
            )


def _bring_by_tar(way: RemoteShell, remote: str, names: list[str], landing: StagedResults) -> None:
    def take(source: TimeoutPipe) -> None:
        if not source.skip_past(MARK):
            raise TruncatedArchive("no data received")
        if source.more():
            receive(source, landing.stage, link=landing.link)

    with tempfile.TemporaryFile() as list:
        list.write(listing(names))
        list.seek(0)
        pipe(way, way.shell(PACK, remote, PORTION), landing.into, take, list)
