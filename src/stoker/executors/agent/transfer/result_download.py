"""Fetches results of attempts from a node, by rsync or tar.

Everything here blocks, so it is called in a thread. Every failure is a CarryError; its
message is one sentence.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterable, Sequence

from stoker.executors.agent.session.remote_shell import (
    MARK,
    MAX_LISTING_BYTES,
    CarryError,
    NoRsync,
    RemoteShell,
    listing,
    pipe,
    rsync,
    run,
)
from stoker.executors.agent.session.timeout_pipe import TimeoutPipe
from stoker.executors.agent.transfer.ignore_rules import IgnoreRules
from stoker.executors.agent.transfer.safe_untar import PathFilter, parts_of, receive
from stoker.executors.agent.transfer.staging import AttemptWorkspace, StagedResults
from stoker.executors.agent.transfer.tar_reader import Refused, TruncatedArchive

NO_WORKSPACE = AttemptWorkspace()

# Like the scripts of tree_upload, these contain neither quotes nor exclamation marks, so that any
# login shell passes them on.
LIST = """cd "$1" && find . -type d -print0 && printf "%b" "\\0" &&
find . -type f -print0 -o -type l -print0"""
# Names are passed as arguments, in portions, since not every tar reads lists of names (-T). The
# result is several archives, one after the other. Only GNU tar interprets backslashes.
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


def download(
    shell: RemoteShell,
    remote: str,
    names: bytes | None,
    into: str,
    exclude: Sequence[str] = (),
    workspace: AttemptWorkspace = NO_WORKSPACE,
) -> str | None:
    """Fetch files from a directory on the node into one here; each appears whole or not at all.

    `names` are paths below `remote`, with a zero byte or a newline after each; a directory means
    everything in it, and missing files are skipped. None: everything. Returns a remark for the
    user, if there is one.
    """
    try:
        os.makedirs(into, exist_ok=True)
        listed = list_remote(shell, remote) if names is None else _split(names)
        names_to_fetch = _filtered(listed, exclude)
        for name in names_to_fetch:
            _refuse_links(into, parts_of(name)[:-1])
        if not names_to_fetch:
            return None
        with StagedResults(into, workspace) as staged:
            _fetch(shell, remote, names_to_fetch, staged)
            staged.install()
            return staged.remark()
    except Refused as error:
        raise CarryError(f"{shell.host}: {error}") from None
    except OSError as error:
        raise CarryError(f"cannot write to {into}: {error.strerror}.") from None


def _fetch(shell: RemoteShell, remote: str, names: list[str], staged: StagedResults) -> None:
    if shell.uses_rsync:
        with contextlib.suppress(NoRsync):
            # rsync starts from the files here, but size and time do not show that a file is the
            # same: two jobs may write as much in the same second. Links are disabled (munged):
            # rsync itself must not follow one.
            rsync(
                shell, names, staged.into,
                "--recursive", "--links", "--munge-links", "--times", "--perms",
                "--chmod=Du+rwx,F-s", "--ignore-missing-args", "--ignore-times",
                f"--compare-dest={os.path.abspath(staged.into)}",
                shell.rsync_path(f"{remote.rstrip('/')}/"), f"{staged.stage}/",
            )  # fmt: skip
            return
    _download_by_tar(shell, remote, names, staged)


def unpack(
    data: bytes, into: str, exclude: Sequence[str] = (), workspace: AttemptWorkspace = NO_WORKSPACE
) -> str | None:
    """Install a small tar archive that came through the agent's connection."""
    try:
        with StagedResults(into, workspace) as staged:
            receive(io.BytesIO(data), staged.stage, _not_excluded(exclude), staged.link)
            staged.install()
            return staged.remark()
    except Refused as error:
        raise CarryError(f"cannot unpack into {into}: {error}") from None
    except OSError as error:
        raise CarryError(f"cannot write to {into}: {error.strerror}.") from None


def _split(names: bytes) -> list[str]:
    end = b"\0" if b"\0" in names else b"\n"
    return [os.fsdecode(name) for name in names.split(end) if name]


def list_remote(shell: RemoteShell, remote: str) -> list[str]:
    """Return everything in a directory on the node: files, links and empty directories."""
    listed = run(shell, LIST, remote, max_bytes=MAX_LISTING_BYTES)
    raw_directories, _, raw_files = listed.partition(b"\0\0")
    directories, files = _split(raw_directories + b"\0"), _split(raw_files)
    full = {name.rpartition("/")[0] for name in (*directories, *files)}
    return [*files, *(name for name in directories if name not in full and name != ".")]


def _filtered(names: Iterable[str], exclude: Sequence[str]) -> list[str]:
    is_wanted = _not_excluded(exclude)
    return [name for name in names if is_wanted(name, name.endswith("/"))]


def _not_excluded(exclude: Sequence[str]) -> PathFilter:
    """Return a filter: neither a path nor a directory above it may be excluded."""
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
    """Reject links among the directories here: they are neither followed nor replaced."""
    for depth in range(1, len(parts) + 1):
        if os.path.islink(os.path.join(into, *parts[:depth])):
            raise Refused(
                f"'{'/'.join(parts[:depth])}' is a symbolic link in {into}; move it away."
            )


def _download_by_tar(
    shell: RemoteShell, remote: str, names: list[str], staged: StagedResults
) -> None:
    def take(source: TimeoutPipe) -> None:
        if not source.skip_past(MARK):
            raise TruncatedArchive("no data received")
        if source.more():
            receive(source, staged.stage, link=staged.link)

    with tempfile.TemporaryFile() as list:
        list.write(listing(names))
        list.seek(0)
        pipe(shell, shell.command(PACK, remote, PORTION), staged.into, take, list)
