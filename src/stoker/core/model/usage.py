"""What jobs have used, for accounting."""

from __future__ import annotations

from msgspec import Struct


class GpuUsage(Struct, frozen=True, array_like=True, omit_defaults=True):
    """GPU time that was held and what was measured of it, in GPU-seconds; CPU time and memory."""

    held: float = 0.0
    """From the allocation of GPUs to their release, by the share of each GPU."""
    wasted: float = 0.0
    """The part of `held` in attempts that failed before any of their work counted."""
    measured: float = 0.0
    """The part of `held` in which the GPUs were read."""
    busy: float = 0.0
    """The sum of utilisation over `measured`."""
    energy: float = 0.0
    """Joules, over `measured`."""
    cpu: float = 0.0
    """CPU seconds of attempts that have ended."""
    rss: int = 0
    """MiB of the largest process of these attempts."""

    def __add__(self, other: GpuUsage) -> GpuUsage:
        return GpuUsage(
            self.held + other.held,
            self.wasted + other.wasted,
            self.measured + other.measured,
            self.busy + other.busy,
            self.energy + other.energy,
            self.cpu + other.cpu,
            max(self.rss, other.rss),
        )


NO_USAGE = GpuUsage()
"""Usage of a job that has not run."""
