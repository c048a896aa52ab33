"""Active alarms."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.model.alarm import Alarm
from stoker.core.state.state import State
from stoker.daemon.views.format import iso
from stoker.schema.alarm import AlarmView


def alarm_views(state: State) -> list[AlarmView]:
    """Return all active alarms, the oldest first."""
    return _views(state, state.record.alarms.values())


def job_alarms(state: State, job: int) -> list[AlarmView]:
    """Return the active alarms of a job."""
    alarms = state.record.alarms
    return _views(state, (a for a in alarms.values() if a.job == job)) if alarms else []


def _views(state: State, alarms: Iterable[Alarm]) -> list[AlarmView]:
    return [_view(state, alarm) for alarm in sorted(alarms, key=lambda alarm: alarm.since)]


def _view(state: State, alarm: Alarm) -> AlarmView:
    job = state.jobs.get(alarm.job) if alarm.job is not None else None
    label = job.label if job is not None else None
    verb = "metrics" if alarm.kind == "nan" else "logs"
    action = f"stoker {verb} {label}" if label else f"stoker drain {alarm.node}/{alarm.gpu}"
    return AlarmView(
        kind=alarm.kind, job=alarm.job, label=label, node=alarm.node, gpu=alarm.gpu,
        since=iso(alarm.since) or "", text=alarm.text, action=action,
        response=alarm.action, evidence=alarm.evidence,
    )  # fmt: skip
