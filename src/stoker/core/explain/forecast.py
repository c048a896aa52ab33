"""Forecasts of job starts and ends: samples of simulated futures, and the estimates made of them.

The samples come from a helper process, whose input is in `forecast_input`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

CLUSTER_DECIDES = "the cluster decides when it starts"
CLUSTER_SCHEDULE = "the schedule of its cluster"


class Kind(StrEnum):
    """What an estimate is based on, the most precise basis first."""

    ORDER = "order"
    """No duration is needed: nothing has to end first."""
    EPOCHS = "epochs"
    """Epochs of the job that were measured."""
    RUNS = "runs"
    """Earlier runs of the same command with the same arguments."""
    STATED = "stated"
    """The duration that the user stated."""
    LIMIT = "limit"
    """Time limits: the estimate is an upper bound."""
    SIMILAR = "similar"
    """Runs of similar jobs: the same name with other arguments, the same size, recent jobs."""
    UNKNOWN = "unknown"
    """Nothing is known, so there is no estimate."""


def combined(kinds: Collection[Kind]) -> Kind:
    """Return the kind of an estimate that depends on several durations: the least precise."""
    precision = [*Kind]
    if Kind.LIMIT in kinds and not {Kind.LIMIT, Kind.ORDER}.issuperset(kinds):
        # A sum of bounds is a bound; a sum of a bound and an estimate is neither.
        kinds = {*kinds, Kind.SIMILAR}
    return max(kinds, key=precision.index, default=Kind.ORDER)


class Samples(Struct, kw_only=True, omit_defaults=True):
    """When a job starts or ends, in each simulated future."""

    at: list[float | None]
    """In the order of the futures; None: later than was simulated."""
    until: float
    """Every future was simulated at least until then."""
    kind: Kind
    basis: str
    """What the estimate is based on, in words; with `UNKNOWN`, what is missing."""
    latest: float | None = None
    """When it happens if every job ahead uses its whole time limit."""


class JobForecast(Struct, kw_only=True, omit_defaults=True):
    """The forecast of one job."""

    job: int
    start: Samples | None = None
    """None: it is running, or there is no forecast."""
    end: Samples | None = None
    never: str | None = None
    """Why there is no forecast, in words."""


class Forecast(Struct, kw_only=True):
    """The forecast of all jobs of a state."""

    at: float
    """The time of the state that was simulated."""
    jobs: list[JobForecast]
    plays: int = 0
    """How many futures were simulated."""
    horizon: float | None = None
    """Jobs without a forecast start later than this."""


class TimeInterval(Struct, frozen=True):
    """An estimated time with its range of 80 % and its basis, on the wall clock."""

    low: float
    likely: float | None
    """None: later than was simulated."""
    high: float | None
    kind: Kind
    basis: str


class StartEndEstimate(Struct, frozen=True):
    """The estimate of one job that every command prints."""

    at: float
    """The time of the state that was simulated."""
    start: TimeInterval | None = None
    end: TimeInterval | None = None
    never: str | None = None
    """Why there is no estimate, in words."""
