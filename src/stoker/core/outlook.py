"""What is needed to foresee when jobs start and end, and what is foreseen.

The question is a copy of the state, small enough to be handed to another process; the answer
comes back from there.
"""

from __future__ import annotations

from msgspec import Struct

from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.policy.order import in_order
from stoker.core.rest import Rest
from stoker.core.state import KEEP_FINISHED, State
from stoker.core.sweep import Sweep

MOST = 1000
"""Waiting jobs that are looked at; those behind them start later."""


class Question(Struct, kw_only=True):
    """All that counts for what happens next."""

    at: float
    """Now, by the wall clock."""
    boot: float
    """Now, by the boot clock."""
    rest: Rest
    specs: dict[str, Spec]
    jobs: list[Job]
    """Those who run, the first of those who wait, and those who have ended lately."""
    sweeps: list[Sweep] = []
    since: float
    """From this moment on, every submission is among the jobs, unless too many wait."""
    runs: dict[str, list[float]] = {}
    """How long earlier jobs took, in seconds, by `name_key`."""


class Span(Struct, frozen=True):
    """A moment, and from when to when it is with a probability of 80 %, by the wall clock."""

    low: float
    likely: float | None
    """None: later than anybody can see."""
    high: float | None


class Foreseen(Struct, kw_only=True, omit_defaults=True):
    """What is to be expected of one job."""

    job: int
    start: Span | None = None
    """None: it runs already, or nobody knows."""
    end: Span | None = None
    basis: str = ""
    """What that rests on, in words."""
    never: str | None = None
    """Why nothing can be said, in words."""


class Outlook(Struct, kw_only=True):
    """The answer."""

    at: float
    """The moment at which everything was as it was played on from."""
    jobs: list[Foreseen]
    plays: int = 0
    """How often the future was played."""
    horizon: float | None = None
    """Those of whom nothing was foreseen start later than this."""


def name_key(job: Job) -> str:
    """What jobs have in common that are runs of the same thing."""
    return f"{job.user}:{job.name}"


def question(
    state: State, at: float, boot: float, runs: dict[str, list[float]], most: int = MOST
) -> Question:
    """What is to be foreseen from here on. It shares the jobs with the state: encode it at once."""
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
    """Who has ended before the oldest that is remembered may be forgotten: nobody later is."""
    if len(ended) >= KEEP_FINISHED:
        return ended[0].ended_at or 0.0
    return min((job.submitted_at for job in jobs), default=0.0)
