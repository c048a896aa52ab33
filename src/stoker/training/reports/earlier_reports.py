"""Reports of earlier processes of the same attempt.

A job's command may be a script that starts the training again after a crash, or two trainings one
after the other. Stoker counts the epochs of one training, so each process has to know whether it
is that one, continues it, or is another one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINE = 4096
KINDS = (b'{"k":"hello"', b'{"k":"start"', b'{"k":"end"', b'{"k":"done"', b'{"k":"stopped"')
RANK_OPTIONS = ("--local-rank", "--local_rank")
"""Options that some launchers add to the command line of each process."""


class Reporter:
    """A process that has reported epochs."""

    def __init__(self, program: str, pid: int) -> None:
        self.program = program
        self.pid = pid
        self.starts: list[int] = []
        self.ended = False
        """Whether one of its epochs has ended."""
        self.done = False
        """Whether it ended without an error, so that its training is complete."""


class EarlierReports:
    """What earlier processes of the attempt reported."""

    def __init__(self) -> None:
        self.reporters: list[Reporter] = []
        self.stopped: int | None = None
        """The epoch before which the attempt has stopped: it must not train any more."""
        self.counted = 0
        """Epochs reported by this program, if its training is the one that is counted."""
        self.ended = False
        """Whether one of them has ended."""
        self.apart = False
        """Whether the training of this process is not the one that is counted."""

    def evaluate(self, program: str, alone: bool) -> None:
        """Decide whether this program continues the counted training. `alone`: it has no peers."""
        reporters = self.reporters
        if not alone:
            # Processes that still run are peers, and may have started before this one.
            while reporters and _is_alive(reporters[-1].pid):
                program = reporters.pop().program
        trained = [reporter for reporter in reporters if reporter.starts or reporter.done]
        if not trained:
            return
        last = trained[-1]
        if last.program != program or last.done or (alone and _is_alive(last.pid)):
            self.apart = True
            return
        self.counted = max(epoch for reporter in trained for epoch in reporter.starts)
        self.counted = max(self.counted, self.stopped or 0)
        self.ended = any(reporter.ended for reporter in trained)


def read(path: str) -> EarlierReports:
    """Read a report; the result is empty if it cannot be read."""
    earlier = EarlierReports()
    try:
        if not os.path.isfile(path):
            return earlier
        with open(path, "rb") as file:
            while True:
                line = file.readline(MAX_LINE)
                if not line:
                    return earlier
                if line.startswith(KINDS):
                    _apply_line(earlier, line)
    except (OSError, ValueError):
        return earlier


def _apply_line(earlier: EarlierReports, data: bytes) -> None:
    import json

    try:
        line: dict[str, Any] = json.loads(data)
        kind = line["k"]
        if kind == "hello":
            earlier.reporters.append(Reporter(str(line.get("w", "")), int(line["pid"])))
            return
        epoch = int(line["e"])
    except (ValueError, LookupError, TypeError):
        return  # incomplete, or not of the library
    if kind == "stopped" and earlier.stopped is None:
        earlier.stopped = epoch
    if not earlier.reporters:
        return
    reporter = earlier.reporters[-1]
    if kind == "start":
        reporter.starts.append(epoch)
    elif kind == "end":
        reporter.ended = True
    elif kind == "done":
        reporter.done = True


def program_id(child: bool) -> str:
    """Return a short id of the program, the same in all its processes and when run again."""
    from zlib import crc32

    arguments = [str(argument) for argument in getattr(sys, "argv", [])]
    if arguments[:1] in (["-c"], ["-m"]) and not child:
        arguments += getattr(sys, "orig_argv", [])  # with the code; Python 3.8 has none
    common = [argument for argument in arguments if not argument.startswith(RANK_OPTIONS)]
    return f"{crc32(chr(0).join(common).encode('utf-8', 'surrogatepass')):08x}"


def _is_alive(pid: int) -> bool:
    """Return True if the process runs and is not this one, which may have called exec."""
    if pid == os.getpid() or pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(MAX_LINE).rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
