"""Events of sweeps and their trials."""

from __future__ import annotations

from stoker.core.events.base import AttemptEvent, Event
from stoker.core.model.sweep import Sweep, Trial


class SweepDefined(Event, frozen=True, kw_only=True):
    """A sweep was submitted: a new one, or an existing one again."""

    sweep: Sweep


class SweepChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a sweep changed, by the user or by its results; None: unchanged."""

    sweep: int
    held: bool | None = None
    ended: bool | None = None
    max_running: int | None = None
    """0: no limit."""
    priority: int | None = None
    note: str | None = None
    """Why it cannot continue; empty: it can."""


class TrialMeasured(AttemptEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A trial reached a rung, or ended."""

    value: float | None
    """None: missing, or not a number."""
    step: float | None = None
    rung: int | None = None
    final: bool = False


class TrialStopped(AttemptEvent, frozen=True, kw_only=True):
    """A trial is stopped early because other trials are better."""


class TrialsUnloaded(Event, tag="TrialsForgotten", frozen=True, kw_only=True):
    """The trials of a finished sweep were unloaded; the store has them."""

    sweep: int


class TrialsLoaded(Event, tag="TrialsRecalled", frozen=True, kw_only=True):
    """The trials of a sweep were loaded again, because it was submitted again."""

    sweep: int
    trials: tuple[Trial, ...]
