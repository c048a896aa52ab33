"""One cycle of the core: due timers, early stopping, planning, unloading.

The engine runs the stages with commands between the first two; the simulator runs `run_cycle`.
Each event must be applied before the next one is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from stoker.core.events import Event, JobsUnloaded, TrialsUnloaded
from stoker.core.planner.early_stopping import early_stopping_events
from stoker.core.planner.planner import plan
from stoker.core.state.reranking import refresh_ranks
from stoker.core.state.restore import unloadable_jobs
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import unloadable_boards
from stoker.core.state.timers import due_events

MAX_PLANS_PER_CYCLE = 4
"""Plans per cycle while decisions let more jobs start; the next cycle continues."""


def pre_command_events(state: State, at: float, boot: float) -> Iterator[Event]:
    """Yield the events of due timers and of early stopping."""
    yield from due_events(state, at, boot)
    if state.memory.trials_at_rung or state.changes.sweeps:
        yield from early_stopping_events(state, at)


def run_cycle(state: State, at: float, boot: float) -> Iterator[Event]:
    """Yield the events of one cycle without commands; the caller applies each before the next."""
    yield from pre_command_events(state, at, boot)
    yield from plan_events(state, at, boot)
    yield from unload_events(state, at)


def plan_events(state: State, at: float, boot: float, planning: bool = True) -> Iterator[Event]:
    """Reorder the queue by the time that has passed; plan if that is requested and allowed."""
    refresh_ranks(state, at)
    for _ in range(MAX_PLANS_PER_CYCLE if planning else 0):
        if not state.pending.take_planning_request():
            break
        if (yield from plan(state, at, boot)):
            state.pending.request_planning()


def unload_events(
    state: State, at: float, needed: Callable[[], Container[int]] = tuple
) -> Iterator[Event]:
    """Yield the unloading of finished jobs and sweeps from memory."""
    for sweep in unloadable_boards(state):
        yield TrialsUnloaded(at=at, sweep=sweep)
    old = unloadable_jobs(state)
    if old:
        kept = needed()
        old = tuple(id for id in old if id not in kept)
    if old:
        yield JobsUnloaded(at=at, jobs=old)
