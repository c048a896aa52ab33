"""HomeEnv: a home directory with stoker's state, and commands that run in it."""

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
from stoker import places

Done = subprocess.CompletedProcess[str]
DROPPED_PREFIXES = ("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_", "SSH_", "OMP_")
"""Variables of the test process that its commands must not see."""


class HomeEnv:
    """Directories and environment of one user."""

    def __init__(self, base: Path, **env: str) -> None:
        self.base, self.user = base, base / "user"
        for name in ("home", "user", "runtime"):
            (base / name).mkdir(mode=0o700)
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(DROPPED_PREFIXES)
        }
        self.env = {
            **kept,
            "STOKER_HOME": str(base / "home"),
            "HOME": str(self.user),
            "XDG_RUNTIME_DIR": str(base / "runtime"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **env,
        }

    def run(
        self, *words: object, cwd: Path | None = None, input: str | None = None, **env: str
    ) -> Done:
        """Run a command in this home."""
        return subprocess.run(
            [str(word) for word in words],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or self.user,
            env={**self.env, **env},
            timeout=50,
            check=False,
        )

    def stoker(self, *words: object, **more: Any) -> Done:
        """Run a command of stoker."""
        return self.run(sys.executable, "-m", "stoker", *words, **more)

    def end(self, id: object) -> None:
        """Wait for the end of a job."""
        self.stoker("wait", id)


@contextmanager
def temporary_base() -> Iterator[Path]:
    """Yield a directory for a home; end all processes of it and remove it afterwards."""
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    try:
        yield base
    finally:
        stop_daemon(base)
        end_processes_of(base)
        shutil.rmtree(_lock_directory(base), ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


def _lock_directory(base: Path) -> str:
    """Return the directory of the locks of a home, which is outside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(base / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
        return places.run_dir()
