"""SlurmEnv: a home with a daemon, and Slurm's commands first on PATH."""

import time
from pathlib import Path
from typing import Any

from compat.home_env import HomeEnv

TIMEOUT_SECONDS = 40.0


class SlurmEnv(HomeEnv):
    """Two declared GPUs and eight cores."""

    def __init__(self, base: Path, **env: str) -> None:
        super().__init__(base, **env)
        done = self.stoker("daemon", "start", "--resources", "{gpu:2,cpu:8}")
        assert done.returncode == 0, done.stderr
        line = self.stoker("compat", "slurm").stdout
        self.commands = line.removeprefix("export PATH=").partition(":")[0]
        self.env["PATH"] = f"{self.commands}:{self.env['PATH']}"

    def ok(self, *words: object, **more: Any) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*words, **more)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def sbatch(self, *words: object, **more: Any) -> str:
        """Submit; return the id."""
        return self.ok("sbatch", "--parsable", *words, **more).strip()

    def state(self, id: str) -> str:
        """Return the state of a job in the accounting."""
        return self.ok("sacct", "-X", "-n", "-P", "-o", "State", "-j", id).strip()

    def wait_for(self, id: str, *states: str) -> str:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (state := self.state(id).partition(" ")[0]) not in states:
            assert time.monotonic() < deadline, f"job {id} is {state}, not {states}"
            time.sleep(0.05)
        return state

    def ended(self, id: str) -> str:
        """Wait for the end of a job; return its state."""
        self.end(id)
        return self.state(id)

    def read(self, name: str) -> str:
        """Return the text of a file in the user's directory."""
        return (self.user / name).read_text()
