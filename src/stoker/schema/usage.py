"""GPU time by user, queue or another key."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class UsageGroup(Struct, kw_only=True):
    """The GPU time of some jobs."""

    key: str
    jobs: int = 0
    failed: int = 0
    gpu_hours: float = 0.0
    """For which GPUs were allocated."""
    wasted_gpu_hours: float = 0.0
    """Of attempts that failed before any of their work counted."""
    measured_gpu_hours: float = 0.0
    busy_gpu_hours: float = 0.0
    """The sum of utilisation over what was measured."""
    utilization: float | None = None
    """Mean, in percent."""
    kwh: float | None = None
    cpu_hours: float | None = None
    """Of ended attempts."""
    rss_peak: int | None = None
    """MiB of the largest process."""
    wait_p50: float | None = None
    """Seconds from eligible to started, of half of the jobs at most."""
    wait_p90: float | None = None
    cost: float | None = None


class UsageSummary(Struct, kw_only=True):
    """Reply of `GET /usage`."""

    by: str
    since: str | None
    until: str | None
    groups: list[UsageGroup]
    """Largest first; of days, oldest first."""
    total: UsageGroup
    energy: str
    """How energy was measured."""
    currency: str
    days: dict[str, dict[str, float]] | UnsetType = UNSET
    """With `days`: GPU-hours by day and key."""
