"""A home with a daemon, the command `grass` in it, and short words for what tests ask."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import end_processes_of, stop_daemon
from e2e.daemon_fixture import until
from stoker import places

Done = subprocess.CompletedProcess[str]
FOREIGN = ("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_")


class GrassEnv:
    """One home."""

    def __init__(self, base: Path) -> None:
        self.base, self.user = base, base / "user"
        for name in ("home", "user", "runtime"):
            (base / name).mkdir(mode=0o700)
        self.env = {
            **{name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)},
            "STOKER_HOME": str(base / "home"),
            "HOME": str(self.user),
            "XDG_RUNTIME_DIR": str(base / "runtime"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(self, *words: object, cwd: Path | None = None, input: str | None = None) -> Done:
        """Any command in this home."""
        return subprocess.run(
            [str(word) for word in words],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or self.user,
            env=self.env,
            timeout=30,
            check=False,
        )

    def stoker(self, *words: object, **more: Any) -> Done:
        return self.run(sys.executable, "-m", "stoker", *words, **more)

    def grass(self, *words: object, **more: Any) -> Done:
        return self.stoker("compat", "grass", *words, **more)

    def done(self, *words: object, **more: Any) -> str:
        """The command must succeed; what it printed."""
        done = self.grass(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *words: object, code: int = 2, **more: Any) -> str:
        """The command must fail with one sentence, which is returned."""
        done = self.grass(*words, **more)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.startswith("grass: ")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    def show(self, queue: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done("show", queue))
        return found

    def jobs(self, queue: str) -> dict[int, dict[str, Any]]:
        """The jobs of a queue by id."""
        view = self.show(queue)
        lists = (view["past_jobs"], view["running_jobs"], view["future_jobs"])
        return {job["id"]: job for jobs in lists for job in jobs}

    def allocation(self, queue: str, id: int) -> dict[str, list[str]]:
        """The devices of a job, as soon as it has them."""
        running: dict[str, list[str]] = until(lambda: self.jobs(queue)[id]["allocation"])
        return running

    def end(self, id: object) -> None:
        """Wait for a job's end."""
        self.stoker("wait", id)

    def output(self, queue: str, *words: object, **more: Any) -> str:
        """What a job wrote, from beginning to end."""
        id = self.done("enqueue", queue, *words, **more)
        self.end(id)
        return Path(self.jobs(queue)[int(id)]["log"]).read_text()


class Gate:
    """A command that runs until it is let go."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"gate-{name}"
        self.command = ("sh", "-c", f"while test ! -e {self.path}; do sleep 0.05; done")

    def open(self) -> None:
        self.path.touch()


@contextmanager
def lab() -> Iterator[GrassEnv]:
    """A fresh home; at the end nothing of it runs or is left."""
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    try:
        yield GrassEnv(base)
    finally:
        stop_daemon(base)
        end_processes_of(base)
        shutil.rmtree(run_dir(base), ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


def run_dir(base: Path) -> str:
    """Where the claims of this home lie, which is outside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(base / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
        return places.run_dir()
