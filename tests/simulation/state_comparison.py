"""A state as plain values, so that two of them can be compared and the difference read."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import to_builtins

from simulation.training_invariants import TrainingInvariants
from stoker.core.events import Event
from stoker.core.handlers import apply
from stoker.core.state.state import State
from stoker.store.port import Store


def state_as_dict(state: State) -> dict[str, Any]:
    """Everything that decides what the state does next."""
    return {
        "jobs": {job.id: to_builtins(job) for job in state.jobs.values()},
        "specs": {job.spec: to_builtins(state.spec(job)) for job in state.jobs.values()},
        "rest": to_builtins(state.record),
        "ready": {id: to_builtins(found.key) for id, found in state.pending.class_of.items()},
        "sweeps": {id: to_builtins(sweep) for id, sweep in state.sweeps.items()},
        "boards": {
            id: {each.job: to_builtins(each) for each in board.trials.values()}
            for id, board in state.boards.items()
        },
        "running": sorted(state.running),
        "finished": sorted(state.finished),
        "unseen": sorted(state.unacknowledged),
        "stoppable": sorted(state.preemptible),
        "dependents": {id: sorted(waiting) for id, waiting in state.dependents.items() if waiting},
        "queues": (state.quotas.queue_running, state.quotas.queue_gpus, state.quotas.array_running),
        "limits": {
            key: (sorted(jobs), state.limits.use(key)) for key, jobs in state.limits.running.items()
        },
        "deadlines": sorted(id for id in state.jobs if state.deadlines.time_of(id) < inf),
        "nodes": [
            (node.name, node.unavailable_reason)
            for node in state.cluster.nodes.values()
            if not node.removed
        ],
        "devices": {
            f"{node.name}/{device.type}:{device.name}": {
                "used": device.facts.capacity - device.unallocated,
                "memory used": (device.facts.memory or 0) - device.memory_free,
                "sharing": device.sharers,
                "drained": device.drained,
                "stranger": (device.foreign_user, device.foreign_memory),
                "others": device.used_by_others,
                "gone": device.removed,
            }
            for node in state.cluster.nodes.values()
            for device in node.devices()
        },
    }


def replayed(store: Store) -> State:
    """The state by the journal alone, from the first event on."""
    return fold(event for _, event in store.events(0, 1 << 60))


class ReplayedState:
    """The state by the journal alone, kept up to date event by event."""

    def __init__(self) -> None:
        self.state, self.seq = State(), 0
        self.witness = TrainingInvariants()

    def follow(self, store: Store) -> State:
        """Catch up with a journal that has only grown since the last time."""
        for seq, event in store.events(self.seq, 1 << 60):
            self.witness.before(self.state, event)
            apply(self.state, event)
            self.witness.after(self.state, event)
            self.seq = seq
        return self.state


def fold(events: Any) -> State:
    """The state that these events come to."""
    state = State()
    event: Event
    for event in events:
        apply(state, event)
    return state
