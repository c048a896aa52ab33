"""Files out of a tar stream that somebody else made: whole or not at all, and never outside.

Every directory on the way to a file is opened by itself, never through a link. So it does not
matter what links the stream brings, or what is there already.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import tarfile
from collections.abc import Callable
from typing import IO, Protocol, Self

PIECE = 1 << 18
NO_ARCHIVE = "what came is no tar archive, or half of one."


class Refused(Exception):
    """The stream holds what cannot be put there; the message is one sentence."""


class Torn(Refused):
    """The stream ends in the middle, or never was an archive."""


class Stalled(Exception):
    """The other side neither gave nor took a byte for too long."""


Wanted = Callable[[str, bool], bool]
"""Whether a path, of a directory or not, is to be put anywhere."""
Link = Callable[[str, str], str | None]
"""What a link of this name that leads to that is to lead to here; none: it is left out."""


class Source(Protocol):
    """Where a stream is read from."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; none at the end."""


class Patient:
    """A pipe that is read or written with a limit to the waiting."""

    def __init__(self, pipe: IO[bytes], seconds: float) -> None:
        self._fd, self._seconds = pipe.fileno(), seconds
        os.set_blocking(self._fd, False)
        self._ahead, self._behind, self._taken = b"", bytearray(), 0

    def read(self, size: int) -> bytes:
        """What is there, up to so many bytes; none at the end."""
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        if not select.select([self._fd], [], [], self._seconds)[0]:
            raise Stalled
        return os.read(self._fd, size)

    def skip_past(self, mark: bytes) -> bool:
        """Read on behind this mark; False if it does not come. Login scripts may talk first."""
        seen = b""
        while mark not in seen and len(seen) < PIECE:
            piece = self.read(4096)
            if not piece:
                return False
            seen += piece
        _, found, self._ahead = seen.partition(mark)
        return bool(found)

    def more(self) -> bool:
        """Whether anything is left to read."""
        self._ahead = self._ahead or self.read(4096)
        return bool(self._ahead)

    def write(self, data: bytes) -> int:
        """Take it all; it goes out in large pieces, the last of them with `flush`."""
        self._behind += data
        self._taken += len(data)
        if len(self._behind) >= PIECE:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """How much was written: tarfile asks once."""
        return self._taken

    def flush(self) -> None:
        """Send what is left."""
        left = memoryview(self._behind)
        self._behind = bytearray()
        while left:
            if not select.select([], [self._fd], [], self._seconds)[1]:
                raise Stalled
            left = left[os.write(self._fd, left) :]


class _Header(tarfile.TarInfo):
    """A header that is what it should be: by itself, tarfile takes any other for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if any(buf):  # zeros, or nothing, are an end
                raise Torn(NO_ARCHIVE) from None
            raise


def everything(_name: str, _is_dir: bool) -> bool:
    """All of it is wanted."""
    return True


def safe_link(name: str, target: str) -> str | None:
    """As rsync's --safe-links has it: those that lead out are left out."""
    return target if stays_inside(name, target) else None


def receive(source: Source, into: str, wanted: Wanted = everything, link: Link = safe_link) -> None:
    """Put what is in a stream of tar archives below `into`, which is there."""
    base = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tarfile.open(  # type: ignore[call-overload]
            fileobj=source,
            mode="r|",
            bufsize=PIECE,
            tarinfo=_Header,
            errors="surrogateescape",
            ignore_zeros=True,  # they are what is between two archives
        ) as tar:
            for member in tar:
                if wanted(member.name, member.isdir()):
                    _put(tar, member, base, link)
    except tarfile.TarError:
        raise Torn(NO_ARCHIVE) from None
    finally:
        os.close(base)


def parts_of(name: str) -> list[str]:
    """The steps of a relative path; one that leads elsewhere is refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise Refused(f"'{name}' would lie outside of the directory; nothing is put there.")
    return parts


def stays_inside(name: str, target: str) -> bool:
    """Whether a link of this name that leads to `target` stays in the same tree."""
    depth = len(parts_of(name)) - 1
    for step in target.split("/"):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return False
    return not target.startswith("/")


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, base: int, link: Link) -> None:
    parts = parts_of(member.name)
    if not parts:
        return
    if member.isdir():
        os.close(directory(base, parts))
        return
    if not (member.isreg() or member.islnk() or member.issym()):
        return  # a pipe or a device is no result
    target = link(member.name, member.linkname) if member.issym() else ""
    if target is None:
        return
    place = directory(base, parts[:-1])
    new = f".stoker-{secrets.token_hex(6)}"
    try:
        if member.issym():
            os.symlink(target, new, dir_fd=place)
        elif member.islnk():
            _link(base, parts_of(member.linkname), place, new)
        else:
            _write(tar, member, place, new)
        os.rename(new, parts[-1], src_dir_fd=place, dst_dir_fd=place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=place)
        os.close(place)


def directory(base: int, parts: list[str], mode: int | None = None) -> int:
    """Open a directory below `base`, made where it is missing, with this mode if one is given."""
    here = os.dup(base)
    for depth, part in enumerate(parts):
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=here)
            if mode is not None:
                os.chmod(part, mode, dir_fd=here)
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        except NotADirectoryError:
            name = "/".join(parts[: depth + 1])
            raise Refused(f"'{name}' is a link or a file here; move it away.") from None
        finally:
            os.close(here)
        here = below
    return here


def _link(base: int, parts: list[str], place: int, new: str) -> None:
    """A second name for a file that came before."""
    if not parts:
        raise Refused("a file is said to be another name of the directory itself.")
    other = directory(base, parts[:-1])
    try:
        os.link(parts[-1], new, src_dir_fd=other, dst_dir_fd=place, follow_symlinks=False)
    finally:
        os.close(other)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: int, new: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    content = tar.extractfile(member)
    assert content is not None
    with open(os.open(new, flags, 0o600, dir_fd=place), "wb", buffering=0) as file:
        shutil.copyfileobj(content, file, PIECE)
        os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))
