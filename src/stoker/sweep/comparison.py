"""Which trials of a sweep are compared with each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAY_COUNT = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "QUEUED", "CONFIGURING", "PENDING", "COMPLETED"}
)


def counts(trial: Mapping[str, object]) -> bool:
    """Whether its figure tells how good it is: not if it failed or was cancelled on its way."""
    return trial["state"] in MAY_COUNT
