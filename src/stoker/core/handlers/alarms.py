"""Handlers of alarms."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.model.alarm import OVER_REQUESTED
from stoker.core.model.job import Job
from stoker.core.state.state import State


def on_alarm_raised(state: State, event: e.AlarmRaised) -> None:
    """Note an alarm; advice stays with its job."""
    alarm = event.alarm
    job = state.jobs.get(alarm.job) if alarm.job is not None else None
    if alarm.job is not None and (job is None or job.attempt != alarm.attempt or not job.holding):
        return
    if job is not None and alarm.kind == OVER_REQUESTED:
        job.advice = alarm.text
        state.changes.job(job.id)
        return
    state.record.alarms[alarm.key] = alarm


def on_alarm_cleared(state: State, event: e.AlarmCleared) -> None:
    """Note that an alarm is not true any more."""
    state.record.alarms.pop(event.alarm.key, None)


def clear_job_alarms(state: State, job: Job) -> None:
    """Remove the alarms of an attempt that ends."""
    ended = [key for key, alarm in state.record.alarms.items() if alarm.job == job.id]
    for key in ended:
        del state.record.alarms[key]
    if ended:
        state.changes.record()
