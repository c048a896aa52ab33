"""The copy of the training library and of `srun` that containers and other nodes get."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from stoker import __version__
from stoker.executors.launch.paths import SLURM_TOOLS

PACKAGES = ("stoker/training", "kubernetesdlprofile")
"""Its files, and no others: an image may have the whole of `stoker` itself."""
_SOURCE = Path(__file__).parents[3]


def provide(home: str, source: Path = _SOURCE) -> str:
    """Return its directory under `home`, created if missing; every version has its own."""
    files = sorted(_files(source))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(source)}\0".encode() + file.read_bytes() + b"\0")
    directory = f"{home}/library/{__version__}-{digest.hexdigest()[:12]}"
    if not os.path.isdir(directory):
        os.makedirs(f"{home}/library", exist_ok=True)
        part = tempfile.mkdtemp(
            prefix="part-", dir=f"{home}/library"
        )  # also called by other threads
        try:
            for file in files:
                copy = Path(part, file.relative_to(source))
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
            _open_to_all(part)
            with contextlib.suppress(OSError):  # another thread created it
                os.rename(part, directory)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return directory


def _files(source: Path) -> list[Path]:
    return [
        file
        for package in (*PACKAGES, SLURM_TOOLS)
        for file in (source / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]


def _open_to_all(top: str) -> None:
    """Make files readable for all users: an image may run as any of them."""
    for directory, _, names in os.walk(top):
        os.chmod(directory, 0o755)  # noqa: S103 - in a directory that is ours alone
        mode = 0o755 if directory.endswith(SLURM_TOOLS) else 0o644
        for name in names:
            os.chmod(f"{directory}/{name}", mode)
