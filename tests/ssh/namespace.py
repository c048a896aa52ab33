"""Kernel namespaces, which make a process see another host."""

import os
import subprocess
import sys
from pathlib import Path

FIRST = Path(__file__).with_name("first.py")
KINDS = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--propagation", "private")


class Namespace:
    """Namespaces that exist exactly as long as this object's process."""

    def __init__(self, log: Path, setup: str, *words: str) -> None:
        self._log = log
        python = os.path.realpath(sys.executable)
        with log.open("ab") as err:
            self._process = subprocess.Popen(
                ["unshare", *KINDS, python, "-IS", str(FIRST), setup, "setup", *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd="/",
                # Not that of the test: processes with its STOKER_HOME are ended with the test.
                env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        self._pid = 0

    @property
    def pid(self) -> int:
        """The pid of the init process, outside; waits until all is set up."""
        if not self._pid:
            assert self._process.stdout is not None
            said = self._process.stdout.readline()
            assert said, f"this machine could not be set up: {self._log.read_text()}"
            self._pid = int(said)
        return self._pid

    def enter(self, *more: str) -> list[str]:
        """Return the words in front of a command that runs inside."""
        return ["nsenter", "-t", str(self.pid), *(more or ("-a",))]

    def close(self) -> None:
        """End everything inside."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(20)


def ip(*lines: str, inside: Namespace | None = None) -> None:
    """Change the network, outside or inside."""
    done = subprocess.run(
        [*(inside.enter("-n") if inside else ()), "ip", "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        text=True, check=False, capture_output=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 0, f"{lines}: {done.stderr}"
