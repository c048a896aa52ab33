"""RestartPolicy: bounded restarts with backoff for helper processes."""

from __future__ import annotations

from collections.abc import Sequence


class RestartPolicy:
    """Counts failures in a row and says when the process may be started again."""

    def __init__(self, delays: Sequence[float]) -> None:
        """`delays`: seconds before each restart; after as many failures it is given up."""
        self.delays = delays
        self.failures = 0

    def record_failure(self) -> float | None:
        """Count a failure; return the seconds until the restart, None to give up."""
        self.failures += 1
        return self.delays[self.failures - 1] if self.may_restart else None

    @property
    def may_restart(self) -> bool:
        """Return True if the process has failed and is to be started again."""
        return 0 < self.failures <= len(self.delays)

    def reset(self) -> None:
        """Forget all failures: the process works, or its work was given up."""
        self.failures = 0
