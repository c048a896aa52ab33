"""Print the last lines of the daemon's log, across a rotation, and follow it."""

from __future__ import annotations

import os
import sys
import time

from stoker import places
from stoker.cli import output
from stoker.client.errors import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

DEFAULT_LINES = 50
PAUSE_SECONDS = 0.2
"""Between two reads of a followed log."""


def show(lines: int | None, *, follow: bool) -> int:
    """Print the last lines (all for `lines` 0); with `follow`, continue until ^C."""
    path = places.daemon_log()
    try:
        file = open(path, "rb")  # noqa: SIM115 - replaced when the log is rotated
    except FileNotFoundError:
        raise NotFound(f"There is no log yet: no daemon has run here ({path}).") from None
    text = _read_whole_lines(file) if follow else file.read()
    last = _last_lines(path, text, DEFAULT_LINES if lines is None else lines)
    if output.wants_json:
        return output.emit({"log": path, "lines": [output.clean(line) for line in last]})
    _print(last)
    while follow:
        sys.stdout.flush()
        time.sleep(PAUSE_SECONDS)
        replaced = _was_replaced(
            path, file
        )  # checked first: its last lines come before the new file
        _print(_split_lines(_read_whole_lines(file)))
        if replaced:
            file.close()
            file = open(path, "rb")  # noqa: SIM115
    return 0


def _last_lines(path: str, text: bytes, count: int) -> list[str]:
    """Return the last lines; after a rotation, also from the previous file."""
    lines = _split_lines(text)
    if count and len(lines) < count:
        try:
            with open(f"{path}.1", "rb") as earlier:
                lines = _split_lines(earlier.read()) + lines
        except FileNotFoundError:
            pass
    return lines[-count:]


def _read_whole_lines(file: BinaryIO) -> bytes:
    """Return the complete lines that were added since the last read."""
    text = file.read()
    unfinished = len(text) - text.rfind(b"\n") - 1
    file.seek(-unfinished, os.SEEK_CUR)
    return text[: len(text) - unfinished]


def _was_replaced(path: str, file: BinaryIO) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False  # between the two steps of a rotation


def _split_lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").removesuffix("\n").split("\n") if text else []


def _print(lines: list[str]) -> None:
    for line in lines:
        print(output.clean(line))
