"""Install stoker and its peers: from Debian, or with pip into separate environments."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.lab import REPOSITORY, Broken


def program(name: str, package: str) -> str | None:
    """Install a Debian package unless its program exists; return why that failed."""
    if shutil.which(name):
        return None
    subprocess.run([REPOSITORY / ".ci/packages", "install", package], check=False, timeout=600)
    if shutil.which(name):
        return None
    return f"no {name} here; as root: apt-get install {package}"


def environment(cache: Path, requirement: str, name: str = "") -> Path | None:
    """Return a virtual environment with one requirement; None if it cannot be installed."""
    place = cache / (name or requirement.replace("==", "-"))
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


def stoker(cache: Path) -> Path:
    """Install the wheel of this working tree; return the directory of its programs.

    The editable install is not measured: it has no byte code if PYTHONDONTWRITEBYTECODE is set.
    """
    place = environment(cache, str(REPOSITORY), "stoker")
    if place is None:
        raise Broken(f"stoker cannot be installed: pip install {REPOSITORY}")
    pip: list[str | Path] = [
        place / "bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
    ]
    done = subprocess.run(
        [*pip, "--no-deps", REPOSITORY], check=False, timeout=600, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Broken(f"stoker cannot be installed: {done.stderr.strip()[-300:]}")
    return place / "bin"
