"""Commands that people want run when a job ends or the queue is empty."""

from __future__ import annotations

import os
from typing import Any


def run_hook(command: str, values: dict[str, Any]) -> int:
    """Start a hook command and return its pid; what happened is in its environment."""
    environment = {
        **os.environ,
        **{
            f"STOKER_{key.upper()}": "" if value is None else str(value)
            for key, value in values.items()
        },
    }
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", command],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)],
            setsid=True,
            setsigmask=(),
        )
    finally:
        os.close(null)
