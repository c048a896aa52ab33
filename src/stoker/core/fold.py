"""The fold: what each fact does to the state, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.core import events as e
from stoker.core.changes import (
    attempts,
    machines,
    memory,
    owners,
    remotes,
    submission,
    sweeps,
    time,
    training,
)
from stoker.core.clock import watch
from stoker.core.instructions import Instruction
from stoker.core.state import State


def apply(state: State, event: e.Event) -> list[Instruction]:
    """Let a fact change the state; return what is to be done outside."""
    wishes = _HANDLERS[type(event)](state, event)
    id = getattr(event, "job", None)
    job = state.running.get(id) if type(id) is int else None
    if job is not None:
        watch(state, job)
    elif type(event) in _OF_ALL:
        for job in state.running.values():
            watch(state, job)
    return wishes


_OF_ALL = (
    e.DaemonStarted, e.NodeJoined, e.NodeReached, e.NodeRemoved, e.NodeUnreachable
)  # fmt: skip
"""What may change when the clock has something to say about any job that runs."""


_HANDLERS: dict[type, Callable[[State, Any], list[Instruction]]] = {
    e.DaemonStarted: machines.on_daemon_started,
    e.NodeJoined: machines.on_node_joined,
    e.NodeAdded: remotes.on_node_added,
    e.NodeRemoved: remotes.on_node_removed,
    e.NodeReached: remotes.on_node_reached,
    e.NodeUnreachable: remotes.on_node_unreachable,
    e.NodeClosed: remotes.on_node_closed,
    e.NodeMeasured: remotes.on_node_measured,
    e.AttemptAbandoned: remotes.on_attempt_abandoned,
    e.SpecRecorded: submission.on_spec_recorded,
    e.IdsReserved: submission.on_ids_reserved,
    e.JobsSubmitted: submission.on_jobs_submitted,
    e.SweepDefined: sweeps.on_sweep_defined,
    e.SweepChanged: sweeps.on_sweep_changed,
    e.TrialMeasured: sweeps.on_trial_measured,
    e.TrialStopped: sweeps.on_trial_stopped,
    e.TrialsForgotten: sweeps.on_trials_forgotten,
    e.TrialsRecalled: sweeps.on_trials_recalled,
    e.AttemptPlanned: attempts.on_attempt_planned,
    e.AttemptQueued: attempts.on_attempt_queued,
    e.ProcessStarted: attempts.on_process_started,
    e.ProcessExited: attempts.on_process_exited,
    e.AttemptLost: attempts.on_attempt_lost,
    e.StartFailed: attempts.on_start_failed,
    e.StartCalledOff: attempts.on_start_called_off,
    e.AttemptsFound: attempts.on_attempts_found,
    e.AttemptRecovered: attempts.on_attempt_recovered,
    e.JobCancelled: owners.on_job_cancelled,
    e.JobHeld: owners.on_job_held,
    e.JobReleased: owners.on_job_released,
    e.JobPaused: owners.on_job_paused,
    e.JobResumed: owners.on_job_resumed,
    e.JobSignalled: owners.on_job_signalled,
    e.JobRetried: owners.on_job_retried,
    e.JobEdited: owners.on_job_edited,
    e.JobMoved: owners.on_job_moved,
    e.TrainingBegan: training.on_training_began,
    e.EpochsCounted: training.on_epochs_counted,
    e.KindMeasured: training.on_kind_measured,
    e.MemoryMeasured: training.on_memory_measured,
    e.StopAsked: training.on_stop_asked,
    e.StopWithdrawn: training.on_stop_withdrawn,
    e.StopOverdue: training.on_stop_overdue,
    e.EstimateExceeded: training.on_estimate_exceeded,
    e.TimeLimitReached: time.on_time_limit_reached,
    e.TimeLimitNear: time.on_time_limit_near,
    e.WaitOver: time.on_wait_over,
    e.DeadlinePassed: time.on_deadline_passed,
    e.DevicesDrained: machines.on_devices_drained,
    e.DevicesUndrained: machines.on_devices_undrained,
    e.ForeignUseChanged: machines.on_foreign_use_changed,
    e.QueueDefined: machines.on_queue_defined,
    e.QueueDeleted: machines.on_queue_deleted,
    e.PolicyChosen: machines.on_policy_chosen,
    e.RecordsCleared: memory.on_records_cleared,
    e.JobsSeen: memory.on_jobs_seen,
    e.JobsForgotten: memory.on_jobs_forgotten,
    e.JobRecalled: memory.on_job_recalled,
}
