"""ReplayAssumptions: what a trace does not record."""

from __future__ import annotations

from msgspec import Struct


class ReplayAssumptions(Struct, frozen=True, kw_only=True):
    """Behaviour of jobs that a trace does not record."""

    measured_after: float = 0.05
    """Share of a job's work after which its epoch time is known."""
    checkpoint_seconds: float = 600.0
    """Maximum seconds of work between two checkpoints; also the maximum length of an epoch."""
    restart_seconds: float = 60.0
    """Seconds that a job needs after every restart before it makes progress."""
    non_preemptible: bool = False
    """Jobs save no checkpoints, so they cannot be preempted."""
    time_limits_only: bool = False
    """Jobs report no epochs; the planner has only the time limits."""
    estimate_error: float | None = None
    """Jobs report no epochs but have an expected duration (`--expect`), two thirds of them right
    within this factor. None: only policies that plan with true durations know them."""
    seed: int = 0
    """Seed of the estimates."""
