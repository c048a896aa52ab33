"""The tool `log`: part of the output of a job, read in pieces."""

from __future__ import annotations

from collections import deque

from stoker.client.client import Client
from stoker.compat.mcp.text import fenced
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_LINES = 2000
DEFAULT_LINES = 100
MAX_SCANNED_BYTES = 256 << 20
MAX_LINE_BYTES = 1 << 16
ERROR_MARKS = (
    b"traceback (most recent call last)", b"error:", b"out of memory", b"segmentation fault",
    b"assertionerror", b"command not found", b"no such file or directory", b"killed", b"fatal",
    b"exception:",
)  # fmt: skip
LINES_BEFORE_ERROR = 20


def log(client: Client, given: JsonObject) -> JsonObject:
    """Return part of the output of a job."""
    count = given.get("lines", DEFAULT_LINES)
    is_scan = bool(given.get("find") or given.get("around_error"))
    pieces = client.log(
        given["job"], tail=None if is_scan else count, attempt=given.get("attempt"),
        stream=given.get("stream"),
    )  # fmt: skip
    if given.get("find"):
        lines = list(_matching(_lines(pieces), given["find"], count))
    elif is_scan:
        lines = around_error(_lines(pieces), count)
    else:
        lines = list(deque(_lines(pieces), count))
    output, is_cut = fenced(f"output of job {given['job']}", b"\n".join(lines),
                            from_end=not is_scan)  # fmt: skip
    return {"job": given["job"], "lines": len(lines), "shortened": is_cut, "output": output}


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of an output; of what is longer than MAX_SCANNED_BYTES only the start."""
    rest, scanned = b"", 0
    for piece in pieces:
        scanned += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line[-MAX_LINE_BYTES:] for line in lines)
        rest = rest[-MAX_LINE_BYTES:]
        if scanned > MAX_SCANNED_BYTES:
            break
    if rest:
        yield rest


def _matching(lines: Iterator[bytes], text: str, count: int) -> deque[bytes]:
    """Return the last lines that contain a text, with their numbers."""
    wanted = text.lower().encode()
    found: deque[bytes] = deque(maxlen=count)
    for number, line in enumerate(lines, 1):
        if wanted in line.lower():
            found.append(b"%d: %s" % (number, line))
    return found


def around_error(lines: Iterable[bytes], count: int) -> list[bytes]:
    """Return the lines around the first one that looks like an error; without one, none."""
    before: deque[bytes] = deque(maxlen=min(LINES_BEFORE_ERROR, count // 2))
    found: list[bytes] = []
    for line in lines:
        if found or any(mark in line.lower() for mark in ERROR_MARKS):
            found = found or [*before]
            found.append(line)
            if len(found) >= count:
                break
        before.append(line)
    return found
