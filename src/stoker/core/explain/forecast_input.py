"""The input of a forecast: a copy of the state, small enough to be sent to another process."""

from __future__ import annotations

from _blake2 import blake2b
from itertools import islice

from msgspec import Struct

from stoker.core.model.hardware import NodeFacts
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.policies.ranking import gpus_of
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.record import ClusterRecord
from stoker.core.state.restore import KEEP_FINISHED
from stoker.core.state.state import State

MAX_PENDING_JOBS = 1000
"""Pending jobs in one forecast; jobs behind them start later, and their position is unknown."""


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
