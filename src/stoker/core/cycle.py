"""One turn of the core: what the clock brings, what is judged and planned, what is forgotten.

The daemon, `feed` and the simulator turn it alike. Each fact is to be applied before the next one
is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from stoker.core.clock import due
from stoker.core.events import Event, JobsForgotten, TrialsForgotten
from stoker.core.plan import plan
from stoker.core.policy.early import judged
from stoker.core.standings import refresh
from stoker.core.state import State
from stoker.core.trials import forgettable_boards

MOST_PLANS = 4
"""So often it is planned in one turn, if what was decided lets others start."""


def before_requests(state: State, at: float, boot: float) -> Iterator[Event]:
    """What has come of the time that passed, and of what was heard."""
    yield from due(state, at, boot)  # what ended in time did, however late we hear
    if state.judging or state.touched_sweeps:
        yield from judged(state, at)


def after_requests(
    state: State,
    at: float,
    boot: float,
    planning: bool = True,
    needed: Callable[[], Container[int]] = tuple,
) -> Iterator[Event]:
    """What is decided, and who may leave memory."""
    yield from planned(state, at, boot, planning)
    yield from unloaded(state, at, needed)


def planned(state: State, at: float, boot: float, planning: bool = True) -> Iterator[Event]:
    """Reorder the queue by the time that has passed, and plan unless planning is off."""
    refresh(state, at)
    for _ in range(MOST_PLANS if planning else 0):
        if not state.line.stirred:
            break
        state.line.stirred = False
        yield from plan(state, at, boot)


def unloaded(
    state: State, at: float, needed: Callable[[], Container[int]] = tuple
) -> Iterator[Event]:
    """Finished jobs and sweeps that leave memory."""
    for sweep in forgettable_boards(state):
        yield TrialsForgotten(at=at, sweep=sweep)
    old = state.forgettable()
    if old:
        kept = needed()
        old = tuple(id for id in old if id not in kept)
    if old:
        yield JobsForgotten(at=at, jobs=old)
