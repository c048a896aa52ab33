"""Event handlers: what each event does to the state, and the instructions that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, get_args, get_type_hints

from stoker.core import events as e
from stoker.core.events.instructions import Instructions
from stoker.core.handlers import (
    accounting,
    alarms,
    attempts,
    jobs,
    nodes,
    sweeps,
    training,
    user_actions,
)
from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.core.state.timers import arm_timers


def apply(state: State, event: e.Event) -> Instructions:
    """Apply an event to the state; return the instructions for executors and daemon."""
    instructions = _handle(state, event) or []
    changed: Iterable[Job] = state.running.values() if type(event) in _CHANGE_ALL_TIMERS else ()
    if isinstance(event, e.JobEvent) and event.job in state.running:
        changed = (state.running[event.job],)
    for job in changed:
        arm_timers(state, job)
    return instructions


def _handle(state: State, event: e.Event) -> Instructions | None:
    """Call the handler of an event, and note that its job or the cluster record changes by it."""
    handler = HANDLERS[type(event)]
    if not isinstance(event, e.JobEvent):
        state.changes.record()
        return handler(state, event)
    if isinstance(event, e.AttemptEvent) and event.job not in state.jobs:
        return None  # a late report about a job that was unloaded
    job = state.jobs[event.job]
    if isinstance(event, e.CurrentAttemptEvent) and (
        job.attempt != event.attempt or not job.holding
    ):
        return None  # it is about an attempt that has ended
    state.changes.job(job.id)
    return handler(state, job, event)


def _handlers(*modules: ModuleType) -> dict[Any, Callable[..., Instructions | None]]:
    """Return the functions `on_…` of modules by the events for which they are annotated."""
    handlers = {}
    for module in modules:
        for name, function in vars(module).items():
            if name.startswith("on_"):
                event = get_type_hints(function)["event"]
                handlers.update(dict.fromkeys(get_args(event) or [event], function))
    return handlers


HANDLERS = _handlers(accounting, alarms, attempts, jobs, nodes, sweeps, training, user_actions)
"""The handler of each event: `(state, event)`, and for the event of a job `(state, job, event)`."""
_CHANGE_ALL_TIMERS = (
    e.DaemonStarted, e.NodeJoined, e.NodeReached, e.NodeRemoved, e.NodeUnreachable
)  # fmt: skip
"""Events that may change the timers of any running job."""
