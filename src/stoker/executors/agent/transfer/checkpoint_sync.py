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

PLACE = "checkpoints"

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


def name_of(here: str) -> str:
    """Return the name of a job's checkpoint directory, the same on all nodes."""
    return os.path.basename(here)


def send(shell: RemoteShell, here: str) -> None:
    """Make the checkpoints on a node those of this node; do nothing if there are none."""
    with exclusive("saved", shell.transport.key, here):
        _send(shell, here)


def _send(shell: RemoteShell, here: str) -> None:
    try:
        if not os.path.isdir(here) or not os.listdir(here):
            return
        if shell.uses_rsync:
            with contextlib.suppress(NoRsync):
                rsync(
                    shell, ["."], shell.host, *EXACTLY, "--delete-after",
                    f"{here}/", shell.rsync_path(f"{_there(shell, here)}/"),
                )  # fmt: skip
                return
        _send_by_tar(shell, here)
    except OSError as error:
        raise CarryError(f"cannot read {error.filename or here}: {error.strerror}.") from None


def _there(shell: RemoteShell, here: str) -> str:
    return f"{shell.root}/{PLACE}/{name_of(here)}"


def _send_by_tar(shell: RemoteShell, here: str) -> None:
    try:
        tree = take_snapshot(here)
    except BadPath as error:
        raise CarryError(str(error)) from None
    words = (shell.root, name_of(here))
    pipe(shell, shell.command(TAKE, *words), shell.host, lambda out: pack(tree, out))
    run(shell, SWAP, *words)


def download(shell: RemoteShell, here: str, part: int | None = None) -> None:
    """Make the checkpoints on this node those of another one.

    Of a job on several nodes, each may have a part of them: then nothing is removed, and of two
    files with one name, that of the first node wins, or the newer one.
    """
    with exclusive("saved", here):
        _download(shell, here, part)


def _download(shell: RemoteShell, here: str, part: int | None) -> None:
    there = _there(shell, here)
    try:
        os.makedirs(here, 0o700, exist_ok=True)
        if shell.uses_rsync:
            with contextlib.suppress(NoRsync):
                more = ("--delete-after",) if part is None else ("--update",) if part else ()
                rsync(
                    shell, ["."], here, *EXACTLY, "--chmod=Du+rwx,F-s", *more,
                    shell.rsync_path(f"{there}/"), f"{here}/",
                )  # fmt: skip
                return
        names = result_download.listed_there(shell, there)
        result_download.download(
            shell, there, b"".join(os.fsencode(name) + b"\0" for name in names), here,
            workspace=AttemptWorkspace(stage=f"{PLACE}-{name_of(here)}"),
        )  # fmt: skip
        if part is None:
            _remove_others(here, {os.path.normpath(name) for name in names})
    except OSError as error:
        raise CarryError(f"cannot write to {here}: {error.strerror}.") from None


def _remove_others(here: str, wanted: set[str]) -> None:
    for directory, inner, files in os.walk(here, topdown=False):
        for name in files:
            path = os.path.join(directory, name)
            if os.path.relpath(path, here) not in wanted:
                os.unlink(path)
        for name in inner:
            path = os.path.join(directory, name)
            if os.path.islink(path) and os.path.relpath(path, here) not in wanted:
                os.unlink(path)
            elif os.path.relpath(path, here) not in wanted:
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(path)
