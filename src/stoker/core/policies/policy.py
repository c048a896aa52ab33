"""Scheduling policies as values: order of the queue, backfill, preemption, fair share.

One planner carries out all policies, so a simulation compares exactly what the daemon runs.

EASY backfill: Lifka 1995. Conservative backfill: Mu'alem and Feitelson 2001. 2D-LAS: Tiresias,
NSDI'19.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace


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


TIRESIAS_LEVELS = (3200.0, 12800.0)

_SRTF = Policy(
    name="srtf",
    about="shortest expected remaining time first; preempts",
    order=QueueOrder.REMAINING_TIME,
    durations=DurationSource.DECLARED,
    backfill=BackfillMode.UNRESTRICTED,
    preempts=True,
    hysteresis=1.0,
)
_ALL = (
    Policy(
        name="fifo",
        about="by arrival; a job that does not fit blocks the jobs behind it",
        backfill=BackfillMode.STRICT,
    ),
    Policy(
        name="skip",
        about="by arrival; jobs that do not fit are skipped",
        backfill=BackfillMode.UNRESTRICTED,
    ),
    Policy(
        name="backfill",
        about="by arrival; backfill that cannot delay the first job (EASY)",
    ),
    Policy(
        name="conservative",
        about="by arrival; backfill that cannot delay any job ahead",
        backfill=BackfillMode.CONSERVATIVE,
    ),
    Policy(
        name="sjf",
        about="shortest expected duration first; no preemption; EASY backfill",
        order=QueueOrder.REMAINING_TIME,
        durations=DurationSource.DECLARED,
    ),
    _SRTF,
    replace(
        _SRTF,
        name="srsf",
        about="fewest expected remaining GPU-seconds first; preempts",
        order=QueueOrder.REMAINING_SERVICE,
    ),
    replace(
        _SRTF,
        name="tiresias",
        about="fewest GPU-seconds used first, in three levels (2D-LAS); preempts",
        order=QueueOrder.ATTAINED_SERVICE,
        durations=DurationSource.NOTHING,
        service_levels=TIRESIAS_LEVELS,
    ),
    Policy(
        name="fair",
        about="fair share: least recent usage per user first; EASY backfill",
        order=QueueOrder.FAIR_SHARE,
        fair=1.0,
    ),
    Policy(
        name="planner",
        about="fewest remaining GPU-seconds first, as measured; preempts",
        order=QueueOrder.REMAINING_SERVICE,
        durations=DurationSource.MEASURED,
        backfill=BackfillMode.OVERDUE_ONLY,
        preempts=True,
        fair=1.0,
        gpu_exponent=0.75,
        service_levels=TIRESIAS_LEVELS,
        patience=7 * DAY,
    ),
    Policy(
        name="makespan",
        about="shortest makespan: most remaining GPU-seconds first",
        order=QueueOrder.REMAINING_SERVICE,
        durations=DurationSource.MEASURED,
        backfill=BackfillMode.UNRESTRICTED,
        longest_first=True,
    ),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}
DEFAULT_POLICY = POLICIES["backfill"]
"""Policy of a queue without a chosen one."""
PLANNER = POLICIES["planner"]
AUTO = "auto"
"""Default policy until a job of the queue reports epochs, then the planner."""
ABOUT_AUTO = f"{DEFAULT_POLICY.name} until a job of the queue reports epochs, then {PLANNER.name}"
NAMES = (AUTO, *POLICIES)
"""Names that a user may choose."""


def policy(name: str, parameters: dict[str, float] | None = None) -> Policy:
    """Return a policy by name, with other parameters if given; `auto` is the planner.

    Raises KeyError for an unknown name.
    """
    chosen = PLANNER if name == AUTO else POLICIES[name]
    return replace(chosen, **parameters) if parameters else chosen
