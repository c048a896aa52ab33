"""Event handlers: what each event does to the state, and the instructions that follow."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, get_args, get_type_hints

from stoker.core import events as e
from stoker.core.events.instructions import Instructions
from stoker.core.handlers import attempts, jobs, learning, nodes, sweeps, training, user_actions
from stoker.core.state.state import State
from stoker.core.state.timers import arm_timers


def apply(state: State, event: e.Event) -> Instructions:
    """Apply an event to the state; return the instructions for executors and daemon."""
    handler = HANDLERS[type(event)]
    if not isinstance(event, e.JobEvent):
        state.changes.record()
        instructions = handler(state, event)
        for job in state.running.values() if type(event) in _CHANGE_ALL_TIMERS else ():
            arm_timers(state, job)
        return instructions or []
    if isinstance(event, e.AttemptEvent) and event.job not in state.jobs:
        return []  # a late report about a job that was unloaded
    job = state.jobs[event.job]
    if isinstance(event, e.CurrentAttemptEvent) and (
        job.attempt != event.attempt or not job.holding
    ):
        return []  # it is about an attempt that has ended
    state.changes.job(job.id)
    instructions = handler(state, job, event)
    state.deadlines.set(job.id, state.deadline(job))
    if job.id in state.running:
        arm_timers(state, job)
    return instructions or []


def _handlers(*modules: ModuleType) -> dict[Any, Callable[..., Instructions | None]]:
    """Return the functions `on_…` of modules by the events for which they are annotated."""
    handlers = {}
    for module in modules:
        for name, function in vars(module).items():
            if name.startswith("on_"):
                event = get_type_hints(function)["event"]
                handlers.update(dict.fromkeys(get_args(event) or [event], function))
    return handlers


HANDLERS = _handlers(attempts, jobs, learning, nodes, sweeps, training, user_actions)
"""The handler of each event: `(state, event)`, and for the event of a job `(state, job, event)`."""
_CHANGE_ALL_TIMERS = (
    e.DaemonStarted, e.NodeJoined, e.NodeReached, e.NodeRemoved, e.NodeUnreachable
)  # fmt: skip
"""Events that may change the timers of any running job."""
