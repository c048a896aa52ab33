"""Getting a peer onto this machine: from Debian, or with pip into a place of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.lab import REPOSITORY


def program(name: str, package: str) -> str | None:
    """Have a program, from its Debian package if need be; else say why not."""
    if shutil.which(name):
        return None
    subprocess.run([REPOSITORY / ".ci/packages", "install", package], check=False, timeout=600)
    if shutil.which(name):
        return None
    return f"no {name} here; as root: apt-get install {package}"


def environment(cache: Path, requirement: str) -> Path | None:
    """A virtual environment that holds one requirement only; None when that cannot be had."""
    place = cache / requirement.replace("==", "-")
    if (place / "complete").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    steps: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", place],
        [place / "bin/python", "-m", "pip", "install", "--quiet", requirement],
    ]
    for step in steps:
        done = subprocess.run(step, check=False, timeout=600, capture_output=True)
        if done.returncode != 0:
            return None
    (place / "complete").touch()
    return place
