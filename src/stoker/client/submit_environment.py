"""Where a submission comes from: the directory, environment, shell and umask that it goes with."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

GONE = "The current directory no longer exists."
ODD = "{} is not valid UTF-8, as the directory of a job must be. Rename it."
DROPPED = frozenset({"_", "COLUMNS", "LINES", "TERM", "OLDPWD", "SHLVL"})
"""Facts about this terminal and this shell, which are not the job's."""
TRAINING = frozenset({
    "JOB_UUID", "JOB_RESTARTED", "EPOCHS_DONE", "HEARTBEAT_FREQ", "RESERVED_MEM", "NODELIST",
    "NUM_GPUS", "NUM_NODES", "BATCH_SIZE", "EPOCHS_TO_BE_DONE", "TRAINING_SET_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "NNODES", "TF_CONFIG",
    "PL_TORCH_DISTRIBUTED_BACKEND",
})  # fmt: skip
"""What a training job is told of itself, which is not so of a job that it submits."""


def environment(
    environ: Mapping[str, str], *, keep_terminal: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Return the environment to give to a job, and the names that cannot be passed to the job."""
    inside = "STOKER_JOB_ID" in environ
    trains = inside and "JOB_UUID" in environ
    found = {}
    odd = []
    for name, value in environ.items():
        if name in DROPPED and not (keep_terminal and name == "TERM"):
            continue
        if trains and name in TRAINING:
            continue
        # A job submitted by a job must not carry the token of the one that submitted it.
        if inside and name.startswith("STOKER_") and name != "STOKER_HOME":
            continue
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            odd.append(name)
            continue
        found[name] = value
    if inside and "PYTHONPATH" in found:
        found["PYTHONPATH"] = _without_library(found["PYTHONPATH"], environ)
        if not found["PYTHONPATH"]:
            del found["PYTHONPATH"]
    return found, odd


def _without_library(path: str, environ: Mapping[str, str]) -> str:
    """Return where Python looks for modules, without our copy of the training library in front."""
    first, _, rest = path.partition(os.pathsep)
    home = os.path.dirname(os.path.dirname(environ.get("STOKER_REPORTS", "")))
    ours = os.path.dirname(first) == f"{home}/library" if home else False
    return rest if ours or first == environ.get("STOKER_LIBRARY", "/stoker/lib") else path


def current_directory(instead: str | None = None) -> str:
    """Return where we are, as the user's shell spells it; if that is no use, `instead`."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        if instead is not None:
            return instead
        raise UsageError(GONE) from None
    spelled = os.environ.get("PWD", "")
    try:
        if os.path.isabs(spelled) and os.path.samefile(spelled, here):
            here = spelled
    except OSError:
        pass
    return text_of(here, instead)


def text_of(path: str, instead: str | None = None) -> str:
    """Return a path that can be told to a daemon; if this one cannot be, `instead`."""
    try:
        path.encode()
    except UnicodeEncodeError:
        if instead is not None:
            return instead
        shown = path.encode("utf-8", "replace").decode()
        raise UsageError(ODD.format(shown)) from None
    return path


def shell() -> str:
    """Return the user's shell."""
    path = os.environ.get("SHELL", "")
    return path if os.path.isabs(path) and os.access(path, os.X_OK) else "/bin/sh"


def umask() -> int:
    """Return the umask, if need be by setting it, which other threads could notice."""
    try:
        with open("/proc/self/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"Umask:"))
        return int(line.split()[1], 8)
    except (OSError, StopIteration):
        value = os.umask(0o077)
        os.umask(value)
        return value
