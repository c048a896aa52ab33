"""The outcome of an ended attempt: the final state of its job, or another attempt. Pure."""

from __future__ import annotations

import signal as signals

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.model.job import SKIPPED_EXIT_CODE, Job, JobState, PartEnd
from stoker.core.model.spec import Retry, Spec

REQUEUE_EXIT_CODE = 75
"""EX_TEMPFAIL: the job saved its work and requests to be requeued."""
MAX_REQUEUES = 100
"""Requeues by exit code per job; a job that requests more is in a loop."""
MAX_BACKOFF_SECONDS = 300.0
"""Maximum delay before a retry: longer would waste free capacity. So long, a node that could not
run a container is not tried again."""


class AttemptOutcome(Struct, frozen=True):
    """How an attempt ended, and whether there is another."""

    state: JobState
    cause: str
    again: bool = False
    delay: float = 0.0
    requeued: bool = False
    preempted: bool = False
    """It was preempted, which counts neither as a retry nor as a failure."""


_FORCED_OUTCOMES = {
    "cancel": AttemptOutcome(JobState.CANCELLED, "cancelled"),
    "deadline": AttemptOutcome(JobState.DEADLINE, "deadline"),
    "time": AttemptOutcome(JobState.TIMEOUT, "time limit"),
}


def after_exit(job: Job, spec: Spec, end: PartEnd, runtime: float) -> AttemptOutcome:
    """Return the outcome of an exit; `runtime` is that of the attempt, in seconds."""
    forced, code = forced_outcome(job), end.code
    if forced is not None:
        retries = job.ending == "time"
        return _again(job, spec.retry, forced, ("timeout",), runtime) if retries else forced
    if was_preempted(job, spec, end):
        return preempted_outcome(job)
    outcome, condition = AttemptOutcome(JobState.FAILED, f"exit {code}"), f"exit:{code}"
    if end.memory:
        cause = "CUDA out of memory" if end.memory == "cuda" else "out of memory"
        outcome, condition = AttemptOutcome(JobState.OUT_OF_MEMORY, cause), "oom"
    elif end.signal:
        cause = f"killed by {signal_name(end.signal)}"
        outcome, condition = AttemptOutcome(JobState.FAILED, cause), "signal"
    elif (end.stopped or code == REQUEUE_EXIT_CODE) and job.requeues < MAX_REQUEUES:
        # Stopped without a request in the journal: power was lost after it was sent.
        cause = "stopped" if end.stopped else "asked to be requeued (exit 75)"
        delay = _backoff(job.requeues, runtime)
        return AttemptOutcome(JobState.FAILED, cause, again=True, delay=delay, requeued=True)
    elif code in (0, SKIPPED_EXIT_CODE):
        return AttemptOutcome(JobState.COMPLETED, "skipped (exit 77)" if code else "done")
    return _again(job, spec.retry, outcome, (condition, "fail"), runtime)


def was_preempted(job: Job, spec: Spec, end: PartEnd) -> bool:
    """Whether an attempt ended by a stop request; exit code 0 then does not mean completion."""
    early_signal = spec.early_signal
    if job.progress.stop is None or end.stopped:
        return end.stopped and job.progress.stop is not None
    if job.progress.accepts_stop or early_signal is None:
        return False
    if end.code == 0:
        # It may have saved its work and exited. If no handler caught the signal, it is done.
        return not end.uncaught
    signal = early_signal.signal
    return end.signal == signal or end.code in (REQUEUE_EXIT_CODE, 128 + signal)


def preempted_outcome(job: Job) -> AttemptOutcome:
    """Return the outcome of a preempted attempt: it is requeued and resumed later."""
    stop = job.progress.stop
    cause = f"stopped: {stop.reason}" if stop is not None else "stopped"
    delay = stop.delay if stop is not None else 0.0
    return AttemptOutcome(JobState.FAILED, cause, again=True, delay=delay, preempted=True)


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


def after_abandonment(job: Job, node: str) -> AttemptOutcome:
    """Return the outcome of an attempt that was given up because its node does not answer."""
    lost = AttemptOutcome(JobState.NODE_FAIL, f"lost: {node} was unreachable", again=True)
    return forced_outcome(job) or lost


def after_failed_start(job: Job, reason: str) -> AttemptOutcome:
    """Return the outcome of an attempt that could not be started; another would fail likewise."""
    return forced_outcome(job) or AttemptOutcome(JobState.FAILED, reason)


def forced_outcome(job: Job) -> AttemptOutcome | None:
    """Return the outcome of an attempt that was being terminated, whatever its end; or None."""
    if job.ending == "stop":
        return preempted_outcome(job)
    if job.ending == "early":  # completed, since nothing failed
        step = job.score.step if job.score is not None else None
        where = f" at step {step:g}" if step is not None else ""
        cause = f"stopped early{where}: other trials were better"
        return AttemptOutcome(JobState.COMPLETED, cause)
    if job.ending == "cancel" and job.ending_cause:
        return AttemptOutcome(JobState.CANCELLED, f"cancelled: {job.ending_cause}")
    return _FORCED_OUTCOMES.get(job.ending or "")


def is_still_saving(job: Job, end: PartEnd) -> bool:
    """Whether a part stopped on request while the first one may still write the checkpoint."""
    is_stopping = job.progress.stop is not None
    return is_stopping and end.code == REQUEUE_EXIT_CODE and end.part != 0


def _again(
    job: Job, retry: Retry, outcome: AttemptOutcome, conditions: tuple[str, ...], runtime: float
) -> AttemptOutcome:
    if job.retries >= retry.limit or not ("any" in retry.on or set(conditions) & set(retry.on)):
        return outcome
    return replace(outcome, again=True, delay=_backoff(job.retries, runtime))


def _backoff(count: int, runtime: float) -> float:
    """Return the seconds before a retry: doubling, but 0 after an attempt of over a minute."""
    return 0.0 if runtime > 60 else float(min(2 ** min(count, 20), MAX_BACKOFF_SECONDS))


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
