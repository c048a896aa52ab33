"""From rows to state: the same state that a full replay of the journal gives."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush

from stoker.core.admission import admit
from stoker.core.clock import watch
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import UNHAPPY
from stoker.core.rest import Rest
from stoker.core.standings import look_whether_stoppable, took_up
from stoker.core.state import State, held_on
from stoker.core.sweep import Board, Sweep
from stoker.core.trials import note_trial


def restore(
    rest: Rest, specs: dict[str, Spec], jobs: Iterable[Job], sweeps: Iterable[Sweep] = (),
    members: Iterable[Job] = (),
) -> State:  # fmt: skip
    """Build the state, with its ledger and indexes, from what a snapshot holds."""
    state = State(rest)
    state.specs = dict(specs)
    known = list(jobs)
    for facts in rest.nodes.values():
        state.join(facts, held_on(known, facts.name))
    for name in _removed(known, rest):
        state.cluster.leave(name, held_on(known, name))
    state.mark_devices()
    state.sweeps = {sweep.id: sweep for sweep in sweeps}
    state.boards = {sweep.id: Board() for sweep in state.sweeps.values() if sweep.resident}
    for job in sorted([*members, *known], key=lambda job: job.id):
        note_trial(state, job)
    for job in known:
        state.enter(job)
        deadline = state.deadline(job)
        if deadline is not None and not job.finished:
            heappush(state.deadlines, (deadline, job.id))
        if job.holding and job.placement is not None:
            state.run_on(job)
            took_up(state, job)
            look_whether_stoppable(state, job, 0.0)
    for job in sorted((job for job in known if job.finished), key=_when_ended):
        state.finished[job.id] = None
        if job.state in UNHAPPY and not job.seen:
            state.unseen[job.id] = None
    for job in known:
        admit(state, job, 0.0)  # at no time: a delay that is over is told by the next cycle
    for job in state.running.values():
        watch(state, job)
    state.touched.clear()
    state.touched_sweeps.clear()
    return state


def _removed(jobs: Iterable[Job], rest: Rest) -> list[str]:
    """Return the removed machines of which gangs still hold devices."""
    holding = [job.placement for job in jobs if job.holding and job.placement is not None]
    nodes = dict.fromkeys(part.node for placement in holding for part in placement.parts)
    return [name for name in nodes if name not in rest.nodes]


def _when_ended(job: Job) -> tuple[float, int]:
    return (job.ended_at or 0.0, job.id)
