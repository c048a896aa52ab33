"""Which trials of a sweep are compared with each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

COMPARED_STATES = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "QUEUED", "CONFIGURING", "PENDING", "COMPLETED"}
)


def counts(trial: Mapping[str, object]) -> bool:
    """Return True if a trial's metric is compared: not if it failed or was cancelled."""
    return trial["state"] in COMPARED_STATES
