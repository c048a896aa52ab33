"""Forecasts of job starts and ends: their input, their samples, and the interval printed.

The input is a copy of the state, small enough to be sent to another process; the samples come
back from there, and `interval` turns them into the one number (and range) that every command
prints.
"""

from __future__ import annotations

from _blake2 import blake2b
from collections.abc import Collection, Iterable
from enum import StrEnum
from math import inf

from msgspec import Struct

from stoker.core.estimate import OVERRUN
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.policy.order import in_order
from stoker.core.policy.rank import gpus_of
from stoker.core.rest import Rest
from stoker.core.state import KEEP_FINISHED, State
from stoker.core.sweep import Sweep

MOST = 1000
"""Pending jobs in one forecast; the jobs behind them start later."""
SHARE = 0.8
"""How often the truth should be within the range."""
SOONEST_SECONDS = 1.0
"""A start or end that has not happened is at least this far away."""

OUT_OF_DATE = "the forecast is out of date, a newer one is being computed"


class Kind(StrEnum):
    """What an estimate is based on."""

    EPOCHS = "epochs"
    """Epochs of the job that were measured."""
    RUNS = "runs"
    """Earlier runs of the same command with the same arguments."""
    STATED = "stated"
    """The duration that the user stated."""
    ORDER = "order"
    """No duration is needed: nothing has to end first."""
    LIMIT = "limit"
    """Time limits: the estimate is an upper bound."""
    SIMILAR = "similar"
    """Runs of similar jobs: the same name with other arguments, the same size, recent jobs."""
    UNKNOWN = "unknown"
    """Nothing is known, so there is no estimate."""


STRENGTH = (Kind.ORDER, Kind.EPOCHS, Kind.RUNS, Kind.STATED)
"""Kinds that name the job itself, the most precise first."""


def combined(kinds: Collection[Kind]) -> Kind:
    """Return the kind of an estimate that depends on several durations."""
    if Kind.UNKNOWN in kinds:
        return Kind.UNKNOWN
    if Kind.LIMIT in kinds:
        # A sum of bounds is a bound; a sum of a bound and an estimate is neither.
        exact = all(kind in (Kind.LIMIT, Kind.ORDER) for kind in kinds)
        return Kind.LIMIT if exact else Kind.SIMILAR
    if Kind.SIMILAR in kinds:
        return Kind.SIMILAR
    return max(kinds, key=STRENGTH.index, default=Kind.ORDER)


class Question(Struct, kw_only=True):
    """The input of a forecast."""

    at: float
    """Now, by the wall clock."""
    boot: float
    """Now, by the boot clock."""
    rest: Rest
    specs: dict[str, Spec]
    jobs: list[Job]
    """Running jobs, the first pending jobs, and the jobs that ended last."""
    sweeps: list[Sweep] = []
    since: float
    """From this moment on, every submission is among the jobs, unless too many are pending."""
    runs: dict[str, list[tuple[str, float]]] = {}
    """Completed runs by `name_key`, newest first: `command_key` and seconds."""


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


class Foreseen(Struct, kw_only=True, omit_defaults=True):
    """The forecast of one job."""

    job: int
    start: Samples | None = None
    """None: it is running, or nothing can be said."""
    end: Samples | None = None
    never: str | None = None
    """Why nothing can be said, in words."""


class Outlook(Struct, kw_only=True):
    """The forecast of all jobs of a state."""

    at: float
    """The moment of the state that was simulated."""
    jobs: list[Foreseen]
    plays: int = 0
    """How many futures were simulated."""
    horizon: float | None = None
    """Jobs without a forecast start later than this."""


class Span(Struct, frozen=True):
    """An estimated moment with its range of 80 % and its basis, by the wall clock."""

    low: float
    likely: float | None
    """None: later than was simulated."""
    high: float | None
    kind: Kind
    basis: str


def interval(samples: Samples, now: float) -> Span | None:
    """Return the estimate as of now: moments that have passed without the event do not count."""
    kind, basis, soonest = samples.kind, samples.basis, now + SOONEST_SECONDS
    if kind is Kind.UNKNOWN:
        return None
    later = [inf if at is None else at for at in samples.at if at is None or at > now]
    least = [min(at, samples.until) if at == inf else at for at in later]
    edge = (1 - SHARE) / 2
    if kind is Kind.LIMIT and samples.latest is not None and samples.latest > now:
        latest = max(samples.latest, soonest)
        return Span(min(max(_at(least, edge) or latest, soonest), latest), latest, latest, kind,
                    basis)  # fmt: skip
    if not later:
        # It has outlived every sample: expect it to take longer the longer it is overdue.
        overdue = now - max(at for at in samples.at if at is not None)
        return Span(soonest, now + max(OVERRUN * overdue, SOONEST_SECONDS), None, kind, basis)
    low, likely, high = _at(least, edge), _at(later, 0.5), _at(later, 1 - edge)
    return Span(
        max(low or soonest, soonest),
        None if likely is None else max(likely, soonest),
        None if high is None else max(high, soonest),
        kind,
        basis,
    )


