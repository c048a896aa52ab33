"""Commands that run when a job ends or the queue is empty; the outcome of a job's hook is kept."""

from __future__ import annotations

import contextlib
import os
from typing import Any

OUTPUT_BYTES = 4096
"""How much of a hook's output is shown, from its end."""
_RECORDING = 'sh -c "$1"; code=$?; echo "$code" >"$2"; exit "$code"'
"""Written by the shell and not by the daemon, which may have ended before the hook does."""


def run_hook(command: str, values: dict[str, Any], record: str | None = None) -> int:
    """Start a hook command with `values` in its environment and return its pid.

    With `record`, its output goes to that file and its exit code to `record`.code.
    """
    environment = {
        **os.environ,
        **{
            f"STOKER_{key.upper()}": "" if value is None else str(value)
            for key, value in values.items()
        },
    }
    words = ["sh", "-c", command]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    out = null
    if record is not None:
        with contextlib.suppress(OSError):  # a hook runs even where its output cannot be kept
            out = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            words = ["sh", "-c", _RECORDING, "sh", command, _code_path(record)]
        with contextlib.suppress(OSError):
            os.unlink(_code_path(record))
    try:
        return os.posix_spawn(
            "/bin/sh",
            words,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate((null, out, out))],
            setsid=True,
            setsigmask=(),
        )
    finally:
        os.close(null)
        if out != null:
            os.close(out)


def record_path(logs: str, job: int) -> str:
    """The file with the output of a job's hook."""
    return os.path.join(logs, f"{job}.hook")


def hook_view(record: str) -> dict[str, Any] | None:
    """The exit code (None: it has not ended) and the end of the output; None without a hook."""
    try:
        with open(record, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - OUTPUT_BYTES, 0))
            output = file.read(OUTPUT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    code = ""
    with contextlib.suppress(OSError), open(_code_path(record), encoding="ascii") as file:
        code = file.read(16).strip()
    return {"exit_code": int(code) if code.isdecimal() else None, "output": output}


def _code_path(record: str) -> str:
    return f"{record}.code"
