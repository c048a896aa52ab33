"""Build the state from stored rows, as a full replay would; which jobs may be unloaded."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.model.job import Job
from stoker.core.model.lifecycle import FAILED_STATES
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, TrialBoard
from stoker.core.state.eligibility import update_eligibility
from stoker.core.state.node_updates import (
    apply_node_marks,
    count_in_flight,
    held_on,
    join,
)
from stoker.core.state.record import ClusterRecord
from stoker.core.state.reranking import charge_start, update_preemptible
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import record_trial
from stoker.core.state.timers import arm_timers, set_deadline

KEEP_FINISHED = 256
"""Finished jobs kept in memory; older ones are read from the store."""
KEEP_UNACKNOWLEDGED = 1024
"""Unacknowledged failures kept in memory: longer, since job lists show them, but bounded."""
UNLOAD_BATCH = 64
"""Jobs unloaded by one event at least, so that it is not one event per finished job."""


def restore(
    record: ClusterRecord,
    specs: dict[str, Spec],
    jobs: Iterable[Job],
    sweeps: Iterable[Sweep] = (),
    members: Iterable[Job] = (),
) -> State:
    """Return the state of a snapshot, with its ledger and indexes."""
    state = State(record)
    state.specs.update(specs)
    resident = list(jobs)
    for facts in record.nodes.values():
        join(state, facts, held_on(resident, facts.name))
    for name in _removed(resident, record):
        state.cluster.remove_node(name, held_on(resident, name))
    apply_node_marks(state)
    state.sweeps.update((sweep.id, sweep) for sweep in sweeps)
    state.boards = {sweep.id: TrialBoard() for sweep in state.sweeps.values() if sweep.resident}
    for job in sorted([*members, *resident], key=lambda job: job.id):
        record_trial(state, job)
    for job in resident:
        state.load(job)
        set_deadline(state, job)
        if job.holding and job.placement is not None:
            state.restore_running(job)
            count_in_flight(state, job)
            charge_start(state, job)
            update_preemptible(state, job, 0.0)
    for job in sorted((job for job in resident if job.finished), key=_ended_at):
        state.finished[job.id] = None
        if job.state in FAILED_STATES and not job.seen:
            state.unacknowledged[job.id] = None
    for job in resident:
        # At time 0: the next cycle sends the event for a delay that has passed.
        update_eligibility(state, job, 0.0)
    for job in state.running.values():
        arm_timers(state, job)
    state.changes.take()
    for id in (*state.pending.class_of, *state.preemptible):
        state.rank_drops.set(id, 0.0)  # the next cycle ranks them, by its time
    return state


def _removed(jobs: Iterable[Job], record: ClusterRecord) -> list[str]:
    """Return the removed nodes on which gangs still hold devices."""
    placements = [job.placement for job in jobs if job.holding and job.placement is not None]
    nodes = dict.fromkeys(part.node for placement in placements for part in placement.parts)
    return [name for name in nodes if name not in record.nodes]


def _ended_at(job: Job) -> tuple[float, int]:
    return (job.ended_at or 0.0, job.id)


def unloadable_jobs(state: State) -> tuple[int, ...]:
    """Return finished jobs that may leave memory, once there are enough of them."""
    excess = len(state.finished) - len(state.unacknowledged) - KEEP_FINISHED
    unacknowledged_excess = len(state.unacknowledged) - KEEP_UNACKNOWLEDGED
    if excess < UNLOAD_BATCH and unacknowledged_excess < UNLOAD_BATCH:
        return ()
    unloadable: list[int] = []
    for id in state.finished:
        if excess <= 0 and unacknowledged_excess <= 0:
            break
        if state.dependents.get(id) or state.changes.has_job(id):
            continue  # a dependent needs it, or its end is not stored yet
        if id in state.unacknowledged:
            if unacknowledged_excess > 0:
                unacknowledged_excess -= 1
                unloadable.append(id)
        elif excess > 0:
            excess -= 1
            unloadable.append(id)
    return tuple(unloadable)
