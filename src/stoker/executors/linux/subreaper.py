"""Makes this process the parent of orphans among its descendants."""

from __future__ import annotations

import contextlib


def become_subreaper() -> None:
    """Inherit orphans among the descendants of this process."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
