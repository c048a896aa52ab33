"""Co-location: two jobs share a GPU only if they make clearly more progress than in turns.

Interference is measured when two jobs share a GPU, or imported. An unmeasured pair may share if
its memory fits, until the first epochs are measured; if sharing does not pay, the next plan
separates the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.heterogeneous.matching import MOVE_HYSTERESIS, relative_fitness
from stoker.core.heterogeneous.tentative import AssignmentEntry, TentativeAssignment, devices_of
from stoker.core.heterogeneous.throughput import interference
from stoker.core.measurement.estimator import hardware, profile_key
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.placer import find_placement
from stoker.core.state.state import State

MIN_COLOCATION_GAIN = 0.2
"""Additional progress of two jobs on one GPU relative to one alone, at least."""


class Colocation(Struct, frozen=True):
    """A job, and a GPU of another job that it could share."""

    seconds: float
    """Seconds that the job needs there alone, with the restart if it would have to move."""
    other_seconds: float
    """Seconds that the other job needs alone."""
    speed: float
    """Part of its speed that the job keeps."""
    other_speed: float
    """Part of its speed that the other job keeps."""
    is_preferred: bool = False
    """Whether they share already, or were to by the last plan."""

    @property
    def pays(self) -> bool:
        """Whether the two make clearly more progress together than one after the other."""
        return colocation_gain(self.speed, self.other_speed) > MIN_COLOCATION_GAIN

    @property
    def cost(self) -> float:
        """The job's own time and the delay of the other."""
        end, other_end = colocated_finish(
            self.seconds, self.other_seconds, self.speed, self.other_speed
        )
        if end == inf:
            return inf
        seconds = end + max(other_end - self.other_seconds, 0.0)
        return seconds * MOVE_HYSTERESIS if self.is_preferred else seconds


def colocation_gain(
    speed: float, other_speed: float, fitness: float = 1.0, other_fitness: float = 1.0
) -> float:
    """Return the additional progress of a GPU when a second job joins the one on it.

    Fitness weighs the progress of a job by how well the model suits it.
    """
    if speed <= 0.0 or other_speed <= 0.0:  # measured not to fit together
        return -inf
    return speed * fitness - (1.0 - other_speed) * other_fitness


def colocated_finish(
    seconds: float, other_seconds: float, speed: float, other_speed: float
) -> tuple[float, float]:
    """Return when each of two jobs on one GPU ends; the last one continues alone."""
    if speed <= 0.0 or other_speed <= 0.0:
        return inf, inf
    if seconds / speed <= other_seconds / other_speed:
        end = seconds / speed
        return end, end + max(other_seconds - end * other_speed, 0.0)
    end = other_seconds / other_speed
    return end + max(seconds - end * speed, 0.0), end


def best_colocation(colocations: Sequence[Colocation]) -> int | None:
    """Return the index of the cheapest co-location that pays."""
    paying = [
        (colocation.cost, index) for index, colocation in enumerate(colocations) if colocation.pays
    ]
    return min(paying)[1] if paying else None


class SharedGpu(Struct, eq=False):
    """The GPU of a job that may share it, and the jobs that join it."""

    entry: AssignmentEntry
    model: str
    sharers: list[AssignmentEntry]


def share(assignment: TentativeAssignment, entries: list[AssignmentEntry]) -> None:
    """Let each job without a GPU join the one with which both end soonest."""
    hosts = _hosts(assignment)
    for entry in entries:
        fitting = [host for host in hosts if _fits(assignment, entry, host)]
        chosen = best_colocation([_colocation(assignment, entry, host) for host in fitting])
        if chosen is not None:
            _add_sharer(assignment, entry, fitting[chosen])


def pair(
    assignment: TentativeAssignment, entries: list[AssignmentEntry], prices: Mapping[str, float]
) -> None:
    """Let jobs without a GPU join others in the pairs that gain most, weighed by prices."""
    hosts = _hosts(assignment)
    pairs: list[tuple[float, int, int]] = []
    gains: dict[tuple[str, str, str], float] = {}
    for entry in entries:
        for index, host in enumerate(hosts if entry.may_share else ()):
            key = (entry.runtime.profile, host.entry.runtime.profile, host.model)
            gain = gains.get(key)
            if gain is None:
                gain = gains[key] = _gain(assignment, entry, host, prices)
            if gain > MIN_COLOCATION_GAIN:
                gain = gain / MOVE_HYSTERESIS if _is_preferred(entry, host) else gain
                pairs.append((-gain, entry.job.id, index))
    for _, id, index in sorted(pairs):
        entry, host = assignment.entries[id], hosts[index]
        if entry.target is None and not host.sharers and _fits(assignment, entry, host):
            _add_sharer(assignment, entry, host)


