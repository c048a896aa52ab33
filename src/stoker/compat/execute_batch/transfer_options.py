"""Submit options for files copied to and from nodes."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.compat.execute_batch.lines import RESULTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def transfer_options(forward: Sequence[str], backwards: Sequence[str]) -> dict[str, Any]:
    """Return the transfer options of every job; earlier results are never sent."""
    sent = [_relative_path(path, "--copy-forward") for path in forward]
    brought = [_relative_path(path, "--copy-backwards") for path in backwards]
    for path in sent:
        if not os.path.lexists(path):
            raise UsageError(f"--copy-forward {path}: no such file or directory.")
    return {
        **({"send": sent} if sent else {"no_send": True}),
        **({"bring": brought} if brought else {"no_bring": True}),
        "leave_out": [f"{RESULTS}/"],
    }


def missing_results(carried: dict[str, Any], directory: str) -> list[str]:
    """Return the paths that a job did not bring back."""
    return [path for path in carried.get("bring", ()) if not os.path.lexists(f"{directory}/{path}")]


def _relative_path(path: str, option: str) -> str:
    """Return a path relative to this directory; reject paths outside it."""
    tidy = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    if tidy.split("/")[0] == ".." or not path:
        raise UsageError(f"{option} {path!r} is not below this directory.")
    return tidy
