"""The jobs of a batch file: one for each line, named after the file and the line's number."""

from __future__ import annotations

import os

from stoker.client.errors import StokerError, UsageError

RESULTS = "job_results"
"""Where results go, in the current directory."""
FINISHED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE")
)
"""States after which nothing more comes of a job."""


class Line:
    """One job."""

    __slots__ = ("command", "name", "number")

    def __init__(self, file: str, number: int, command: str) -> None:
        self.number, self.command = number, command
        self.name = f"{file.replace('/', '_')}.{number}"

    @property
    def directory(self) -> str:
        """Where its files come to; a job whose directory exists is not run again."""
        return os.path.join(RESULTS, self.name)


def read_lines(file: str) -> list[Line]:
    """The lines that are to be run. Blank ones and comments count, but are no jobs."""
    try:
        with open(file, encoding="utf-8-sig") as batch:  # editors elsewhere mark files as UTF-8
            text = batch.read()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not a batch file: it is not UTF-8.") from None
    lines = enumerate(map(str.strip, text.split("\n")), 1)
    found = [Line(file, number, line) for number, line in lines if line and line[0] != "#"]
    if not found:
        raise UsageError(f"{file} has no line to run.")
    return found


def make_results() -> str:
    """Have the directory for results; its full path."""
    try:
        os.makedirs(RESULTS, exist_ok=True)
    except FileExistsError:
        raise StokerError(f"./{RESULTS} is not a directory; move it away.") from None
    return os.path.abspath(RESULTS)


def tell(text: str) -> None:
    """Print a line at once; that nobody reads it is no reason to stop."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
