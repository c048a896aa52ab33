"""Forecasts of job starts and ends: samples of simulated futures, and the estimates made of them.

The samples come from a helper process. Its input is a copy of the state, small enough to be sent.
"""

from __future__ import annotations

from _blake2 import blake2b
from collections.abc import Collection
from enum import StrEnum
from itertools import islice

from msgspec import Struct

from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.policies.ranking import gpus_of
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.record import ClusterRecord
from stoker.core.state.restore import KEEP_FINISHED
from stoker.core.state.state import State

CLUSTER_DECIDES = "the cluster decides when it starts"
CLUSTER_SCHEDULE = "the schedule of its cluster"
MAX_PENDING_JOBS = 1000
"""Pending jobs in one forecast; jobs behind them start later, and their position is unknown."""


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


class ExpectedNode(Struct, frozen=True):
    """A node that another scheduler is expected to provide."""

    at: float
    """When it does so, by the wall clock."""
    facts: NodeFacts


class ForecastInput(Struct, kw_only=True):
    """The input of a forecast."""

    at: float
    """Now, by the wall clock."""
    boot: float
    """Now, by the boot clock."""
    record: ClusterRecord
    specs: dict[str, Spec]
    jobs: list[Job]
    """Running jobs, the first pending jobs, and the jobs that ended last."""
    sweeps: list[Sweep] = []
    since: float
    """From this time on, every submission is among the jobs, unless too many are pending."""
    runs: dict[str, list[tuple[str, float]]] = {}
    """Completed runs by `name_key`, newest first: `command_key` and seconds."""
    expected_nodes: list[ExpectedNode] = []


def command_key(job: Job, spec: Spec) -> str:
    """Return what runs of one command with the same arguments have in common, as a hash."""
    command = (job.command,) if isinstance(job.command, str) else job.command or ()
    parts = (spec.directory, spec.script or "", *command, *spec.args, f"{gpus_of(spec.request)}")
    return blake2b("\0".join(parts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def name_key(job: Job) -> str:
    """Return what runs of one program have in common, whatever its arguments."""
    return f"{job.user}:{job.name}"


def forecast_input(
    state: State,
    at: float,
    boot: float,
    runs: dict[str, list[tuple[str, float]]],
    expected_nodes: list[ExpectedNode] | None = None,
) -> ForecastInput:
    """Return the input of a forecast. It shares the jobs with the state: encode it at once."""
    eligible = first_jobs(state.pending, state.jobs, MAX_PENDING_JOBS)
    ineligible = (
        job
        for id, job in state.jobs.items()
        if job.state is JobState.PENDING and id not in state.pending
    )
    count = min(state.live - len(state.running) - len(state.pending), MAX_PENDING_JOBS)
    ended = [state.jobs[id] for id in state.finished]
    jobs = [*state.running.values(), *eligible, *islice(ineligible, max(count, 0)), *ended]
    sweeps = {job.array for job in jobs if job.params is not None}
    specs = {job.spec: state.specs[job.spec] for job in jobs}
    since = min((job.submitted_at for job in jobs), default=0.0)
    if len(ended) >= KEEP_FINISHED:
        since = ended[0].ended_at or 0.0
    return ForecastInput(
        at=at, boot=boot, record=state.record, specs=specs, jobs=jobs,
        sweeps=[sweep for id, sweep in state.sweeps.items() if id in sweeps],
        since=since, runs=runs, expected_nodes=expected_nodes or [],
    )  # fmt: skip
