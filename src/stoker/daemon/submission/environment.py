"""The environment block of a job."""

from __future__ import annotations

import os

from stoker.core.launch.launch import QUEUE_DEVICE_PREFIX
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParsedOptions

TERMINAL_VARIABLES = ("TERM", "COLUMNS", "LINES", "TERMCAP", "_", "OLDPWD", "SHLVL")
"""Variables that describe the submitting terminal; a job does not inherit them."""
BASIC_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG")
"""Variables that a job inherits whatever `--export` selects."""


def build_environment(
    given: dict[str, str], wanted: ParsedOptions, is_system: bool = False
) -> bytes:
    """Return the job's environment as NAME=VALUE entries separated by NUL bytes.

    With `is_system`, commands in the job reach the daemon of all users, not one of the user's own.
    """
    values = _exported(given, wanted.export.strip())
    for name in list(values):
        keeps_terminal = name == "TERM" and wanted.fields.get("pty")
        is_ours = name.startswith("STOKER_") and (is_system or name != "STOKER_HOME")
        if (name in TERMINAL_VARIABLES and not keeps_terminal) or is_ours:
            del values[name]
    values.setdefault("PYTHONUNBUFFERED", "1")
    if is_system:
        values["STOKER_MODE"] = "system"
    values.update(wanted.set_env)
    for name, text in values.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise BadValue(f"The environment variable '{name}' cannot be passed to the job.")
    return b"\0".join(
        os.fsencode(name) + b"=" + os.fsencode(text) for name, text in sorted(values.items())
    )


def _exported(given: dict[str, str], export: str) -> dict[str, str]:
    """Return the variables that `--export` selects: ALL, NONE, or NAME and NAME=VALUE entries."""
    if export.upper() in ("ALL", ""):
        return dict(given)
    basic = {name: given[name] for name in BASIC_VARIABLES if name in given}
    if export.upper() == "NONE":
        return basic
    entries = [entry for entry in export.split(",") if entry]
    values = dict(given) if "ALL" in entries else {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if equals:
            values[name] = text
        elif name in given:
            values[name] = given[name]
    return basic | values


def uses_placeholders(environment: bytes, request: ResourceRequest) -> bool:
    """Return True if the environment contains `{gpu}` or another requested type in braces."""
    types = [GPU, *(name.removeprefix(QUEUE_DEVICE_PREFIX) for name, _ in request.named)]
    return any(b"{%s}" % name.encode() in environment for name in types)


def search_path(environment: bytes) -> str:
    """Return the PATH of an environment block."""
    for entry in environment.split(b"\0"):
        if entry.startswith(b"PATH="):
            return os.fsdecode(entry[5:])
    return os.defpath
