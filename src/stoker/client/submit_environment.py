"""Directory, environment, shell and umask that a job takes over from the submitting process."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NO_DIRECTORY = "The current directory no longer exists."
NOT_UTF8 = "{} is not valid UTF-8, as the directory of a job must be. Rename it."
DROPPED = frozenset({"_", "COLUMNS", "LINES", "TERM", "OLDPWD", "SHLVL"})
"""Variables about this terminal and shell, which do not apply to the job."""
TRAINING = frozenset({
    "JOB_UUID", "JOB_RESTARTED", "EPOCHS_DONE", "HEARTBEAT_FREQ", "RESERVED_MEM", "NODELIST",
    "NUM_GPUS", "NUM_NODES", "BATCH_SIZE", "EPOCHS_TO_BE_DONE", "TRAINING_SET_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "NNODES", "TF_CONFIG",
    "PL_TORCH_DISTRIBUTED_BACKEND",
})  # fmt: skip
"""Variables about a training job, which do not apply to a job that it submits."""


def submit_fields(environment: Mapping[str, str], directory: str | None = None) -> JsonObject:
    """Return the fields of a submission that describe this process; see current_directory."""
    return {
        "directory": current_directory(directory),
        "environment": environment,
        "shell": shell(),
        "umask": umask(),
    }


def environment(
    environ: Mapping[str, str], *, keep_terminal: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Return the environment of a job, and the names of variables that are not UTF-8."""
    inside = "STOKER_JOB_ID" in environ
    trains = inside and "JOB_UUID" in environ
    has_slurm_variables = inside and environ.get("SLURM_CLUSTER_NAME") == "stoker"
    passed = {}
    not_utf8 = []
    for name, value in environ.items():
        if name in DROPPED and not (keep_terminal and name == "TERM"):
            continue
        if trains and name in TRAINING:
            continue
        if has_slurm_variables and name.startswith(("SLURM_", "SLURMD_")):
            continue
        # A job submitted by a job must not have the token of that job.
        if inside and name.startswith("STOKER_") and name != "STOKER_HOME":
            continue
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            not_utf8.append(name)
            continue
        passed[name] = value
    if inside and "PYTHONPATH" in passed:
        passed["PYTHONPATH"] = _without_library(passed["PYTHONPATH"], environ)
        if not passed["PYTHONPATH"]:
            del passed["PYTHONPATH"]
    return passed, not_utf8


def _without_library(path: str, environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH without our copy of the training library, which is its first entry."""
    first, _, others = path.partition(os.pathsep)
    home = os.path.dirname(os.path.dirname(environ.get("STOKER_REPORTS", "")))
    ours = os.path.dirname(first) == f"{home}/library" if home else False
    return others if ours or first == environ.get("STOKER_LIBRARY", "/stoker/lib") else path


def current_directory(default: str | None = None) -> str:
    """Return the current directory as the user's shell spells it, or `default` if unusable."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        if default is not None:
            return default
        raise UsageError(NO_DIRECTORY) from None
    spelled = os.environ.get("PWD", "")
    try:
        if os.path.isabs(spelled) and os.path.samefile(spelled, directory):
            directory = spelled
    except OSError:
        pass
    return utf8_path(directory, default)


def utf8_path(path: str, default: str | None = None) -> str:
    """Return a path that can be sent to the daemon; `default` if this one is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        if default is not None:
            return default
        shown = path.encode("utf-8", "replace").decode()
        raise UsageError(NOT_UTF8.format(shown)) from None
    return path


def shell() -> str:
    """Return the user's shell."""
    path = os.environ.get("SHELL", "")
    return path if os.path.isabs(path) and os.access(path, os.X_OK) else "/bin/sh"


def umask() -> int:
    """Return the umask; without /proc by setting it, which other threads could notice."""
    try:
        with open("/proc/self/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"Umask:"))
        return int(line.split()[1], 8)
    except (OSError, StopIteration):
        value = os.umask(0o077)
        os.umask(value)
        return value
