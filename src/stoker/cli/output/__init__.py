"""What goes where: results to stdout, talk to stderr, one JSON value when asked for."""

from __future__ import annotations

import os
import sys

from stoker.client import fast_json
from stoker.terminal import clean, write_raw

__all__ = ["clean", "counted", "emit", "is_terminal", "say", "show_progress"]

wants_json = False
"""Set by the option parser when it meets --json, so that errors are JSON as well."""
force_colour: bool | None = None
"""Set by the option parser when it meets --color or --no-color."""


def say(text: str) -> None:
    """Say something to the person, on stderr."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, AttributeError):
        pass  # nobody listens (a closed stderr is None); that must not fail the work


def show_progress(text: str) -> None:
    """Replace the progress line on stderr; for terminals only."""
    write_raw(sys.stderr, f"\r\x1b[K{clean(text)}")


def emit(value: object) -> None:
    """Print one JSON value, laid out when a person looks at it."""
    text = fast_json.pretty(value) if sys.stdout.isatty() else fast_json.dumps(value)
    print(text)


def is_terminal(fd: int) -> bool:
    """Whether a descriptor is a terminal that can be drawn on."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def counted(count: int, noun: str) -> str:
    """Return `1 job`, `1,204 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
