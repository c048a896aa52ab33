"""Redistribution of GPUs among elastic jobs (after Pollux, OSDI'21).

Where jobs of equal priority may preempt each other, elastic jobs are not victims one by one. In
every plan `allocate_gpus` sets the number of GPUs of each: of running jobs that can stop, and of
pending ones, elastic or not. It distributes what is free and what elastic jobs hold.

A job that gets fewer GPUs is asked to stop at once, a job that gets more only when its new devices
are free; otherwise it continues as it is. A job that has just started keeps its GPUs for a minute.
The exception is a single elastic job while none is pending: no other job could use the free GPUs,
so it grows as soon as its first epoch is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log2

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.elastic import sizes
from stoker.core.elastic.allocation import (
    ElasticJob,
    EpochTimes,
    allocate_gpus,
    epoch_seconds,
    epoch_times_at,
    gpu_steps,
    remaining_work,
)
from stoker.core.events import PreemptionRequested
from stoker.core.measurement import estimator
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import THOUSAND, approximate_duration
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import names_hardware
from stoker.core.policies.ranking import OVERDUE_RANK
from stoker.core.queue.scan import jobs_in_order
from stoker.core.state.state import REBALANCE_SECONDS, State

MAX_PENDING_CONSIDERED = 256
"""Pending jobs per plan, highest rank first: more could hardly start at once."""

ElasticKey = tuple[int, float, int]
"""Order of jobs in a rebalance: negative priority, log2 of the remaining work, submission order."""


def is_rebalanced(state: State, job: Job) -> bool:
    """Whether a rebalance sets the number of GPUs of a job."""
    spec = state.specs[job.spec]
    gpu_request = spec.request.gpus
    if gpu_request is None or gpu_request.max_amount is None:
        return False
    request = state.effective_request(job, spec)
    if spec.request.node_count > 1 or not _is_any_whole_gpus(state.cluster, request):
        return False
    # Without preemption, GPUs that a job gets are lost to pending ones.
    others_wait = len(state.pending) > (job.id in state.pending)
    return state.policy_of(spec.queue).preempts or not others_wait


def _is_any_whole_gpus(cluster: Cluster, request: ResourceRequest) -> bool:
    """Whether a request is for whole GPUs of any model on any node that is not delegated."""
    gpus, nodes = request.gpus, cluster.nodes
    delegated = {name for name in request.not_nodes if name in nodes and nodes[name].delegated}
    others = tuple(name for name in request.not_nodes if name not in delegated)
    request = replace(request, not_nodes=others)
    if gpus is None or gpus.allowed_models or gpus.min_vram or gpus.fixed_share is not None:
        return False
    if request.exclusive or names_hardware(request):
        return False
    return gpus.amount > 0 and not gpus.amount % THOUSAND


def rebalance(
    state: State, future: Cluster, now: float, boot: float
) -> Iterator[PreemptionRequested]:
    """Set the targets of elastic jobs, and yield the jobs that must shrink.

    `future` is the ledger after all stopping jobs are gone.
    """
    memory = state.memory
    memory.elastic_targets.clear()
    memory.next_rebalance = inf
    for id in [id for id in state.pending_elastic if id not in state.pending]:
        del state.pending_elastic[id]
    running = [job for _, job in sorted(state.running_elastic.items()) if is_rebalanced(state, job)]
    pending = (state.jobs[id] for id in state.pending_elastic)
    if not running and not any(is_rebalanced(state, job) for job in pending):
        return
    starts = (job.started_at or 0.0 for job in running if _has_just_started(job, now))
    memory.next_rebalance = min(starts, default=inf) + REBALANCE_SECONDS
    running = [job for job in running if _may_change(state, job, now)]
    entries = [_elastic_job(state, job, now) for job in running] + list(_pending_jobs(state, now))
    entries.sort(key=lambda entry: entry[0])
    gpus = _free_gpus(future) + sum(_held_gpus(job) for job in running)
    memory.elastic_targets = allocate_gpus(
        (elastic_job for _, elastic_job in entries), gpus, sizes.gpus_per_node(state)
    )
    for job in running:
        held, target = _held_gpus(job), memory.elastic_targets[job.id]
        if target == held or (target < held and _has_just_started(job, now)):
            del memory.elastic_targets[job.id]
        elif target < held:
            reason = f"other jobs use {held - target} of its GPUs better"
            yield _resize(
                job, reason if target else "shorter jobs are pending", now, boot, target or None
            )


def _has_just_started(job: Job, now: float) -> bool:
    started = job.started_at
    # The sum is the time of the next rebalance: a difference may be rounded to less at that time.
    return started is not None and started <= now < started + REBALANCE_SECONDS


def _resize(
    job: Job, reason: str, now: float, boot: float, gpus: int | None
) -> PreemptionRequested:
    return PreemptionRequested(
        at=now, job=job.id, attempt=job.attempt, why=reason, boot=boot, gpus=gpus
    )


def grow(state: State, ledger: Cluster, now: float, boot: float) -> Iterator[PreemptionRequested]:
    """Yield the jobs below their target that can grow on what is free in this ledger."""
    targets, per_node = state.memory.elastic_targets, sizes.gpus_per_node(state)
    for negative_target, id in sorted((-target, id) for id, target in targets.items()):
        job = state.running_elastic.get(id)
        if job is None or (placement := job.placement) is None:
            continue
        held = _held_gpus(job)
        if held >= -negative_target or not _may_change(state, job, now):
            continue
        request = state.effective_request(job, state.spec(job))
        request = state.within_horizon(job, request, now)
        target = min(-negative_target, sizes.max_gpus(state, job))
        ledger.release(placement)
        for gpus in reversed(gpu_steps(held, target, per_node)[1:]):
            if 2 * gpus < target:
                continue  # more than half of the target, or the next rebalance is better
            grown = find_placement(ledger, sizes.resized(request, gpus, per_node))
            if grown is not None:
                ledger.allocate(grown)
                state.memory.elastic_targets[id] = gpus
                yield _resize(job, _growth_reason(state, job, gpus, now), now, boot, gpus)
                break
        else:
            ledger.allocate(placement)


def _growth_reason(state: State, job: Job, gpus: int, now: float) -> str:
    _, elastic_job = _elastic_job(state, job, now)
    _, epochs = remaining_work(elastic_job)
    epoch_times = elastic_job.epoch_times
    saved = epochs * (
        epoch_seconds(epoch_times, elastic_job.current_gpus) - epoch_seconds(epoch_times, gpus)
    )
    if elastic_job.remaining_epochs is None or not epoch_times or saved <= 0:
        return f"{gpus} GPUs are free for it"
    return f"with {gpus} GPUs it ends {approximate_duration(saved)} sooner"


def covered_by_rebalance(state: State, job: int) -> bool:
    """Whether a pending job needs no victims of its own, since a rebalance frees GPUs."""
    if job in state.pending_elastic and is_rebalanced(state, state.jobs[job]):
        return True
    if job not in state.memory.elastic_targets:
        return False
    if state.memory.next_rebalance < inf:
        return True
    stops = (victim.progress.stop for victim in state.stopping.values())
    return any(stop is not None and stop.preemptor is None for stop in stops)


def _may_change(state: State, job: Job, now: float) -> bool:
    """Whether a running job can stop now, and has run long enough since it started."""
    progress = job.progress
    if job.state is not JobState.RUNNING or job.id not in state.preemptible:
        return False
    if not progress.accepts_stop or progress.stop is not None:
        return False
    is_alone = len(state.running_elastic) == 1 and not len(state.pending)
    if _has_just_started(job, now) and not (is_alone and progress.has_finished_epoch):
        return False
    return all(_is_exclusive(state.cluster, part.node, part.names(GPU)) for part in job.parts)


def _is_exclusive(cluster: Cluster, name: str, gpus: list[str]) -> bool:
    """Whether these GPUs have no other user and stay available after the job."""
    node = cluster.nodes[name]
    devices = [node.by_name[GPU, gpu] for gpu in gpus]
    return node.unavailable_reason is None and not any(
        device.removed
        or device.drained is not None
        or device.foreign_user is not None
        or device.sharers > 1
        for device in devices
    )


def _held_gpus(job: Job) -> int:
    return sum(len(part.names(GPU)) for part in job.parts)


def _free_gpus(cluster: Cluster) -> int:
    """Return the number of idle GPUs."""
    return sum(
        device.allocatable == THOUSAND
        for node in cluster.all_nodes()
        if node.unavailable_reason is None and not node.delegated
        for device in node.types.get(GPU, ())
    )


def _pending_jobs(state: State, now: float) -> Iterator[tuple[ElasticKey, ElasticJob]]:
    """Yield pending jobs for whole GPUs that no quota and no nomination keeps from starting."""
    for count, (sort_key, job_class, id) in enumerate(jobs_in_order(state.pending)):
        if count == MAX_PENDING_CONSIDERED:
            return
        job = state.jobs[id]
        if id in state.memory.nominations or state.quota_reason(job_class):
            continue
        request = state.class_request(job, job_class)
        if id in state.pending_elastic and is_rebalanced(state, job):
            key, elastic_job = _elastic_job(state, job, now)
        elif _is_any_whole_gpus(state.cluster, request):
            gpus = request.gpu_amount // THOUSAND
            elastic_job = ElasticJob(id=id, min_gpus=gpus, max_gpus=gpus)
            key = _elastic_key(state, job, elastic_job, now)
        else:
            continue
        is_overdue = sort_key[1] <= OVERDUE_RANK
        yield (key[0], -inf if is_overdue else key[1], key[2]), elastic_job


def _elastic_job(state: State, job: Job, now: float) -> tuple[ElasticKey, ElasticJob]:
    """Return an elastic job with its measurements, and its key."""
    spec = state.spec(job)
    gpu_request, progress = spec.request.gpus, job.progress
    assert gpu_request is not None
    held, min_gpus = _held_gpus(job), gpu_request.amount // THOUSAND
    max_gpus = max(sizes.max_gpus(state, job), min_gpus)
    total = estimator.epochs_of(job, spec)
    left = None if total is None else float(max(total - progress.epochs, 0))
    epoch_times = _epoch_times(state, job, total)
    if left and epoch_times and held and progress.epoch_started_at is not None:
        elapsed = max(now - progress.epoch_started_at, 0.0)
        left -= min(elapsed / max(epoch_seconds(epoch_times, held), 1e-9), 1.0)
    if not state.policy_of(spec.queue).preempts:  # it shrinks only as a victim
        min_gpus = max(min_gpus, held)
        max_gpus = max(max_gpus, min_gpus) if epoch_times else min_gpus
    elastic_job = ElasticJob(
        id=job.id,
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        current_gpus=held,
        remaining_epochs=left,
        epoch_times=tuple(entry for entry in epoch_times if entry[0] > 0 and entry[1] > 0),
        attained=estimator.attained(job, now) * max(held, min_gpus),
        restart_seconds=estimator.restart_cost(
            estimator.profile_of(state.record.profiles, job, spec)
        ),
    )
    return _elastic_key(state, job, elastic_job, now), elastic_job


def _epoch_times(state: State, job: Job, total: int | None) -> EpochTimes:
    """Return the epoch times of the job at its training stage, else those of its profile."""
    spec, progress = state.spec(job), job.progress
    if total is not None:
        by_stage: dict[int, dict[int, float]] = {}
        for stage, gpus, seconds in progress.epoch_times:
            by_stage.setdefault(stage, {})[gpus] = seconds
        stage = estimator.training_stage(progress.epochs / total)
        if epoch_times := epoch_times_at(by_stage, stage):
            return epoch_times
    profile = estimator.profile_of(state.record.profiles, job, spec)
    _, model = estimator.likely_hardware(state.cluster, job, spec)
    return tuple(
        sorted((entry.gpus, entry.epoch) for entry in profile.epoch_times if entry.model == model)
    )


def _elastic_key(state: State, job: Job, elastic_job: ElasticJob, now: float) -> ElasticKey:
    """Order by least remaining work; a running job is ahead of those with about as much work."""
    spec = state.specs[job.spec]
    policy = state.policy_of(spec.queue)
    work = remaining_work(elastic_job)[0]
    if elastic_job.min_gpus == elastic_job.max_gpus and elastic_job.remaining_epochs is None:
        seconds = estimator.remaining(state.record.profiles, state.cluster, job, spec, now)
        if seconds is not None:
            work = seconds * elastic_job.min_gpus
    rank = log2(max(work, 1.0)) + policy.fair * state.pending.user_penalties.get(job.user, 0.0)
    if elastic_job.current_gpus:
        rank -= log2(policy.hysteresis)
    return (-job.priority, rank, job.order)
