"""The policies by name.

EASY backfill: Lifka 1995. Conservative backfill: Mu'alem and Feitelson 2001. 2D-LAS: Tiresias,
NSDI'19.
"""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.policies.policy import (
    DAY,
    BackfillMode,
    DurationSource,
    Policy,
    QueueOrder,
)

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
