"""Commands that users type during the campaign, and what each of them acknowledged."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.installation import Installation, boot_time, printed

HERE = Path(__file__).parent
SHORT = ("0", "0", "0.02", "0.1", "0.3", "0.7")
LONG = ("1.5", "3")
CODES = (0, 0, 0, 1, 42)
RETRIED = 9
"""The exit code that jobs of the manner `retry` end with once."""


@dataclass
class Submission:
    """One `submit` command: the number of the line of each job, and the ids that it printed."""

    lines: list[int]
    process: "subprocess.Popen[bytes]"
    at: float
    ids: list[int] = field(default_factory=list)
    killed: bool = False
    error: str = ""

    @property
    def is_array(self) -> bool:
        """Return True if all jobs share one line."""
        return len(self.lines) > 1 and len(set(self.lines)) == 1


class Clients:
    """The commands of one installation."""

    def __init__(
        self, installation: Installation, dice: random.Random, place: str = "", more: str = ""
    ) -> None:
        self.installation, self.dice = installation, dice
        self.place = place or f"{installation.records} {installation.devices}"
        self.script = more or str(HERE / "job.sh")
        self.submissions: list[Submission] = []
        self.others: list[subprocess.Popen[bytes]] = []
        self.line = 0
        self.cancelled: set[int] = set()

    # -- submitting ---------------------------------------------------------------------

    def submit(self, kind: str, *options: str) -> None:
        """Start one submission of a kind."""
        kinds: dict[str, Callable[[], tuple[list[str], int, list[str]]]] = {
            "one": lambda: (self._gpus(), 1, []),
            "bulk": lambda: (self._gpus(), self.dice.randrange(2, 60), []),
            "array": self._array,
            "retry": lambda: (
                ["--retries", "5", "--retry-on", f"exit:{RETRIED}"], self.dice.randrange(1, 4),
                ["retry"],
            ),
            "requeue": lambda: (["--requeue"], self.dice.randrange(1, 4), []),
            "leaves": lambda: (self._gpus(), 1, ["leaves"]),
            "flees": lambda: (self._gpus(), 1, ["flees"]),
            "saves": lambda: (["--gpus", "2", "--signal", "USR1@60"], 1, ["saves"]),
            "urgent": lambda: (["--gpus", "2", "--priority", "9"], 1, []),
            "train": lambda: (["--gpus", "1", "--epochs", "6"], 1, ["train"]),
        }  # fmt: skip
        flags, count, manner = kinds[kind]()
        if kind == "array" or count == 1:
            lines = [self._next()] * count
            text, words = None, [self._job(lines[0], manner)]
        else:
            lines = [self._next() for _ in range(count)]
            text = "".join(f"{self._job(line, manner)}\n" for line in lines).encode()
            words = ["--each-line", "-"]
        process = self.installation.popen("submit", *flags, *options, *words, stdin=text)
        self.submissions.append(Submission(lines, process, boot_time()))

    def _next(self) -> int:
        self.line += 1
        return self.line

    def _gpus(self) -> list[str]:
        return self.dice.choice(
            [[], [], ["--gpus", "1"], ["--gpus", "1"], ["--gpus", "0.5"], ["--gpus", "2"]]
        )

    def _array(self) -> tuple[list[str], int, list[str]]:
        last = self.dice.randrange(2, 12)
        limit = self.dice.choice(["", "%2"])
        return [*self._gpus(), "--array", f"0-{last}{limit}"], last + 1, []

    def _job(self, line: int, manner: list[str]) -> str:
        """Write the shell line of a job. Its code is part of it, so the audit can read it."""
        if manner == ["train"]:
            seconds = self.dice.choice(["0.1", "0.3"])
            return f"exec {sys.executable} {HERE / 'train.py'} {self.place} {line} 6 {seconds}"
        seconds = self.dice.choice(SHORT if self.dice.random() < 0.85 else LONG)
        if manner == ["saves"]:
            seconds = self.dice.choice(LONG)
        code = RETRIED if manner == ["retry"] else self.dice.choice(CODES)
        words = [str(line), seconds, str(code), *manner]
        return f"exec sh {self.script} {self.place} {' '.join(words)}"

    # -- other commands -----------------------------------------------------------------

    def run(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start another command beside the campaign."""
        process = self.installation.popen(*words)
        self.others.append(process)
        return process

    def cancel_one(self) -> None:
        """Cancel a job that was acknowledged; from now on it may end in any way."""
        known = [each for each in self.submissions if each.ids]
        if known:
            submission = self.dice.choice(known[-5:])
            id = self.dice.choice(submission.ids)
            # The first id of an array stands for all of it.
            self.cancelled |= set(submission.ids) if submission.is_array else {id}
            self.run("cancel", str(id))

    # -- ends ---------------------------------------------------------------------------

    @property
    def running(self) -> list["subprocess.Popen[bytes]"]:
        """Return the commands that have not ended yet."""
        all = [*(each.process for each in self.submissions), *self.others]
        return [process for process in all if process.poll() is None]

    def kill_one(self) -> int:
        """Kill one command that runs; return how many were killed."""
        found = self.running
        if not found:
            return 0
        victim = self.dice.choice(found)
        for each in self.submissions:
            each.killed = each.killed or each.process is victim
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        return 1

    def collect(self) -> None:
        """Read what ended submissions acknowledged."""
        for each in self.submissions:
            if not each.ids and not each.error and each.process.poll() is not None:
                out, each.error = printed(each.process)
                first = out.strip().partition("-")[0]  # an array prints its first id alone
                if first.isdigit():
                    each.ids = list(range(int(first), int(first) + len(each.lines)))
        self.others = [process for process in self.others if process.poll() is None]

    def finish(self, seconds: float = 120.0) -> list[str]:
        """Wait for all commands; describe those that hang, after ending them."""
        deadline, hanging = time.monotonic() + seconds, []
        for process in self.running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                assert isinstance(process.args, list)
                hanging.append(" ".join(map(str, process.args[1:]))[:200])
                process.kill()
                process.wait()
        self.collect()
        return hanging
