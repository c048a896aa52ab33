"""Lines of a batch file: one job each, named after the file and the line number."""

from __future__ import annotations

import os

from stoker.client.errors import StokerError, UsageError

RESULTS = "job_results"
"""Directory of results, in the current directory."""


class Line:
    """One line to run."""

    __slots__ = ("command", "name", "number")

    def __init__(self, file: str, number: int, command: str) -> None:
        self.number, self.command = number, command
        self.name = f"{file.replace('/', '_')}.{number}"

    @property
    def directory(self) -> str:
        """Return the directory of its results; if it exists, the line is not run again."""
        return os.path.join(RESULTS, self.name)


def read_lines(file: str) -> list[Line]:
    """Return the lines to run; blank lines and comments only count for the numbers."""
    try:
        with open(file, encoding="utf-8-sig") as batch:  # some editors add a byte order mark
            text = batch.read()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not a batch file: it is not UTF-8.") from None
    lines = enumerate(map(str.strip, text.split("\n")), 1)
    jobs = [Line(file, number, line) for number, line in lines if line and line[0] != "#"]
    if not jobs:
        raise UsageError(f"{file} has no line to run.")
    return jobs


def create_results_directory() -> str:
    """Create the results directory and return its absolute path."""
    try:
        os.makedirs(RESULTS, exist_ok=True)
    except FileExistsError:
        raise StokerError(f"./{RESULTS} is not a directory; move it away.") from None
    return os.path.abspath(RESULTS)


def print_line(text: str) -> None:
    """Print a line and flush; a closed stdout is ignored."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
