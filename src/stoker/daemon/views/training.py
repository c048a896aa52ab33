"""The `training` and `container` fields of a JobView."""

from __future__ import annotations

from functools import cache
from os.path import dirname
from typing import Any

from msgspec import convert

from stoker import places
from stoker.core.launch import training_env as contract
from stoker.core.measurement.estimator import (
    Estimate,
    attained,
    epochs_of,
    estimate,
    profile_key,
    with_margin,
)
from stoker.core.model.job import NO_PROGRESS, Job, JobState, Progress, StopRequest
from stoker.core.model.resources import GPU, GpuRequest
from stoker.core.model.spec import Container, Spec, Training
from stoker.core.model.units import THOUSAND
from stoker.core.options.training import MAX_GPUS_PER_NODE
from stoker.core.state.state import State
from stoker.schema.training import ContainerView, StopView, TrainingView

Live = dict[str, Any]
"""What is measured of a running job but not stored: its step, metrics and current memory."""


def training_view(
    job: Job, spec: Spec, state: State | None, at: float, logs: str, live: Live
) -> TrainingView | None:
    """Return progress and measurements; None for a job that neither trains nor reports epochs."""
    if spec.training is None and job.progress is NO_PROGRESS:
        return None
    training, progress = spec.training or Training(), job.progress
    unique = contract.unique_id(_install(places.install_path()), job.id)
    known = Estimate(profile_key(job, spec))
    if state is not None and job.id in state.jobs:
        known = estimate(state.record.profiles, state.cluster, job, spec, at)
    step, gpus = live.get("step_seconds") or known.step_seconds, spec.request.gpus
    return TrainingView(
        uuid=unique,
        epochs_done=progress.epochs,
        epochs=epochs_of(job, spec),
        batch_size=training.batch_size,
        training_set_size=training.set_size,
        snapshots=training.snapshots,
        checkpoints=contract.checkpoint_directory(spec, dirname(logs), unique),
        listening=progress.accepts_stop,
        preemptions=progress.preemptions,
        stopping=_stopping(job, progress.stop, state),
        overran=progress.overran,
        ran_seconds=_rounded(attained(job, at)),
        epoch_seconds=_rounded(known.epoch_seconds),
        step_seconds=None if step is None else round(step, 6),
        expected_seconds=training.expected,
        estimate_seconds=_rounded(known.total_seconds),
        remaining_seconds=None if job.finished else _rounded(known.remaining_seconds),
        memory_reserved=_reserved_memory(job, gpus, progress, known),
        memory_peak=progress.peak,
        memory_now=live.get("memory"),
        shortages=progress.oom_count,
        elastic=_elastic(gpus),
        gpus_wanted=None if job.finished else progress.gpus,
        shares=gpus is not None and gpus.shareable and not progress.exclusive_only,
        family=known.family,
        speedups=[[gpus, _rounded(seconds)] for gpus, seconds in known.speedups],
        epoch=live.get("epoch"),
        step=live.get("step"),
        metrics=live.get("metrics") or dict(progress.metrics),
    )


@cache
def _install(path: str) -> str:
    """Return the id of this installation, which is part of every job's unique id."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _stopping(job: Job, stop: StopRequest | None, state: State | None) -> StopView | None:
    if stop is None or (job.state is JobState.COMPLETING and job.ending != "stop"):
        return None  # a request of its user comes before a request of the scheduler
    by = (
        state.jobs.get(stop.preemptor) if state is not None and stop.preemptor is not None else None
    )
    return StopView(
        why=stop.reason, by=by.label if by is not None else None, ignored=stop.timed_out
    )


def _reserved_memory(
    job: Job, gpus: GpuRequest | None, progress: Progress, known: Estimate
) -> int | None:
    """Return the memory that is reserved on each GPU, in MiB."""
    if job.placement is not None:
        takes = [
            take for part in job.placement.parts for take in part.allocations if take.type == GPU
        ]
        return max((take.memory for take in takes), default=0) or None
    if job.finished and progress.peak is not None and gpus is not None and gpus.shareable:
        return with_margin(progress.peak)  # by then the requested memory had been corrected
    requested = gpus.memory if gpus is not None else None
    return progress.reserve or requested or (known.memory if gpus is not None else None)


def _elastic(gpus: GpuRequest | None) -> list[int | None] | None:
    """Return the minimum and maximum number of GPUs of an elastic job."""
    if gpus is None or gpus.max_amount is None:
        return None
    max_gpus = None if gpus.max_amount == MAX_GPUS_PER_NODE else gpus.max_amount // THOUSAND
    return [gpus.amount // THOUSAND, max_gpus]


def container_view(container: Container | None) -> ContainerView | None:
    """Return the image in which a job runs, and what it sees of the host."""
    if container is None:
        return None
    return convert(container, ContainerView, from_attributes=True)
