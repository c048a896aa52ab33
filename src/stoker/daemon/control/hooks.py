"""HookRunner: commands that run when a job ends or the queue is empty.

The outcome of a job's hook is kept in files.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from stoker.core.state.state import State
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.views.job import job_view
from stoker.schema.job import HookView

OUTPUT_BYTES = 4096
"""How much of the end of a hook's output is shown."""
_RECORDING = 'sh -c "$1"; code=$?; echo "$code" >"$2"; exit "$code"'
"""Written by the shell and not by the daemon, which may have ended before the hook does."""

logger = logging.getLogger(__name__)


class HookRunner:
    """Starts hook commands and reaps them."""

    def __init__(
        self, state: Callable[[], State], logs: str, on_end: str | None, on_empty: str | None
    ) -> None:
        """`on_end` is for jobs without a command of their own."""
        self._state, self._logs = state, logs
        self._on_end, self._on_empty = on_end, on_empty
        self._pids: list[int] = []

    def run_job_end(self, id: int) -> None:
        """Run the command for the end of a job, if there is one."""
        state = self._state()
        job = state.jobs.get(id)
        command = (state.spec(job).on_end or self._on_end) if job is not None else None
        if job is None or not command:
            return
        view = job_view(job, state.spec(job), state, system_clock(), self._logs)
        log = view.log if state.spec(job).uid is None else None  # else hooks cannot read it
        values = {
            "event": "end", "job_id": view.label, "job_name": view.name, "state": view.state,
            "code": view.result, "cause": view.cause, "log": log,
        }  # fmt: skip
        self._run(command, values, record_path(self._logs, id))

    def run_queue_empty(self) -> None:
        """Run the command for an empty queue, if there is one."""
        if self._on_empty:
            self._run(self._on_empty, {"event": "empty"})

    def _run(self, command: str, values: dict[str, Any], record: str | None = None) -> None:
        self.reap()
        try:
            self._pids.append(run_hook(command, values, record))
        except OSError as error:
            logger.warning("a hook command cannot be started: %s", error)

    def reap(self) -> None:
        """Collect the commands that have ended, and report failures."""
        for pid in self._pids[:]:
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == 0:
                    continue
                if status:
                    code = os.waitstatus_to_exitcode(status)
                    logger.warning("a hook command ended with code %d", code)
            self._pids.remove(pid)


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
    """Return the file with the output of a job's hook."""
    return os.path.join(logs, f"{job}.hook")


def hook_view(record: str) -> HookView | None:
    """Return the exit code (None: still running) and the end of the output; None without a hook."""
    try:
        with open(record, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - OUTPUT_BYTES, 0))
            output = file.read(OUTPUT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    code = ""
    with contextlib.suppress(OSError), open(_code_path(record), encoding="ascii") as file:
        code = file.read(16).strip()
    return HookView(exit_code=int(code) if code.isdecimal() else None, output=output)


def _code_path(record: str) -> str:
    return f"{record}.code"
