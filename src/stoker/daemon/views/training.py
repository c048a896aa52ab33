"""How far a training job is and what is known of its kind, as the API shows it."""

from __future__ import annotations

from functools import cache
from os.path import dirname
from typing import Any

from stoker.core import contract
from stoker.core.estimate import Estimate, attained, epochs_of, estimate, family_of, with_margin
from stoker.core.job import Container, Job, Progress, Spec, Stop, Training
from stoker.core.lifecycle import JobState
from stoker.core.request import GPU, GpuAsk
from stoker.core.state import State
from stoker.core.training_options import ALL_OF_A_MACHINE
from stoker.core.units import THOUSAND

Live = dict[str, Any]
"""What is seen of a running job but not kept: its step, its metrics, its memory now."""


def training_view(
    job: Job, spec: Spec, state: State | None, at: float, logs: str, live: Live
) -> dict[str, Any] | None:
    """One training job; None for any other that has said nothing of epochs either."""
    if spec.training is None and job.progress is None:
        return None
    training, progress = spec.training or Training(), job.progress or Progress()
    unique = contract.unique_id(_install(dirname(logs)), job.id)
    known = Estimate(family_of(job, spec))
    if state is not None and job.id in state.jobs:
        known = estimate(state.rest.families, state.cluster, job, spec, at)
    return {
        "uuid": unique,
        "epochs_done": progress.epochs,
        "epochs": epochs_of(job, spec),
        "batch_size": training.batch_size,
        "training_set_size": training.set_size,
        "snapshots": training.snapshots,
        "checkpoints": contract.checkpoints(spec, dirname(logs), unique),
        "listening": progress.listening,
        "preemptions": progress.preemptions,
        "stopping": _stopping(job, progress.stop, state),
        "overran": progress.overran,
        "ran_seconds": _rounded(attained(job, at)),
        **_time(training, known, live, over=job.finished),
        **_memory(job, spec, progress, known, live),
        **_gpus(spec.request.gpus, progress, over=job.finished),
        "family": known.family,
        "speedups": [[gpus, _rounded(seconds)] for gpus, seconds in known.speedups],
        "epoch": live.get("epoch"),
        "step": live.get("step"),
        "metrics": live.get("metrics") or dict(progress.metrics),
    }


@cache
def _install(home: str) -> str:
    """The name of this installation, which is part of every job's unique id."""
    try:
        with open(f"{home}/install", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _stopping(job: Job, stop: Stop | None, state: State | None) -> dict[str, Any] | None:
    if stop is None or (job.state is JobState.COMPLETING and job.ending != "stop"):
        return None  # what its owner wants of it comes before what others want
    by = state.jobs.get(stop.by) if state is not None and stop.by is not None else None
    return {
        "why": stop.why, "by": by.label if by is not None else None, "ignored": stop.ignored,
    }  # fmt: skip


def _time(training: Training, known: Estimate, live: Live, over: bool) -> dict[str, Any]:
    step = live.get("step_seconds") or known.step_seconds
    return {
        "epoch_seconds": _rounded(known.epoch_seconds),
        "step_seconds": None if step is None else round(step, 6),
        "expected_seconds": training.expected,
        "estimate_seconds": _rounded(known.total_seconds),
        "remaining_seconds": None if over else _rounded(known.remaining_seconds),
    }


def _memory(
    job: Job, spec: Spec, progress: Progress, known: Estimate, live: Live
) -> dict[str, Any]:
    """MiB on one GPU: what is set aside, what was seen at most, and what is seen now."""
    ask = spec.request.gpus
    asked = ask.memory if ask is not None else None
    reserved = progress.reserve or asked or (known.memory if ask is not None else None)
    if job.placement is not None:
        takes = [take for part in job.placement.parts for take in part.takes if take.type == GPU]
        reserved = max((take.memory for take in takes), default=0) or None
    elif job.finished and progress.peak is not None and ask is not None and ask.beside:
        reserved = with_margin(progress.peak)  # what was asked for was corrected by then
    return {
        "memory_reserved": reserved,
        "memory_peak": progress.peak,
        "memory_now": live.get("memory"),
        "shortages": progress.shortages,
    }


def _gpus(ask: GpuAsk | None, progress: Progress, over: bool) -> dict[str, Any]:
    elastic = None
    if ask is not None and ask.most is not None:
        most = None if ask.most == ALL_OF_A_MACHINE else ask.most // THOUSAND
        elastic = [ask.amount // THOUSAND, most]
    return {
        "elastic": elastic,
        "gpus_wanted": None if over else progress.gpus,
        "shares": ask is not None and ask.beside and not progress.alone,
    }


def container_view(container: Container | None) -> dict[str, Any] | None:
    """The image that a job runs in, and what of the machine it sees."""
    if container is None:
        return None
    return {
        "image": container.image,
        "mounts": [
            {
                "source": mount.source,
                "target": mount.target,
                "read_only": mount.read_only,
                "optional": mount.optional,
            }
            for mount in container.mounts
        ],
        "ports": [list(pair) for pair in container.ports],
    }