def _contradicted(start: Samples, now: float) -> bool:
    """Return True if a pending job should have started by now: the whole queue is late."""
    if start.kind is Kind.LIMIT and start.latest is not None:
        return start.latest <= now
    return 2 * sum(at is not None and at <= now for at in start.at) > len(start.at)


class Told(Struct, frozen=True):
    """What every command says about one job."""

    at: float
    """The moment of the state that was simulated."""
    start: Span | None = None
    end: Span | None = None
    never: str | None = None
    """Why there is no estimate, in words."""


def told_of(found: Foreseen, job: Job, at: float, now: float) -> Told:
    """Return the estimate of an unfinished job, from a forecast made at `at`."""
    if job.held:
        return Told(at, never="it is held")
    start = found.start if job.placement is None else None
    if start is not None and _contradicted(start, now):
        return Told(at, never=OUT_OF_DATE)
    starts = interval(start, now) if start is not None else None
    ends = interval(found.end, now) if found.end is not None else None
    never, needed = found.never, start or found.end
    if needed is not None and needed.kind is Kind.UNKNOWN:
        never = needed.basis
    return Told(at, starts, ends, never)


def last_of(parts: Iterable[Samples], scale: float, at: float) -> Samples | None:
    """Return when the last of several jobs ends, with the time from `at` on times `scale`."""
    found = list(parts)
    if not found:
        return None
    ends = [
        None if None in plays else at + scale * (max(end for end in plays if end is not None) - at)
        for plays in zip(*(each.at for each in found), strict=True)
    ]
    kind = combined([each.kind for each in found] + [Kind.SIMILAR] * (scale != 1.0))
    basis = next((each.basis for each in found if each.kind is kind), found[0].basis)
    latest = [inf if each.latest is None else each.latest for each in found if each.kind is kind]
    bounded = kind is Kind.LIMIT and max(latest) < inf
    return Samples(
        at=ends, until=min(each.until for each in found), kind=kind, basis=basis,
        latest=max(latest) if bounded else None,
    )  # fmt: skip


def _at(values: list[float], share: float) -> float | None:
    """Return the quantile; None where it is infinite or there is no value."""
    if not values:
        return None
    values = sorted(values)
    place = min(max(share * (len(values) + 1) - 1, 0.0), len(values) - 1.0)
    low, high = values[int(place)], values[min(int(place) + 1, len(values) - 1)]
    part = place - int(place)
    found = low if part < 1e-9 else low + part * (high - low)
    return found if found < inf else None


def run_seconds(job: Job) -> float | None:
    """Return how long a completed job ran; one that goes on after a stop, in all its attempts."""
    if job.ended_at is None or job.started_at is None:
        return None
    before = job.progress.ran if job.progress is not None else 0.0
    return max(job.ended_at - job.started_at - job.slack + before, 0.0)


def command_key(job: Job, spec: Spec) -> str:
    """Return what runs of one command with the same arguments have in common, as a hash."""
    command = (job.command,) if isinstance(job.command, str) else job.command or ()
    parts = (spec.directory, spec.script or "", *command, *spec.args, f"{gpus_of(spec.request)}")
    return blake2b("\0".join(parts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def name_key(job: Job) -> str:
    """Return what runs of one program have in common, whatever its arguments."""
    return f"{job.user}:{job.name}"


def question(
    state: State,
    at: float,
    boot: float,
    runs: dict[str, list[tuple[str, float]]],
    most: int = MOST,
) -> Question:
    """Return the input of a forecast. It shares the jobs with the state: encode it at once."""
    chosen = dict(state.running)
    chosen.update((job.id, job) for job in in_order(state.line, state.jobs, most))
    apart = min(state.live - len(state.running) - len(state.line), most)
    for id, job in state.jobs.items() if apart > 0 else ():
        if job.state is JobState.PENDING and id not in state.line:
            chosen[id] = job
            apart -= 1
            if not apart:
                break
    ended = [state.jobs[id] for id in state.finished]
    chosen.update((job.id, job) for job in ended)
    jobs = list(chosen.values())
    return Question(
        at=at,
        boot=boot,
        rest=state.rest,
        specs={job.spec: state.specs[job.spec] for job in jobs},
        jobs=jobs,
        sweeps=[state.sweeps[id] for id in dict.fromkeys(_sweeps(state, jobs))],
        since=_since(jobs, ended),
        runs=runs,
    )


def _sweeps(state: State, jobs: list[Job]) -> list[int]:
    arrays = (job.array for job in jobs if job.params is not None)
    return [array for array in arrays if array is not None and array in state.sweeps]


def _since(jobs: list[Job], ended: list[Job]) -> float:
    """Return from when on every submission is among the jobs."""
    if len(ended) >= KEEP_FINISHED:
        return ended[0].ended_at or 0.0
    return min((job.submitted_at for job in jobs), default=0.0)
