"""Global assignment when GPU models differ or GPUs are shared (after Gavel, OSDI'20).

All pending and movable jobs are placed tentatively, in order: running jobs as if they could stop at
once, but ahead by the policy's hysteresis and with a preference for their current placement. Then
as much as possible is carried out: a pending job starts if its placement is free, a running job
that was assigned another placement, or none, is asked to stop. That takes a while, so the next plan
decides again, with a preference for the previous assignment (kept as nominations).

It is used where it matters: a profile has measurements on several models, or of interference. It
considers every running job, so it is for small clusters only. The rounds of elastic jobs set their
sizes before and let them grow after it; within an assignment an elastic job is a rigid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import log2

from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic.rebalance import grow, rebalance
from stoker.core.events import AttemptPlanned, PreemptionCancelled, PreemptionRequested
from stoker.core.heterogeneous import colocation, matching
from stoker.core.heterogeneous.tentative import AssignmentEntry, TentativeAssignment, devices_of
from stoker.core.measurement.estimator import hardware
from stoker.core.model.hardware import Placement
from stoker.core.policies.policy import BackfillMode, DurationSource, Policy
from stoker.core.state.state import State

MAX_RUNNING_JOBS, MAX_NODES = 512, 256
"""Largest cluster for a global assignment, which places every running job in each plan."""
RUNNING_WEIGHT = 2.0
"""Factor on the length of a running job for the makespan, so that it rarely moves."""

Decisions = Iterator[AttemptPlanned | PreemptionRequested | PreemptionCancelled]


def applicable_policy(state: State) -> Policy | None:
    """Return the policy of a global assignment, or None if jobs are scanned one by one."""
    if not state.distinguishes_models():
        return None
    if len(state.running) > MAX_RUNNING_JOBS or len(state.cluster.nodes) > MAX_NODES:
        return None
    policy = state.policy_of("default")
    if policy.durations is not DurationSource.MEASURED:
        return None
    if not (policy.preempts or policy.longest_first):
        return None
    queues = state.record.queues
    if policy.longest_first and any(queue.strict for queue in queues.values()):
        return None
    return policy if all(state.policy_of(name) == policy for name in queues) else None


def assign(state: State, policy: Policy, now: float, boot: float) -> Decisions:
    """Yield starts and preemptions; the caller applies each before the next."""
    if state.running_elastic or state.pending_elastic:
        yield from list(rebalance(state, _ledger(state, after_stops=True), now, boot))
    assignment = TentativeAssignment(state, policy, now)
    if policy.longest_first:
        _minimize_makespan(assignment)
    else:
        _minimize_jct(assignment)
    state.memory.nominations.clear()
    for entry in assignment.entries.values():
        if entry.target is not None and entry.target is not entry.current:
            state.memory.nominations[entry.job.id] = entry.target
    yield from _decisions(state, assignment, now, boot)
    if state.memory.elastic_targets:
        yield from grow(state, _ledger(state, after_stops=False), now, boot)


def _ledger(state: State, after_stops: bool) -> Overlay:
    """Return the ledger without nominated devices, now or after all stopping jobs are gone."""
    ledger = Overlay(state.cluster)
    for job in state.stopping.values() if after_stops else ():
        if job.placement is not None:
            ledger.release(job.placement)
    for placement in state.memory.nominations.values():
        ledger.withhold(placement)
    return ledger


def _minimize_jct(assignment: TentativeAssignment) -> None:
    """Assign each job, in order, where its own time and the delay of others are smallest."""
    throughput, hysteresis = assignment.throughput, assignment.policy.hysteresis
    turns = [(entry.sort_key, entry) for entry in assignment.entries.values()]
    heapify(turns)
    gpus_behind = float(sum(entry.runtime.gpus for _, entry in turns))
    unassigned: list[AssignmentEntry] = []
    while turns:
        _, entry = heappop(turns)
        if entry.displaced_by is not None and not entry.penalized:
            # A displaced job ranks as a pending one, so that it does not displace the next.
            priority, rank, *others = entry.sort_key
            entry.sort_key = (priority, rank + log2(hysteresis), *others)
            entry.penalized = True
            heappush(turns, (entry.sort_key, entry))
            continue
        gpus_behind -= entry.runtime.gpus
        costs = matching.opportunity_cost(throughput.typical, gpus_behind, throughput.gpus)
        if not assignment.assign_best(entry, costs):
            unassigned.append(entry)
    assignment.assign_remaining()
    colocation.share(assignment, unassigned)


def _minimize_makespan(assignment: TentativeAssignment) -> None:
    """Assign the longest job first to its cheapest model; if all fit, where it ends first."""
    entries, throughput = list(assignment.entries.values()), assignment.throughput
    prices = matching.equilibrium_prices(_demands(entries), throughput.supply)
    if sum(entry.runtime.gpus for entry in entries) <= throughput.gpus:
        entries.sort(key=lambda entry: (entry.sort_key[0], -entry.fastest_seconds, entry.job.id))
        unassigned = [entry for entry in entries if not assignment.assign_best(entry, {})]
    else:
        unassigned = _assign_by_price(assignment, entries, prices)
    assignment.assign_remaining()
    colocation.pair(assignment, unassigned, prices)


def _demands(entries: list[AssignmentEntry]) -> Iterable[dict[str, float]]:
    """Return the GPU-seconds by model, summed over jobs of one profile and size."""
    demands: dict[tuple[str, int], dict[str, float]] = {}
    for entry in entries:
        demand = demands.setdefault((entry.runtime.profile, entry.runtime.gpus), {})
        for model, seconds in entry.runtime.seconds.items():
            demand[model] = demand.get(model, 0.0) + seconds * entry.runtime.gpus
    return demands.values()


def _assign_by_price(
    assignment: TentativeAssignment, entries: list[AssignmentEntry], prices: Mapping[str, float]
) -> list[AssignmentEntry]:
    """Assign jobs to their cheapest models, then to what is left; return those without any."""

    def longest_first(entry: AssignmentEntry) -> tuple[float, float, int]:
        weight = RUNNING_WEIGHT if entry.preferred else 1.0
        return entry.sort_key[0], -entry.fastest_seconds * weight, entry.job.id

    unassigned: list[AssignmentEntry] = []
    for entry in sorted(entries, key=longest_first):
        model = entry.model if entry.preferred is not None else None
        if not entry.recently_started:
            model = matching.cheapest_model(entry.runtime.seconds, prices, model)
        placement = assignment.placement_on(entry, model) if model is not None else None
        if placement is not None:
            assignment.assign(entry, placement)
        else:
            unassigned.append(entry)
    for gpus in sorted({entry.runtime.gpus for entry in unassigned}, reverse=True):
        _fill_remaining(
            assignment, [entry for entry in unassigned if entry.runtime.gpus == gpus], prices
        )
    return [entry for entry in unassigned if entry.target is None]


def _fill_remaining(
    assignment: TentativeAssignment, entries: list[AssignmentEntry], prices: Mapping[str, float]
) -> None:
    """Assign jobs to models that are not their cheapest, the job that loses least first."""
    fitness_by_job = {entry.job.id: _fitness(entry, prices) for entry in entries}
    while fitness_by_job:
        placements = {
            id: dict(assignment.placements(assignment.entries[id])) for id in fitness_by_job
        }
        best = matching.least_regret(
            {
                id: {model: value for model, value in fitness.items() if model in placements[id]}
                for id, fitness in fitness_by_job.items()
            }
        )
        if best is None:
            break
        id, model = best
        del fitness_by_job[id]
        assignment.assign(assignment.entries[id], placements[id][model])
    for id in fitness_by_job:
        assignment.assign(assignment.entries[id], None)


def _fitness(entry: AssignmentEntry, prices: Mapping[str, float]) -> dict[str, float]:
    seconds = entry.runtime.seconds
    fitness = matching.relative_fitness(seconds, prices) or dict.fromkeys(seconds, 1.0)
    if entry.preferred is not None and entry.model in fitness:
        fitness[entry.model] = min(fitness[entry.model] / matching.MOVE_HYSTERESIS, 1.0)
    return fitness


# -- decisions ------------------------------------------------------------------------------


def _decisions(state: State, assignment: TentativeAssignment, now: float, boot: float) -> Decisions:
    entries = assignment.entries
    for entry in entries.values():
        if entry.is_stopping and entry.target is entry.current:
            yield PreemptionCancelled(at=now, job=entry.job.id, attempt=entry.job.attempt)
    blocked_queues: set[str] = set()
    for entry in sorted(entries.values(), key=lambda entry: entry.sort_key):
        job, target = entry.job, entry.target
        if entry.job_class is None or entry.job_class.queue in blocked_queues:
            continue
        if target is None or not _is_free(state, assignment, target):
            if state.backfill_mode(entry.job_class.queue) is BackfillMode.STRICT:
                blocked_queues.add(entry.job_class.queue)
            continue
        if state.quota_reason(entry.job_class):
            continue
        state.memory.nominations.pop(job.id, None)
        yield AttemptPlanned(at=now, job=job.id, attempt=job.attempt, placement=target, boot=boot)
    for entry in entries.values():
        if entry.current is None or entry.target is entry.current or entry.is_stopping:
            continue
        preemptor = entry.displaced_by
        if preemptor is not None and preemptor not in state.pending:
            preemptor = None
        yield PreemptionRequested(
            at=now, job=entry.job.id, attempt=entry.job.attempt,
            why=_reason(state, entry, preemptor), boot=boot, by=preemptor,
            gpus=entry.runtime.gpus if entry.is_elastic and entry.target is not None else None,
        )  # fmt: skip


def _reason(state: State, entry: AssignmentEntry, preemptor: int | None) -> str:
    if preemptor is not None:
        return f"job {state.jobs[preemptor].label} needs its resources"
    if entry.target is None:
        return "other jobs need its resources"
    return f"it continues with {hardware(state.cluster, entry.target)[1] or 'another GPU'}"


def _is_free(state: State, assignment: TentativeAssignment, target: Placement) -> bool:
    """Whether a placement is free now, and only jobs that stay there share its GPUs."""
    if not state.cluster.is_free(target):
        return False
    devices = devices_of(target)
    for sharer in state.sharing.values():
        if sharer.placement is not None and not devices.isdisjoint(devices_of(sharer.placement)):
            entry = assignment.entries.get(sharer.id)
            if entry is None or entry.target is None:
                return False
            if devices.isdisjoint(devices_of(entry.target)):
                return False
    return True
