"""The checkpoint directory, and the newest checkpoint in it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.training.runtime.environment import Environment

LIGHTNING_LOGS = "lightning_logs"
UNFINISHED = (".new", ".tmp", ".part", "~")
EVENT_FILES = "events.out.tfevents"
CHECKPOINT_SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".hdf5", ".keras"),
    *(".npz", ".npy", ".pkl", ".pickle", ".joblib", ".msgpack", ".index"),
)
"""Usual suffixes of checkpoints; files with others may be checkpoints, too."""
OTHER_SUFFIXES = (
    *(".csv", ".tsv", ".json", ".jsonl", ".log", ".txt", ".yaml", ".yml", ".toml", ".md"),
    *(".html", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".out", ".err", ".py"),
)
"""Suffixes of files that are hardly ever checkpoints."""


def directory(environment: Environment) -> str:
    """Return the checkpoint directory that all attempts of a job share."""
    path = environment.environ.get("STOKER_CHECKPOINT_DIR", "")
    if path:
        return path
    root = "/snapshots" if os.path.isdir("/snapshots") else os.path.abspath("snapshots")
    return f"{root}/{environment.name or 'job'}"


def make(path: str) -> str:
    """Create a directory if possible, and return its path."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        pass  # saving a checkpoint raises the error, with the path
    return path


def last_version(root: str) -> tuple[int, str] | None:
    """Return number and newest file of Lightning's highest version with checkpoints."""
    for number, path in reversed(numbered(f"{root}/{LIGHTNING_LOGS}", "version_")):
        checkpoint = _newest(_files(f"{path}/checkpoints"))
        if checkpoint is not None:
            return number, checkpoint
    return None


def newest(root: str) -> str | None:
    """Return the file to resume from: of Lightning's last version, else the newest of all."""
    version = last_version(root)
    return version[1] if version is not None else _newest(_files(root))


def numbered(root: str, prefix: str, suffix: str = "") -> list[tuple[int, str]]:
    """Return files and directories called PREFIX NUMBER SUFFIX, sorted by number."""
    matching = []
    for entry in _entries(root):
        name = entry.name
        number = name[len(prefix) : len(name) - len(suffix)]
        is_match = name.startswith(prefix) and name.endswith(suffix) and number.isdigit()
        if is_match and is_trusted(entry.path):
            matching.append((int(number), entry.path))
    return sorted(matching)


def remove(path: str) -> None:
    """Remove a checkpoint, a file or a directory; ignore errors."""
    try:
        os.unlink(path)
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _files(root: str) -> Iterator[str]:
    for parent, directories, files in os.walk(root):
        directories[:] = [
            name for name in directories if _is_finished(name) and name != LIGHTNING_LOGS
        ]
        for name in files:
            if _is_finished(name) and not name.startswith(EVENT_FILES):
                yield f"{parent}/{name}"


def _is_finished(name: str) -> bool:
    """Return False for names of files that are still being written."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)


def _newest(paths: Iterator[str]) -> str | None:
    """Return the newest file among those that look most like checkpoints."""
    best = None
    for path in paths:
        suffix = os.path.splitext(path)[1].lower()
        likeness = (suffix in CHECKPOINT_SUFFIXES) - (suffix in OTHER_SUFFIXES)
        try:
            candidate = (likeness, os.stat(path).st_mtime_ns, path)
        except OSError:
            continue
        if os.path.isfile(path) and (best is None or candidate > best) and is_trusted(path):
            best = candidate
    return best[2] if best is not None else None


def is_trusted(path: str) -> bool:
    """Return False for files of other users: loading a checkpoint can execute code."""
    if not hasattr(os, "geteuid"):
        return True
    try:
        owner, user = os.lstat(path).st_uid, os.geteuid()
        if owner in (user, 0):
            return True
        # On a network file system, files created by root may belong to another user.
        return user == 0 and not os.stat(os.path.dirname(path)).st_mode & 0o022
    except OSError:
        return False


def _entries(root: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            return list(entries)
    except OSError:
        return []
