"""Copies checkpoints to and from a node: a job may resume on any.

Unlike results, one side has the valid ones and the other gets exactly those: what a job has
removed must not be found by its next attempt. Everything here blocks, so it is called in a
thread. Every failure is a CarryError, and what was there before is still complete.
"""

from __future__ import annotations

import contextlib
import os

from stoker.executors.agent.session.remote_shell import (
    CarryError,
    NoRsync,
    RemoteShell,
    pipe,
    rsync,
    run,
)
from stoker.executors.agent.transfer import result_download
from stoker.executors.agent.transfer.snapshot import BadPath, take_snapshot
from stoker.executors.agent.transfer.staging import AttemptWorkspace, exclusive
from stoker.executors.agent.transfer.tree_upload import pack

REMOTE_DIR = "checkpoints"

# All files are put in place together, at the end. Files count as the same only if their times are
# equal to the nanosecond (-1): a checkpoint often has the size and the second of the one before.
EXACTLY = (
    "--recursive", "--links", "--safe-links", "--perms", "--times", "--omit-dir-times",
    "--modify-window=-1", "--delay-updates",
)  # fmt: skip

# ROOT NAME. First all files beside the old ones, then in their place.
TAKE = """umask 077
mkdir -p "$1/checkpoints" && cd "$1/checkpoints" || exit 1
rm -rf "$2.new" && mkdir "$2.new" && cd "$2.new" && exec tar -xpof -"""
SWAP = """cd "$1/checkpoints" || exit 1
rm -rf "$2.old"
if [ -d "$2" ]; then mv "$2" "$2.old" || exit 1; fi
mv "$2.new" "$2" && rm -rf "$2.old" """


def name_of(directory: str) -> str:
    """Return the name of a job's checkpoint directory, the same on all nodes."""
    return os.path.basename(directory)


def send(shell: RemoteShell, directory: str) -> None:
    """Make the checkpoints on a node those of this node; do nothing if there are none."""
    with exclusive("saved", shell.transport.key, directory):
        _send(shell, directory)


def _send(shell: RemoteShell, directory: str) -> None:
    try:
        if not os.path.isdir(directory) or not os.listdir(directory):
            return
        if shell.uses_rsync:
            with contextlib.suppress(NoRsync):
                rsync(
                    shell, ["."], shell.host, *EXACTLY, "--delete-after",
                    f"{directory}/", shell.rsync_path(f"{_remote_path(shell, directory)}/"),
                )  # fmt: skip
                return
        _send_by_tar(shell, directory)
    except OSError as error:
        raise CarryError(f"cannot read {error.filename or directory}: {error.strerror}.") from None


def _remote_path(shell: RemoteShell, directory: str) -> str:
    return f"{shell.root}/{REMOTE_DIR}/{name_of(directory)}"


def _send_by_tar(shell: RemoteShell, directory: str) -> None:
    try:
        tree = take_snapshot(directory)
    except BadPath as error:
        raise CarryError(str(error)) from None
    words = (shell.root, name_of(directory))
    pipe(shell, shell.command(TAKE, *words), shell.host, lambda out: pack(tree, out))
    run(shell, SWAP, *words)


def download(shell: RemoteShell, directory: str, part: int | None = None) -> None:
    """Make the checkpoints on this node those of another one.

    Of a job on several nodes, each may have a part of them: then nothing is removed, and of two
    files with one name, that of the first node wins, or the newer one.
    """
    with exclusive("saved", directory):
        _download(shell, directory, part)


def _download(shell: RemoteShell, directory: str, part: int | None) -> None:
    remote = _remote_path(shell, directory)
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if shell.uses_rsync:
            with contextlib.suppress(NoRsync):
                more = ("--delete-after",) if part is None else ("--update",) if part else ()
                rsync(
                    shell, ["."], directory, *EXACTLY, "--chmod=Du+rwx,F-s", *more,
                    shell.rsync_path(f"{remote}/"), f"{directory}/",
                )  # fmt: skip
                return
        names = result_download.list_remote(shell, remote)
        result_download.download(
            shell, remote, b"".join(os.fsencode(name) + b"\0" for name in names), directory,
            workspace=AttemptWorkspace(stage=f"{REMOTE_DIR}-{name_of(directory)}"),
        )  # fmt: skip
        if part is None:
            _remove_others(directory, {os.path.normpath(name) for name in names})
    except OSError as error:
        raise CarryError(f"cannot write to {directory}: {error.strerror}.") from None


def _remove_others(directory: str, names: set[str]) -> None:
    for parent, inner, files in os.walk(directory, topdown=False):
        for name in files:
            path = os.path.join(parent, name)
            if os.path.relpath(path, directory) not in names:
                os.unlink(path)
        for name in inner:
            path = os.path.join(parent, name)
            if os.path.islink(path) and os.path.relpath(path, directory) not in names:
                os.unlink(path)
            elif os.path.relpath(path, directory) not in names:
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(path)
