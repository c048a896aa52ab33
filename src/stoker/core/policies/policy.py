"""A scheduling policy as a value: order of the queue, backfill, preemption, fair share.

One planner carries out all policies, so a simulation compares exactly what the daemon runs.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class QueueOrder(Enum):
    """Order of jobs of equal priority."""

    ARRIVAL = "arrival"
    """By submission (FIFO)."""
    REMAINING_TIME = "time"
    """Least remaining time first (SRTF)."""
    REMAINING_SERVICE = "service"
    """Fewest remaining GPU-seconds first (SRSF)."""
    ATTAINED_SERVICE = "attained"
    """Fewest attained GPU-seconds first, in levels; FIFO within a level (2D-LAS)."""
    FAIR_SHARE = "share"
    """User with the least recent usage first."""


class DurationSource(Enum):
    """Where the expected duration of a job comes from."""

    NOTHING = "nothing"
    DECLARED = "declared"
    """The duration declared at submission; in a simulation the true one."""
    MEASURED = "measured"
    """Measured epochs; before the first one, the attained time, or the time limit."""


class BackfillMode(Enum):
    """Which jobs may start ahead of a blocked one."""

    STRICT = "strict"
    """None."""
    UNRESTRICTED = "unrestricted"
    """All that fit."""
    EASY = "easy"
    """Those that cannot delay the first blocked job."""
    CONSERVATIVE = "conservative"
    """Those that cannot delay any of the first twenty blocked jobs."""
    OVERDUE_ONLY = "overdue only"
    """All that fit, but none that delays an overdue job."""


class Policy(Struct, frozen=True, kw_only=True):
    """How the jobs of a queue are scheduled."""

    name: str
    about: str
    order: QueueOrder = QueueOrder.ARRIVAL
    durations: DurationSource = DurationSource.NOTHING
    backfill: BackfillMode = BackfillMode.EASY
    preempts: bool = False
    """Whether preemptible jobs are preempted for others of equal priority."""
    fair: float = 0.0
    """Weight of recent usage: doublings of a job's service for each doubling of the user's usage
    above the average. 0: none."""
    floor: float = 900.0
    """Remaining seconds assumed for a job without an estimate, until it has used as many
    GPU-seconds."""
    grain: float = 1.2
    """Ratio of two adjacent steps of the rank."""
    ageing: float = 3.0
    """A wait of this many times the remaining time counts as half the remaining time."""
    hysteresis: float = 2.0
    """A job preempts only if its remaining service is smaller by this factor."""
    quantum: float = 0.0
    """Seconds during which a started attempt is not preempted."""
    service_levels: tuple[float, ...] = ()
    """Attained GPU-seconds at which a job moves to the next level (`ATTAINED_SERVICE`, and jobs
    without an estimate as long as no job of the queue has reported epochs)."""
    patience: float = 0.0
    """Minimum seconds of waiting before a job is overdue. 0: no job ever is."""
    overdue: float = 300.0
    """A job is overdue after a wait of this many times its remaining time, and at least `patience`.
    No job that would delay it may start ahead of it then."""
    gpu_exponent: float = 1.0
    """Exponent of the number of GPUs in the rank (`REMAINING_SERVICE`): 1 is an order by
    GPU-seconds (SRSF), 0 by seconds (SRTF)."""
    longest_first: bool = False
    """Most remaining service first (LPT, for the makespan)."""


DAY = 86400.0
