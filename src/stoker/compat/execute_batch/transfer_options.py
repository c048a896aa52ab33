"""What goes along with jobs and what comes back, as the daemon is told."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.compat.execute_batch.lines import RESULTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def travel(forward: Sequence[str], backwards: Sequence[str]) -> dict[str, Any]:
    """Return the options of every job. Earlier results never go along, so they never nest."""
    sent = [_inside(path, "--copy-forward") for path in forward]
    brought = [_inside(path, "--copy-backwards") for path in backwards]
    for path in sent:
        if not os.path.lexists(path):
            raise UsageError(f"--copy-forward {path}: no such file or directory.")
    return {
        **({"send": sent} if sent else {"no_send": True}),
        **({"bring": brought} if brought else {"no_bring": True}),
        "leave_out": [f"{RESULTS}/"],
    }


def brought_nothing(carried: dict[str, Any], directory: str) -> list[str]:
    """What was to come back of a job, and has not."""
    return [path for path in carried.get("bring", ()) if not os.path.lexists(f"{directory}/{path}")]


def _inside(path: str, option: str) -> str:
    """Return a path as it is below this directory, where jobs find it under the same name."""
    tidy = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    if tidy.split("/")[0] == ".." or not path:
        raise UsageError(f"{option} {path!r} is not below this directory.")
    return tidy
