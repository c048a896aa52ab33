"""Extracts tar streams of a node: files appear whole or not at all, and never outside.

Every directory of a path is opened by itself, never through a link. So links in the stream, or
those that exist already, do no harm.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable

from stoker.executors.agent.transfer.tar_reader import Archive, Kind, Member, Refused, Source

LONGEST_PATH, LONGEST_NAME, DEEPEST_PATH = 4096, 255, 256
"""Characters of a path and of a name in it, and names in a path."""


PathFilter = Callable[[str, bool], bool]
"""Returns whether a path, of a directory or not, is extracted."""
Link = Callable[[str, str], str | None]
"""Returns the target for a link with this name and target; None: the link is left out."""


def everything(_name: str, _is_dir: bool) -> bool:
    """Extract everything."""
    return True


def safe_link(name: str, target: str) -> str | None:
    """Leave out links that point outside, like --safe-links of rsync."""
    return target if stays_inside(name, target) else None


def receive(
    source: Source, into: str, is_wanted: PathFilter = everything, link: Link = safe_link
) -> None:
    """Extract a stream of tar archives into an existing directory."""
    base = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        archive = Archive(source)
        for member in archive:
            if is_wanted(member.name, member.kind is Kind.DIRECTORY):
                _extract(archive, member, base, link)
    finally:
        os.close(base)


def parts_of(name: str) -> list[str]:
    """Return the components of a relative path; raise if it points outside or is too long."""
    if len(name) > LONGEST_PATH:
        raise Refused(f"'{name[:40]}…' is longer than {LONGEST_PATH} characters.")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"'{name}' would be outside the directory and was rejected.")
    if len(parts) > DEEPEST_PATH or any(len(part) > LONGEST_NAME for part in parts):
        raise Refused(f"'{name[:40]}…' is nested too deeply or contains an overlong name.")
    return parts


def stays_inside(name: str, target: str) -> bool:
    """Return whether a link with this name and target points into the same tree."""
    depth = len(parts_of(name)) - 1
    for step in target.split("/"):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return False
    return not target.startswith("/")


def _extract(archive: Archive, member: Member, base: int, link: Link) -> None:
    parts = parts_of(member.name)
    if not parts:
        return
    if member.kind is Kind.DIRECTORY:
        os.close(directory(base, parts))
        return
    if member.kind is Kind.OTHER:
        return  # a pipe or a device is no result
    target = link(member.name, member.target) if member.kind is Kind.LINK else ""
    if target is None:
        return
    directory_fd = directory(base, parts[:-1])
    new = f".stoker-{secrets.token_hex(6)}"
    try:
        if member.kind is Kind.LINK:
            os.symlink(target, new, dir_fd=directory_fd)
        elif member.kind is Kind.SECOND_NAME:
            _link(base, parts_of(member.target), directory_fd, new)
        else:
            _write(archive, member, directory_fd, new)
        os.rename(new, parts[-1], src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory_fd)
        os.close(directory_fd)


def directory(base: int, parts: list[str], mode: int | None = None) -> int:
    """Open a directory below `base`; create missing ones, with this mode if one is given."""
    current = os.dup(base)
    for depth, part in enumerate(parts):
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=current)
            if mode is not None:
                os.chmod(part, mode, dir_fd=current)
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        except NotADirectoryError:
            name = "/".join(parts[: depth + 1])
            raise Refused(f"'{name}' is a link or a file on this machine; move it away.") from None
        finally:
            os.close(current)
        current = below
    return current


def _link(base: int, parts: list[str], directory_fd: int, new: str) -> None:
    """Create a hard link to a file that was extracted before."""
    if not parts:
        raise Refused("a hard link refers to the directory itself.")
    other = directory(base, parts[:-1])
    try:
        os.link(parts[-1], new, src_dir_fd=other, dst_dir_fd=directory_fd, follow_symlinks=False)
    finally:
        os.close(other)


def _write(archive: Archive, member: Member, directory_fd: int, new: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(new, flags, 0o600, dir_fd=directory_fd), "wb", buffering=0) as file:
        for piece in archive.content():
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]
        os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))
