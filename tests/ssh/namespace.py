"""Namespaces of the kernel: what makes a process believe that it is on another machine."""

import os
import subprocess
import sys
from pathlib import Path

FIRST = Path(__file__).with_name("first.py")
KINDS = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--propagation", "private")


class Namespace:
    """Namespaces that live as long as this object's process, and not a moment longer."""

    def __init__(self, log: Path, setup: str, *words: str) -> None:
        self._log = log
        python = os.path.realpath(sys.executable)
        with log.open("ab") as err:
            self._process = subprocess.Popen(
                ["unshare", *KINDS, python, "-IS", str(FIRST), setup, "setup", *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd="/",
                # Not the test's own: whatever has its STOKER_HOME ends with the test.
                env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        self._pid = 0

    @property
    def pid(self) -> int:
        """The first process, by its number here; waits until all is set up."""
        if not self._pid:
            assert self._process.stdout is not None
            said = self._process.stdout.readline()
            assert said, f"this machine could not be set up: {self._log.read_text()}"
            self._pid = int(said)
        return self._pid

    def enter(self, *more: str) -> list[str]:
        """What to put in front of a command to run it inside."""
        return ["nsenter", "-t", str(self.pid), *(more or ("-a",))]

    def close(self) -> None:
        """End everything inside."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(20)


def ip(*lines: str, inside: Namespace | None = None) -> None:
    """Change the network, here or inside."""
    done = subprocess.run(
        [*(inside.enter("-n") if inside else ()), "ip", "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        text=True, check=False, capture_output=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 0, f"{lines}: {done.stderr}"
