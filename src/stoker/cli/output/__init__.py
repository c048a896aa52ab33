"""Results on stdout, messages on stderr, one JSON value with --json."""

from __future__ import annotations

import os
import sys

from stoker.client import fast_json
from stoker.terminal import clean, write_raw

__all__ = ["clean", "counted", "emit", "is_terminal", "report", "say", "show_progress"]

wants_json = False
"""Set by the option parser for --json, so that errors are JSON as well."""
force_colour: bool | None = None
"""Set by the option parser for --color or --no-color."""


def say(text: str) -> None:
    """Print a message on stderr."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, AttributeError):
        pass  # stderr is closed (then it is None); the command must not fail


def show_progress(text: str) -> None:
    """Replace the progress line on stderr; for terminals only."""
    write_raw(sys.stderr, f"\r\x1b[K{clean(text)}")


def emit(value: object) -> int:
    """Print one JSON value, indented on a terminal; return exit code 0."""
    print(fast_json.pretty(value) if sys.stdout.isatty() else fast_json.dumps(value))
    return 0


def report(value: object, text: str) -> int:
    """Print the JSON value with --json, else the text on stderr; return exit code 0."""
    if wants_json:
        return emit(value)
    say(text)
    return 0


def is_terminal(fd: int) -> bool:
    """Return True if a descriptor is a terminal."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def counted(count: int, noun: str) -> str:
    """Return `1 job`, `1,204 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
