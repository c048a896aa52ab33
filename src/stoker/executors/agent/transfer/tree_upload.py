"""Sends directory snapshots to a node, by rsync or tar.

Everything here blocks, so it is called in a thread. Every failure is a CarryError; its
message is one sentence.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from hashlib import blake2b

from stoker.executors.agent.session.remote_shell import (
    CarryError,
    LinkLost,
    NoRsync,
    RemoteCommand,
    RemoteShell,
    pipe,
    rsync,
)
from stoker.executors.agent.session.timeout_pipe import PIECE, TimeoutPipe
from stoker.executors.agent.transfer.ignore_rules import NAME
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot, changed
from stoker.executors.agent.transfer.staging import exclusive
from stoker.executors.agent.transfer.upload_progress import UploadProgress

# These run as `sh -c TEXT sh WORDS` through any login shell: they contain neither quotes nor
# exclamation marks.

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


class TreeChanged(CarryError):
    """The files were changed after the snapshot."""


def send(
    shell: RemoteShell,
    tree: DirectorySnapshot,
    reuse: str | None = None,
    loose: bool = False,
    progress: UploadProgress | None = None,
) -> None:
    """Send a tree to ROOT/trees/ID; return when it is complete there.

    What a broken connection leaves is gone on from, with rsync; `reuse` names a tree that may
    be there already and is much like this one. `loose`: it may change meanwhile, for its name
    does not identify its content. The tree is not forced to the other disk. `progress` counts
    the bytes.
    """
    check_unchanged = (lambda _: None) if loose else _require_unchanged
    mark = blake2b(os.fsencode(shell.transport.key), digest_size=4).hexdigest()
    part = f"{tree.id}.{mark}.part"  # uploads of two daemons never share a directory
    words = (shell.root, tree.id, part, reuse or "")
    with exclusive(shell.transport.key, tree.id), RemoteCommand(shell, TAKE, *words) as command:
        answers = command.read_until(b"ready")
        if b"there" in answers:
            return
        try:
            _transfer(shell, tree, part, answers, reuse, progress or UploadProgress(tree.size))
        except LinkLost:
            raise  # the next try continues with what has arrived
        except CarryError:
            # Free a full disk; and the first error says more than that of the cleanup.
            with contextlib.suppress(CarryError):
                command.finish("remove")
            check_unchanged(tree)
            raise
        try:
            check_unchanged(tree)
        except CarryError:
            command.finish("remove")
            raise
        command.finish("finish")


def _transfer(
    shell: RemoteShell,
    tree: DirectorySnapshot,
    part: str,
    answers: list[bytes],
    reuse: str | None,
    progress: UploadProgress,
) -> None:
    if shell.uses_rsync:
        with contextlib.suppress(NoRsync):
            _send_by_rsync(shell, tree, part, answers, reuse, progress)
            return
    _send_by_tar(shell, tree, part, progress)


def _require_unchanged(tree: DirectorySnapshot) -> None:
    name = changed(tree)
    if name is not None:
        raise TreeChanged(
            f"'{name}' in {tree.base} changed while it was being sent; "
            f"submit again when it no longer changes, or exclude it in {NAME}."
        )


def _send_by_rsync(
    shell: RemoteShell,
    tree: DirectorySnapshot,
    part: str,
    answers: list[bytes],
    reuse: str | None,
    progress: UploadProgress,
) -> None:
    trees = f"{shell.root}/trees"
    more = []
    if b"reuse" in answers:
        more.append(f"--link-dest={trees}/{reuse}")
    if more or b"begun" in answers:
        # Size and time do not prove that a file on the node is the same: its content does.
        more.append("--checksum")
    # A file under shell lies in `rest`: what a kill leaves there must not be in the tree. One that
    # is broken off takes its place all the same, and --checksum tells it from a whole one. What
    # has vanished since the snapshot is noticed afterwards, unless the tree may change anyway.
    rsync(
        shell, tree.names, shell.host,
        "--links", "--perms", "--times", "--omit-dir-times", "--chmod=D700,F-s",
        "--partial", "--ignore-missing-args", f"--temp-dir={trees}/{part}/rest", *more,
        f"{tree.base.rstrip('/')}/", shell.rsync_path(f"{trees}/{part}/{tree.id}/"),
        on_progress=progress.count,
    )  # fmt: skip


def _send_by_tar(
    shell: RemoteShell, tree: DirectorySnapshot, part: str, progress: UploadProgress
) -> None:
    command = shell.command(UNPACK, f"{shell.root}/trees/{part}/{tree.id}")
    try:
        pipe(shell, command, shell.host, lambda out: pack(tree, out, progress))
    except OSError as error:
        name = error.filename or tree.base
        raise CarryError(f"cannot read '{name}': {error.strerror or error}.") from None


class _Padded:
    """A file that may be truncated while it is read: its announced length must hold."""

    def __init__(self, file: io.BufferedReader, progress: UploadProgress | None) -> None:
        self._file, self._progress = file, progress

    def read(self, size: int) -> bytes:
        """Return exactly this number of bytes, whatever the file has."""
        if self._progress is not None:
            self._progress.count(self._progress.sent + size)
        return self._file.read(size).ljust(size, b"\0")


def pack(tree: DirectorySnapshot, out: TimeoutPipe, progress: UploadProgress | None = None) -> None:
    """Write a tree as a tar archive in GNU format, which every tar on Linux reads."""
    links = set(tree.links)
    # Closing it writes the end of the archive, so an incomplete one is not closed. No "w|": such
    # objects write when they are collected, to a descriptor that may be reused by then.
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
        # As with rsync, files that were removed since the snapshot are noticed afterwards.
        if name in links:
            with contextlib.suppress(FileNotFoundError):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(info)
            continue
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            now = os.fstat(file.fileno())
            info.size = now.st_size
            info.mode = now.st_mode & 0o777
            tar.addfile(info, _Padded(file, progress))  # type: ignore[arg-type]
    tar.close()
    out.flush()
