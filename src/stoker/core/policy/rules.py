"""Policies by name: who goes first, what may slip into gaps, and who makes room for whom.

A policy is a value. The planner is one piece of code for all of them, so that what is compared in
a simulation is what runs in the daemon. A queue goes by the policy that was chosen for it.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace


class Order(Enum):
    """By what those of equal priority are ordered."""

    ARRIVAL = "arrival"
    """Who came first."""
    TIME = "time"
    """Who needs the least time from now on."""
    SERVICE = "service"
    """Who needs the fewest GPU-seconds from now on."""
    ATTAINED = "attained"
    """Who has had the fewest GPU-seconds, in a few steps; within a step, who came first."""
    SHARE = "share"
    """Whose owner has had the least lately, compared with what is theirs."""


class Knows(Enum):
    """What is believed about how long a job takes."""

    NOTHING = "nothing"
    SAID = "said"
    """What its owner said it takes. In a simulation that is the truth."""
    LIMIT = "limit"
    """That it takes no longer than its time limit."""
    MEASURED = "measured"
    """Its epochs, once the first ones are over; until then, what it has had; else its limit."""


class Gaps(Enum):
    """Who may start although somebody before it cannot."""

    NOBODY = "nobody"
    ANYBODY = "anybody"
    EASY = "easy"
    """Whoever cannot delay the first that has no room."""
    CONSERVATIVE = "conservative"
    """Whoever cannot delay anybody of the first hundred that have no room."""
    OVERDUE = "overdue"
    """Anybody, but whoever has waited too long is not delayed any more."""


class Policy(Struct, frozen=True, kw_only=True):
    """How a queue is worked off."""

    name: str
    about: str
    order: Order = Order.ARRIVAL
    knows: Knows = Knows.NOTHING
    gaps: Gaps = Gaps.EASY
    preempts: bool = False
    """Whether those who can stop and go on later make room for others of equal priority."""
    fair: float = 0.0
    """How much it counts what a user has had lately: doublings of a job's service for each
    doubling of the user's usage above the average. 0: not at all."""
    floor: float = 1200.0
    """Seconds that every job is taken to need which has not been measured, if it has had little."""
    grain: float = 1.2
    """Jobs are told apart by what they need in steps of this ratio."""
    ageing: float = 30.0
    """One that has waited so many times what it needs stands as if it needed half."""
    hysteresis: float = 4.5
    """A running job makes room for one that needs so many times less."""
    quantum: float = 0.0
    """Seconds that an attempt has for itself before it is asked to make room."""
    steps: tuple[float, ...] = ()
    """Attained GPU-seconds at which a job moves to the next step (`Order.ATTAINED`)."""
    patience: float = 0.0
    """Seconds of waiting before which nobody is overdue. 0: nobody ever is."""
    overdue: float = 300.0
    """A job is overdue when it has waited so many times what it needs, and that long at least.
    Nobody passes it any more."""
    longest: bool = False
    """The most service first, for the end of all that waits (makespan)."""


PARAMETERS = (
    "fair", "floor", "grain", "ageing", "hysteresis", "quantum", "patience", "overdue"
)  # fmt: skip
"""What may be chosen besides the name."""

DAY = 86400.0

_ALL = (
    Policy(
        name="fifo",
        about="by arrival; a job that does not fit blocks the jobs behind it",
        gaps=Gaps.NOBODY,
    ),
    Policy(
        name="skip",
        about="by arrival; jobs that do not fit are skipped",
        gaps=Gaps.ANYBODY,
    ),
    Policy(
        name="backfill",
        about="by arrival; backfill that cannot delay the first job (EASY)",
    ),
    Policy(
        name="conservative",
        about="by arrival; backfill that cannot delay any job ahead",
        gaps=Gaps.CONSERVATIVE,
    ),
    Policy(
        name="sjf",
        about="shortest expected duration first; no preemption; EASY backfill",
        order=Order.TIME,
        knows=Knows.SAID,
    ),
    Policy(
        name="srtf",
        about="shortest expected remaining time first; preempts",
        order=Order.TIME,
        knows=Knows.SAID,
        gaps=Gaps.ANYBODY,
        preempts=True,
        hysteresis=1.0,
    ),
    Policy(
        name="srsf",
        about="fewest expected remaining GPU-seconds first; preempts",
        order=Order.SERVICE,
        knows=Knows.SAID,
        gaps=Gaps.ANYBODY,
        preempts=True,
        hysteresis=1.0,
    ),
    Policy(
        name="tiresias",
        about="fewest GPU-seconds used first, in three levels (2D-LAS); preempts",
        order=Order.ATTAINED,
        gaps=Gaps.ANYBODY,
        preempts=True,
        hysteresis=1.0,
        steps=(3200.0, 12800.0),
    ),
    Policy(
        name="fair",
        about="fair share: least recent usage per user first; EASY backfill",
        order=Order.SHARE,
        fair=1.0,
    ),
    Policy(
        name="planner",
        about="fewest remaining GPU-seconds first, as measured; preempts",
        order=Order.SERVICE,
        knows=Knows.MEASURED,
        gaps=Gaps.OVERDUE,
        preempts=True,
        fair=0.5,
        patience=7 * DAY,
    ),
    Policy(
        name="makespan",
        about="shortest makespan: most remaining GPU-seconds first",
        order=Order.SERVICE,
        knows=Knows.MEASURED,
        gaps=Gaps.ANYBODY,
        longest=True,
    ),
)
POLICIES: dict[str, Policy] = {each.name: each for each in _ALL}
USUAL = POLICIES["backfill"]
"""What a queue goes by for which nobody has chosen anything."""
PLANNER = POLICIES["planner"]
AUTO = "auto"
"""A queue goes by the planner from the moment at which one of its jobs reports epochs."""
ABOUT_AUTO = f"{USUAL.name} until a job of the queue reports epochs, then {PLANNER.name}"
NAMES = (AUTO, *POLICIES)
"""What can be chosen."""


def policy(name: str, parameters: dict[str, float] | None = None) -> Policy:
    """A policy by its name, if need be with other parameters than its own; `auto` is the planner.

    Raises KeyError for a name that is none.
    """
    found = PLANNER if name == AUTO else POLICIES[name]
    return replace(found, **parameters) if parameters else found
