"""Build the state from stored rows, as a full replay would; which jobs may be unloaded."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, TrialBoard
from stoker.core.state.eligibility import update_eligibility
from stoker.core.state.node_updates import apply_node_marks, held_on, join
from stoker.core.state.record import ClusterRecord
from stoker.core.state.reranking import charge_start, update_preemptible
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import record_trial
from stoker.core.state.timers import arm_timers

KEEP_FINISHED = 256
"""Finished jobs kept in memory; older ones are read from the store. Of failures that the user has
not dismissed, which job lists show, four times as many."""


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
    for name in dict.fromkeys(part.node for job in resident if job.holding for part in job.parts):
        if name not in record.nodes:  # it was removed, and gangs still hold devices of it
            state.cluster.remove_node(name, held_on(resident, name))
    state.sweeps.update((sweep.id, sweep) for sweep in sweeps)
    state.boards = {sweep.id: TrialBoard() for sweep in state.sweeps.values() if sweep.resident}
    for job in sorted([*members, *resident], key=lambda job: job.id):
        record_trial(state, job)
    for job in resident:
        state.load(job)
        if job.holding and job.placement is not None:
            state.index_running(job, job.placement)
            state.update_stopping(job)
            charge_start(state, job)
            update_preemptible(state, job, 0.0)
    for name in state.cluster.nodes:
        apply_node_marks(state, name)
    finished = (job for job in resident if job.finished)
    for job in sorted(finished, key=lambda job: (job.ended_at or 0.0, job.id)):
        state.index_finished(job)
    for job in resident:
        # At time 0: the next cycle sends the event for a delay that has passed.
        update_eligibility(state, job, 0.0)
    for job in state.running.values():
        arm_timers(state, job)
    state.take_changes()
    # What could start by the rows has been planned. A daemon that starts reports its node, which
    # requests a plan.
    state.pending.take_planning_request()
    return state


def unloadable_jobs(state: State) -> tuple[int, ...]:
    """Return finished jobs that may leave memory, once there are enough of them."""
    excess = {
        False: len(state.finished) - len(state.unacknowledged) - KEEP_FINISHED,
        True: len(state.unacknowledged) - 4 * KEEP_FINISHED,
    }
    if max(excess.values()) < KEEP_FINISHED // 4:  # not one event per finished job
        return ()
    unloadable: list[int] = []
    for id in state.finished:
        if state.dependents.get(id) or id in state.changes.jobs:
            continue  # a dependent needs it, or its end is not stored yet
        is_unacknowledged = id in state.unacknowledged
        if excess[is_unacknowledged] > 0:
            excess[is_unacknowledged] -= 1
            unloadable.append(id)
    return tuple(unloadable)