def _hosts(assignment: TentativeAssignment) -> list[SharedGpu]:
    cluster = assignment.state.cluster
    return [
        SharedGpu(entry, hardware(cluster, entry.target)[1], [])
        for entry in assignment.entries.values()
        if entry.may_share and entry.target is not None
    ]


def _fits(assignment: TentativeAssignment, entry: AssignmentEntry, host: SharedGpu) -> bool:
    """Whether a job may share GPUs, and the memory of this one is enough for it."""
    target, gpu_request = host.entry.target, entry.request.gpus
    if not entry.may_share or target is None or gpu_request is None:
        return False
    device = assignment.device(target.node, target.names(GPU)[0])
    return device.memory_free - device.foreign_memory >= (gpu_request.memory or 0)


def _colocation(
    assignment: TentativeAssignment, entry: AssignmentEntry, host: SharedGpu
) -> Colocation:
    """Return the co-location of a job with all jobs on a GPU."""
    seconds = entry.runtime.seconds.get(host.model)
    if seconds is None:
        return Colocation(inf, inf, 0.0, 0.0)
    is_preferred = _is_preferred(entry, host)
    if not is_preferred and (entry.current is not None or entry.job.attempt):
        seconds += entry.runtime.restart
    speed, other_speed = 1.0, 1.0
    for other in (host.entry, *host.sharers):
        speed_beside, speed_of_other = _interference(assignment, entry, other, host.model)
        speed, other_speed = speed * speed_beside, min(other_speed, speed_of_other)
    other_seconds = host.entry.runtime.seconds.get(host.model, inf)
    return Colocation(seconds, other_seconds, speed, other_speed, is_preferred)


def _gain(
    assignment: TentativeAssignment,
    entry: AssignmentEntry,
    host: SharedGpu,
    prices: Mapping[str, float],
) -> float:
    fitness = relative_fitness(entry.runtime.seconds, prices).get(host.model)
    other_fitness = relative_fitness(host.entry.runtime.seconds, prices).get(host.model, 1.0)
    speed, other_speed = _interference(assignment, entry, host.entry, host.model)
    if fitness is None:
        return -inf
    return colocation_gain(speed, other_speed, fitness, other_fitness)


def _interference(
    assignment: TentativeAssignment, entry: AssignmentEntry, other: AssignmentEntry, model: str
) -> tuple[float, float]:
    """Return the parts of their speeds that two jobs keep on one GPU."""
    state, profile, other_profile = assignment.state, entry.runtime.profile, other.runtime.profile
    return (
        interference(state, profile, other_profile, model),
        interference(state, other_profile, profile, model),
    )


def _is_preferred(entry: AssignmentEntry, host: SharedGpu) -> bool:
    """Whether a job shares this GPU already, or was to by the last plan."""
    if entry.preferred is None or host.entry.target is None:
        return False
    return not devices_of(entry.preferred).isdisjoint(devices_of(host.entry.target))


def _add_sharer(assignment: TentativeAssignment, entry: AssignmentEntry, host: SharedGpu) -> None:
    target, ledger = host.entry.target, assignment.target_ledger
    assert target is not None
    assert entry.request.gpus is not None
    if entry.preferred and _is_preferred(entry, host) and ledger.is_free(entry.preferred):
        entry.target = entry.preferred
    else:
        gpus = replace(entry.request.gpus, required=tuple(target.names(GPU)), on_idle_gpus=False)
        entry.target = find_placement(
            ledger, replace(entry.request, gpus=gpus, nodes=(target.node,))
        )
    if entry.target is not None:
        ledger.allocate(entry.target)
        host.sharers.append(entry)


def without_bad_sharers(state: State, job: Job, request: ResourceRequest) -> ResourceRequest:
    """Return a request for idle GPUs if sharing with a job in the cluster is known not to pay."""
    gpus = request.gpus
    if gpus is None or not gpus.shareable or gpus.on_idle_gpus or not state.sharing:
        return request
    if all(_may_pay(state, job, sharer) for sharer in state.sharing.values()):
        return request
    return replace(request, gpus=replace(gpus, on_idle_gpus=True))


def _may_pay(state: State, job: Job, sharer: Job) -> bool:
    """Whether sharing a GPU with a running job pays, as far as it was measured."""
    if sharer.placement is None:
        return True
    model = hardware(state.cluster, sharer.placement)[1]
    key, other_key = profile_key(job, state.spec(job)), profile_key(sharer, state.spec(sharer))
    speed = interference(state, key, other_key, model)
    other_speed = interference(state, other_key, key, model)
    return colocation_gain(speed, other_speed) > MIN_COLOCATION_GAIN
