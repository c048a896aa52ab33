"""Whether only root can change a file: it, every directory above it, and links on the way."""

from __future__ import annotations

import contextlib
import os
import stat

MAX_LINKS = 40


def reason_against(path: str) -> str | None:
    """Return which part of `path` another user could change or replace, or None.

    A sticky directory such as /tmp is accepted, because only the owner of an entry can replace it
    there, and the entry is checked as well.
    """
    pending = os.path.abspath(path).split("/")[1:]
    current, links = "/", 0
    while True:
        try:
            status = os.lstat(current)
        except OSError as error:
            return f"{current}: {error.strerror}"
        if status.st_uid != 0:
            return f"{current} belongs to uid {status.st_uid}, not to root"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                return f"{path}: too many links"
            target = os.path.join(os.path.dirname(current), os.readlink(current))
            pending = [*os.path.normpath(target).split("/")[1:], *pending]
            current = "/"
            continue
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & 0o022 and not sticky:
            return f"{current} can be written by other users"
        if not pending:
            return None
        current = os.path.join(current, pending.pop(0))


def own_directory(path: str, mode: int) -> str | None:
    """Create a directory of root with `mode`, or return why an existing one is not safe."""
    parent = os.path.dirname(os.path.abspath(path))
    reason = reason_against(parent)
    if reason is not None:
        return reason
    try:
        os.mkdir(path, mode)
        os.chmod(path, mode)  # whatever the umask is; the parent is root's, so it is still ours
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a directory"
    return reason_against(path)


def give_directory(path: str, uid: int, gid: int) -> None:
    """Create a directory of another user in one that only root can change."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.fchown(fd, uid, gid)
    os.fchmod(fd, 0o755)
    os.close(fd)
