"""Sizes of elastic jobs: how many GPUs one may start with, shrink to, or grow to by itself.

Under policies that preempt jobs of equal priority, `rebalance` decides how far a job grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic.allocation import gpu_steps
from stoker.core.measurement import estimator
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND, approximate_duration
from stoker.core.placement.placer import find_placement
from stoker.core.state.state import State

MIN_GAIN = 0.10
"""Part of the remaining time that a job must save by growing: estimates are not exact."""
MIN_GAIN_SECONDS = 10.0
"""Seconds that a job must save by growing: less is within the noise of epoch times."""
MIN_EFFICIENCY = 0.6
"""Speed per GPU relative to a smaller size, at least: below it GPUs are better left free."""
UNLIMITED_GPUS = 1 << 20
"""GPUs left in a queue without a limit: more than any cluster has."""


def gpu_count(request: ResourceRequest) -> int:
    """Return the whole GPUs requested per node."""
    return request.gpus.amount // THOUSAND if request.gpus is not None else 0


def resized(request: ResourceRequest, gpus: int, gpus_per_node: int) -> ResourceRequest:
    """Return an elastic request for a number of GPUs, of which more than the minimum are idle ones.

    More GPUs than a node has are whole nodes.
    """
    gpu_request = request.gpus
    if gpu_request is None or gpu_request.max_amount is None:
        return request
    nodes = gpus // gpus_per_node if gpus_per_node and gpus > gpus_per_node else 1
    on_idle_gpus = gpus * THOUSAND > gpu_request.amount
    amount = gpus // nodes * THOUSAND
    return replace(
        request, gpus=replace(gpu_request, amount=amount, on_idle_gpus=on_idle_gpus),
        node_count=nodes,
    )  # fmt: skip


def gpus_per_node(state: State) -> int:
    """Return the number of GPUs of the largest node."""
    nodes = state.cluster.all_nodes()
    return max((len(node.types.get(GPU, ())) for node in nodes), default=0)


def candidate_sizes(state: State, job: Job, request: ResourceRequest) -> list[ResourceRequest]:
    """Return the requests with which a job may start now, largest first."""
    gpu_request = request.gpus
    if gpu_request is None or gpu_request.max_amount is None or request.node_count > 1:
        return [request]
    min_gpus = gpu_request.amount // THOUSAND
    reach = _reach(state, job)
    gpus = min_gpus
    if target := state.memory.elastic_targets.get(job.id):
        gpus = target
    elif job.progress is not None and job.progress.gpus:
        gpus = job.progress.gpus
    elif len(state.pending) <= 1:
        gpus = _best_measured(state, job, min_gpus, reach)
    per_node = gpus_per_node(state)
    steps = gpu_steps(max(min_gpus, 1), min(reach, gpus), per_node)
    return [resized(request, step, per_node) for step in reversed(steps) if step <= gpus] or [
        request
    ]


def _reach(state: State, job: Job) -> int:
    return min(max_gpus(state, state.spec(job)), quota_left(state, job))


def max_gpus(state: State, spec: Spec) -> int:
    """Return the maximum of an elastic job: that of one node, unless it can use several."""
    assert spec.request.gpus is not None
    allowed = (spec.request.gpus.max_amount or 0) // THOUSAND
    if spec.training is not None and spec.training.distributed:
        return allowed
    return min(allowed, gpus_per_node(state))


def quota_left(state: State, job: Job) -> int:
    """Return the GPUs that the quota of its queue leaves to a job, with those that it holds."""
    left = state.gpu_quota_left(state.spec(job).queue)
    held = job.placement.gpu_amount if job.placement is not None else 0
    if left is None:
        left = 0.0
    return int((left + held) // THOUSAND) if left != inf else UNLIMITED_GPUS


def _best_measured(state: State, job: Job, min_gpus: int, max_gpus: int) -> int:
    """Return the fastest of the measured numbers of GPUs that is efficient enough."""
    spec = state.spec(job)
    profile = estimator.profile_of(state.record.profiles, job, spec)
    _, model = estimator.likely_hardware(state.cluster, job, spec, profile)
    base, _ = estimator.epoch_seconds_on(profile, min_gpus, model)
    best, fastest = min_gpus, base or 0.0
    for measured in sorted(profile.epoch_times, key=lambda measured: measured.gpus):
        if base is None or measured.model != model or not min_gpus < measured.gpus <= max_gpus:
            continue
        speedup = base / measured.epoch if measured.epoch else 0.0
        if speedup * min_gpus / measured.gpus >= MIN_EFFICIENCY and measured.epoch < fastest:
            best, fastest = measured.gpus, measured.epoch
    return best


def min_request(state: State, job: Job) -> ResourceRequest | None:
    """Return the minimum of a running elastic job if it holds more and would still run a while."""
    spec, placement = state.spec(job), job.placement
    gpu_request = spec.request.gpus
    if gpu_request is None or gpu_request.max_amount is None or placement is None:
        return None
    if spec.request.node_count > 1:
        return None
    if not (job.progress is not None and job.progress.epochs > job.progress.epochs_at_start):
        return None  # its speed with this number of GPUs has not been measured yet
    if estimator.hardware(state.cluster, placement)[0] * THOUSAND <= gpu_request.amount:
        return None
    profiles = state.record.profiles
    at = job.progress.epoch_started_at or 0.0
    left = estimator.estimate(profiles, state.cluster, job, spec, at).remaining_seconds
    profile = estimator.profile_of(profiles, job, spec)
    if left is not None and left < estimator.restart_cost(profile):
        return None
    return state.effective_request(job, spec)


def growth_candidates(
    state: State, ledger: Cluster, jobs: list[Job], now: float
) -> Iterator[tuple[Job, int, str]]:
    """Yield jobs that end earlier with more GPUs despite the restart: job, GPUs and reason."""
    for job in sorted(jobs, key=lambda job: (-job.priority, job.order)):
        placement, progress, spec = job.placement, job.progress, state.spec(job)
        gpu_request = spec.request.gpus
        if gpu_request is None or gpu_request.max_amount is None or placement is None:
            continue
        if spec.request.node_count > 1 or progress is None or not progress.accepts_stop:
            continue
        if progress.epochs <= progress.epochs_at_start:
            continue
        growth = _worthwhile_growth(state, job, now)
        if growth is None:
            continue
        gpus, saved = growth
        trial = Overlay(ledger)
        trial.release(placement)
        request = resized(state.effective_request(job, spec), gpus, gpus_per_node(state))
        target = find_placement(trial, request)
        if target is not None:
            ledger.release(placement)
            ledger.allocate(target)
            yield job, gpus, f"with {gpus} GPUs it ends {approximate_duration(saved)} sooner"


def _worthwhile_growth(state: State, job: Job, now: float) -> tuple[int, float] | None:
    """Return the number of GPUs that saves most, and the seconds, if that repays the restart."""
    spec, placement = state.spec(job), job.placement
    assert placement is not None
    profile = estimator.profile_of(state.record.profiles, job, spec)
    current_gpus, model = estimator.hardware(state.cluster, placement)
    current = profile.epoch_time_at(current_gpus, model)
    estimate = estimator.estimate(state.record.profiles, state.cluster, job, spec, now)
    left = estimate.remaining_seconds
    if current is None or left is None:
        return None
    restart = estimator.restart_cost(profile)
    best: tuple[int, float] | None = None
    for gpus in gpu_steps(current_gpus, _reach(state, job), gpus_per_node(state))[1:]:
        seconds, is_measured = estimator.epoch_seconds_on(profile, gpus, model)
        if seconds is None:
            break
        if current.epoch / max(seconds, 1e-9) * current_gpus / gpus < MIN_EFFICIENCY:
            break
        saved = left * (1 - seconds / current.epoch) - restart
        if saved > max(left * MIN_GAIN, restart, MIN_GAIN_SECONDS, best[1] if best else 0.0):
            best = (gpus, saved)
        if not is_measured:
            break  # one step beyond what is measured
    return best
