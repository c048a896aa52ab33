"""Event handlers: what each event does to the state, and the instructions that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.core import events as e
from stoker.core.events.instructions import Instruction
from stoker.core.handlers import attempts, jobs, nodes, sweeps, timers, training, user_actions
from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.core.state.timers import arm_timers


def apply(state: State, event: e.Event) -> list[Instruction]:
    """Apply an event to the state; return the instructions for executors and daemon."""
    instructions = _handle(state, event)
    id = getattr(event, "job", None)
    job = state.running.get(id) if type(id) is int else None
    if job is not None:
        arm_timers(state, job)
    elif type(event) in _CHANGE_ALL_TIMERS:
        for job in state.running.values():
            arm_timers(state, job)
    return instructions


def _handle(state: State, event: Any) -> list[Instruction]:
    handler = _ATTEMPT_HANDLERS.get(type(event))
    if handler is None:
        return _HANDLERS[type(event)](state, event)
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt or not job.holding:
        return []  # it is about an attempt that has ended
    return handler(state, job, event)


_CHANGE_ALL_TIMERS = (
    e.DaemonStarted, e.NodeJoined, e.NodeReached, e.NodeRemoved, e.NodeUnreachable
)  # fmt: skip
"""Events that may change the timers of any running job."""


_HANDLERS: dict[type, Callable[[State, Any], list[Instruction]]] = {
    e.DaemonStarted: nodes.on_daemon_started,
    e.NodeJoined: nodes.on_node_joined,
    e.NodeAdded: nodes.on_node_added,
    e.NodeRemoved: nodes.on_node_removed,
    e.NodeReached: nodes.on_node_reached,
    e.NodeUnreachable: nodes.on_node_unreachable,
    e.NodeCordoned: nodes.on_node_cordoned,
    e.NodeLoadMeasured: nodes.on_node_load_measured,
    e.SpecRecorded: jobs.on_spec_recorded,
    e.IdsReserved: jobs.on_ids_reserved,
    e.JobsSubmitted: jobs.on_jobs_submitted,
    e.SweepDefined: sweeps.on_sweep_defined,
    e.SweepChanged: sweeps.on_sweep_changed,
    e.TrialMeasured: sweeps.on_trial_measured,
    e.TrialsUnloaded: sweeps.on_trials_unloaded,
    e.TrialsLoaded: sweeps.on_trials_loaded,
    e.AttemptPlanned: attempts.on_attempt_planned,
    e.OrphanAttemptsFound: attempts.on_orphan_attempts_found,
    e.AttemptRecovered: attempts.on_attempt_recovered,
    e.JobCancelled: user_actions.on_job_cancelled,
    e.JobHeld: user_actions.on_job_held,
    e.JobReleased: user_actions.on_job_released,
    e.JobPaused: user_actions.on_job_paused,
    e.JobResumed: user_actions.on_job_resumed,
    e.JobSignalled: user_actions.on_job_signalled,
    e.JobRetried: user_actions.on_job_retried,
    e.JobEdited: user_actions.on_job_edited,
    e.JobMoved: user_actions.on_job_moved,
    e.ProfileImported: training.on_profile_imported,
    e.EstimateExceeded: training.on_estimate_exceeded,
    e.BeginTimeReached: timers.on_begin_time_reached,
    e.DeadlinePassed: timers.on_deadline_passed,
    e.DevicesDrained: nodes.on_devices_drained,
    e.DevicesUndrained: nodes.on_devices_undrained,
    e.ForeignUseChanged: nodes.on_foreign_use_changed,
    e.QueueDefined: nodes.on_queue_defined,
    e.QueueDeleted: nodes.on_queue_deleted,
    e.PolicyChosen: nodes.on_policy_chosen,
    e.HistoryCleared: jobs.on_history_cleared,
    e.FailuresDismissed: jobs.on_failures_dismissed,
    e.JobsUnloaded: jobs.on_jobs_unloaded,
    e.JobLoaded: jobs.on_job_loaded,
}

_ATTEMPT_HANDLERS: dict[type, Callable[[State, Job, Any], list[Instruction]]] = {
    e.AttemptQueued: attempts.on_attempt_queued,
    e.ProcessStarted: attempts.on_process_started,
    e.ProcessExited: attempts.on_process_exited,
    e.AttemptLost: attempts.on_attempt_lost,
    e.StartFailed: attempts.on_start_failed,
    e.StartCancelled: attempts.on_start_cancelled,
    e.TrainingBegan: training.on_training_began,
    e.EpochsCounted: training.on_epochs_counted,
    e.MemoryMeasured: training.on_memory_measured,
    e.PreemptionRequested: training.on_preemption_requested,
    e.PreemptionCancelled: training.on_preemption_cancelled,
    e.PreemptionTimedOut: training.on_preemption_timed_out,
    e.TimeLimitReached: timers.on_time_limit_reached,
    e.TimeLimitNear: timers.on_time_limit_near,
    e.TrialStopped: sweeps.on_trial_stopped,
    e.AttemptAbandoned: nodes.on_attempt_abandoned,
}
"""Handlers of events about the current attempt of a job."""
