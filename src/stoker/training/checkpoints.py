"""Where checkpoints go, and which of those that lie there is the newest."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.training.environment import Environment

LIGHTNING = "lightning_logs"
UNFINISHED = (".new", ".tmp", ".part", "~")
LOGS = "events.out.tfevents"
SAVED = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".hdf5", ".keras"),
    *(".npz", ".npy", ".pkl", ".pickle", ".joblib", ".msgpack", ".index"),
)
"""How checkpoints are called, as a rule; what is called otherwise may be one."""
NOTES = (
    *(".csv", ".tsv", ".json", ".jsonl", ".log", ".txt", ".yaml", ".yml", ".toml", ".md"),
    *(".html", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".out", ".err", ".py"),
)
"""What is called so hardly ever is one."""


def directory(surroundings: Environment) -> str:
    """The directory that all attempts of a job share."""
    told = surroundings.environ.get("STOKER_CHECKPOINT_DIR", "")
    if told:
        return told
    root = "/snapshots" if os.path.isdir("/snapshots") else os.path.abspath("snapshots")
    return f"{root}/{surroundings.name or 'job'}"


def make(path: str) -> str:
    """The same path, as a directory if that can be had."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        pass  # whoever saves there gets the error, with the path in it
    return path


def last_version(root: str) -> tuple[int, str] | None:
    """Lightning's highest version that has checkpoints: its number and its newest file."""
    for number, path in reversed(numbered(f"{root}/{LIGHTNING}", "version_")):
        found = _newest(_files(f"{path}/checkpoints"))
        if found is not None:
            return number, found
    return None


def newest(root: str) -> str | None:
    """The file to go on from: Lightning's last version, else the newest of all."""
    version = last_version(root)
    return version[1] if version is not None else _newest(_files(root))


def numbered(root: str, prefix: str, suffix: str = "") -> list[tuple[int, str]]:
    """The files or directories called PREFIX NUMBER SUFFIX, in the order of their numbers."""
    found = []
    for entry in _entries(root):
        name = entry.name
        number = name[len(prefix) : len(name) - len(suffix)]
        fits = name.startswith(prefix) and name.endswith(suffix) and number.isdigit()
        if fits and _trusted(entry.path):
            found.append((int(number), entry.path))
    return sorted(found)


def remove(path: str) -> None:
    """Remove a checkpoint, be it a file or a directory; what cannot be removed stays."""
    try:
        os.unlink(path)
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _files(root: str) -> Iterator[str]:
    for where, names, files in os.walk(root):
        names[:] = [name for name in names if _finished(name) and name != LIGHTNING]
        for name in files:
            if _finished(name) and not name.startswith(LOGS):
                yield f"{where}/{name}"


def _finished(name: str) -> bool:
    """Whether this is no name for something that is still being written."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)


def _newest(paths: Iterator[str]) -> str | None:
    """The newest of those that look most like checkpoints."""
    best = None
    for path in paths:
        ending = os.path.splitext(path)[1].lower()
        looks = (ending in SAVED) - (ending in NOTES)
        try:
            found = (looks, os.stat(path).st_mtime_ns, path)
        except OSError:
            continue
        if os.path.isfile(path) and (best is None or found > best) and _trusted(path):
            best = found
    return best[2] if best is not None else None


def _trusted(path: str) -> bool:
    """Return False for what another user has put there: to load a checkpoint is to execute it."""
    if not hasattr(os, "geteuid"):
        return True
    try:
        owner, me = os.lstat(path).st_uid, os.geteuid()
        if owner in (me, 0):
            return True
        # On a network file system, files that root made may belong to another user.
        return me == 0 and not os.stat(os.path.dirname(path)).st_mode & 0o022
    except OSError:
        return False


def _entries(root: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            return list(entries)
    except OSError:
        return []
