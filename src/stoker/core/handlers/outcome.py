"""The outcome of an ended attempt: the final state of its job, or another attempt. Pure."""

from __future__ import annotations

import signal as signals

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.events import ProcessExited
from stoker.core.model.job import SKIPPED_EXIT_CODE, Job, PartEnd
from stoker.core.model.lifecycle import JobState
from stoker.core.model.spec import Retry, Spec

REQUEUE_EXIT_CODE = 75
"""EX_TEMPFAIL: the job saved its work and requests to be requeued."""
MAX_REQUEUES = 100
"""Requeues by exit code per job; a job that requests more is in a loop."""
MAX_BACKOFF_SECONDS = 300
"""Maximum delay before a retry: longer would waste free capacity."""


class AttemptOutcome(Struct, frozen=True):
    """How an attempt ended, and whether there is another."""

    state: JobState
    cause: str
    again: bool = False
    delay: float = 0.0
    requeued: bool = False
    preempted: bool = False
    """It was preempted, which counts neither as a retry nor as a failure."""


def after_exit(job: Job, spec: Spec, event: ProcessExited, runtime: float) -> AttemptOutcome:
    """Return the outcome of an exit; `runtime` is that of the attempt, in seconds."""
    forced = forced_outcome(job)
    if forced is not None:
        retries = job.ending == "time"
        return _again(job, spec.retry, forced, ("timeout",), runtime) if retries else forced
    if was_preempted(job, spec, event):
        return preempted_outcome(job)
    if event.memory:
        cause = "CUDA out of memory" if event.memory == "cuda" else "out of memory"
        outcome = AttemptOutcome(JobState.OUT_OF_MEMORY, cause)
        return _again(job, spec.retry, outcome, ("oom", "fail"), runtime)
    if event.signal:
        outcome = AttemptOutcome(JobState.FAILED, f"killed by {signal_name(event.signal)}")
        return _again(job, spec.retry, outcome, ("signal", "fail"), runtime)
    if event.stopped and job.requeues < MAX_REQUEUES:
        # The stop request is not in the journal: power was lost after it was sent.
        delay = _backoff(job.requeues, runtime)
        return AttemptOutcome(JobState.FAILED, "stopped", again=True, delay=delay, requeued=True)
    if event.code == 0:
        return AttemptOutcome(JobState.COMPLETED, "done")
    if event.code == SKIPPED_EXIT_CODE:
        return AttemptOutcome(JobState.COMPLETED, "skipped (exit 77)")
    if event.code == REQUEUE_EXIT_CODE and job.requeues < MAX_REQUEUES:
        cause = "asked to be requeued (exit 75)"
        delay = _backoff(job.requeues, runtime)
        return AttemptOutcome(JobState.FAILED, cause, again=True, delay=delay, requeued=True)
    outcome = AttemptOutcome(JobState.FAILED, f"exit {event.code}")
    return _again(job, spec.retry, outcome, (f"exit:{event.code}", "fail"), runtime)


def was_preempted(job: Job, spec: Spec, event: ProcessExited) -> bool:
    """Whether an attempt ended by a stop request; exit code 0 then does not mean completion."""
    if job.progress is None or job.progress.stop is None:
        return False
    if event.stopped:
        return True
    if job.progress.accepts_stop:
        return False
    signal = spec.early_signal.signal if spec.early_signal is not None else None
    if signal is None:
        return False
    if event.code == 0:
        # It may have saved its work and exited. If no handler caught the signal, it is done.
        return not event.uncaught
    return event.signal == signal or event.code in (REQUEUE_EXIT_CODE, 128 + signal)


def preempted_outcome(job: Job) -> AttemptOutcome:
    """Return the outcome of a preempted attempt: it is requeued and resumed later."""
    stop = job.progress.stop if job.progress is not None else None
    cause = f"stopped: {stop.reason}" if stop is not None else "stopped"
    return AttemptOutcome(JobState.FAILED, cause, again=True, preempted=True)


def early_stop_outcome(job: Job) -> AttemptOutcome:
    """Return the outcome of a trial stopped early: completed, since nothing failed."""
    step = job.score.step if job.score is not None else None
    where = f" at step {step:g}" if step is not None else ""
    return AttemptOutcome(JobState.COMPLETED, f"stopped early{where}: other trials were better")


def after_loss(job: Job, spec: Spec, reason: str, preempted: bool = False) -> AttemptOutcome:
    """Return the outcome of an attempt that ended without an exit code.

    `preempted`: another scheduler ended its node, which is no failure of a job that can continue.
    """
    forced = forced_outcome(job)
    if forced is not None and job.ending != "time":
        return forced
    outcome = AttemptOutcome(JobState.NODE_FAIL, f"lost: {reason}")
    if preempted and (spec.training is not None or spec.requeueable):
        return replace(outcome, again=True, preempted=True)
    return _again(job, spec.retry, outcome, ("lost",), 0.0)


def forced_outcome(job: Job) -> AttemptOutcome | None:
    """Return the outcome of an attempt that was being terminated, whatever its end; or None."""
    match job.ending:
        case "cancel":
            return AttemptOutcome(JobState.CANCELLED, "cancelled")
        case "deadline":
            return AttemptOutcome(JobState.DEADLINE, "deadline")
        case "time":
            return AttemptOutcome(JobState.TIMEOUT, "time limit")
        case "stop":
            return preempted_outcome(job)
        case "early":
            return early_stop_outcome(job)
    return None


def is_still_saving(job: Job, end: PartEnd) -> bool:
    """Whether a part stopped on request while the first one may still write the checkpoint."""
    is_stopping = job.progress is not None and job.progress.stop is not None
    return is_stopping and end.code == REQUEUE_EXIT_CODE and end.part != 0


def _again(
    job: Job, retry: Retry, outcome: AttemptOutcome, conditions: tuple[str, ...], runtime: float
) -> AttemptOutcome:
    if job.retries >= retry.limit or not ("any" in retry.on or set(conditions) & set(retry.on)):
        return outcome
    return AttemptOutcome(
        outcome.state, outcome.cause, again=True, delay=_backoff(job.retries, runtime)
    )


def _backoff(count: int, runtime: float) -> float:
    """Return the seconds before a retry: doubling, but 0 after an attempt of over a minute."""
    return 0.0 if runtime > 60 else float(min(2 ** min(count, 20), MAX_BACKOFF_SECONDS))


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
