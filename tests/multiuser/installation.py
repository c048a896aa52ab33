"""An installation of stoker that belongs to root and that every user of the machine can run."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Installation:
    """A virtual environment with the sources of this tree and copies of what they need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        interpreter = interpreter_for_all()
        assert interpreter is not None, "see missing_interpreter()"
        venv = [interpreter, "-m", "venv", "--without-pip", str(directory)]
        subprocess.run(venv, check=True, capture_output=True)
        self.python = directory / "bin" / "python"
        self.packages = next(directory.glob("lib/python3*/site-packages"))
        for name in distributions("stoker") - {"stoker"}:
            self._copy_distribution(name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src/stoker", self.packages / "stoker", ignore=ignored)
        self.command = directory / "bin" / "stoker"
        script = (ROOT / "packaging/bin/stoker").read_text()
        self.command.write_text(script.replace("#!python", f"#!{self.python}", 1))
        self.command.chmod(0o755)
        # Whatever the umask of the test run is, and with byte code, which users could not write.
        compileall = [str(self.python), "-m", "compileall", "-q", str(self.packages)]
        subprocess.run(compileall, check=True)
        subprocess.run(["chmod", "-R", "go=u,go-w", str(directory)], check=True)

    def _copy_distribution(self, name: str) -> None:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if file.parts[0] == ".." or file.suffix == ".pyc":
                continue  # scripts
            target = self.packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), target)


def distributions(name: str) -> set[str]:
    """Return a distribution and all that it needs here, without its extras."""
    found: set[str] = set()
    pending = [name]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            required = importlib.metadata.distribution(name).requires or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another version of Python or another system
        found.add(name)
        pending += [re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in required if "extra" not in r]
    return found


def interpreter_for_all() -> str | None:
    """Return an interpreter of this minor version that every user may execute."""
    name = f"python3.{sys.version_info.minor}"
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for candidate in (base, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if os.access(candidate, os.X_OK) and all(is_open(path) for path in parents(candidate)):
            return candidate
    return None


def parents(path: str) -> Iterator[Path]:
    return iter(Path(os.path.realpath(path)).parents)


def is_open(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)
