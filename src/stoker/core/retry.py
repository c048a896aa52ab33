"""What an ended attempt makes of its job: an end, or another attempt."""

from __future__ import annotations

import re
import signal as signals

from msgspec import Struct

from stoker.core.events import ProcessExited
from stoker.core.job import SKIPPED, Job, Retry, Spec
from stoker.core.lifecycle import JobState
from stoker.core.units import BadValue

REQUEUE_ME = 75
"""EX_TEMPFAIL: the job saved its work and wants to go on later."""
MOST_REQUEUES = 100
"""A job that asks to be requeued more often than this is in a loop."""
LONGEST_BACKOFF = 300


class Verdict(Struct, frozen=True):
    """How an attempt ended, and whether there is another."""

    state: JobState
    cause: str
    again: bool = False
    delay: float = 0.0
    requeued: bool = False
    preempted: bool = False
    """It made room for others, which counts neither as a retry nor as a failure."""


def after_exit(job: Job, spec: Spec, event: ProcessExited, ran: float) -> Verdict:
    """Judge an exit. `ran` is how long the attempt lasted, in seconds."""
    if job.ending == "cancel":
        return Verdict(JobState.CANCELLED, "cancelled")
    if job.ending == "deadline":
        return Verdict(JobState.DEADLINE, "deadline")
    if job.ending == "time":
        return _again(job, spec.retry, Verdict(JobState.TIMEOUT, "time limit"), ("timeout",), ran)
    if job.ending == "early":
        return stopped_early(job)
    if made_room(job, spec, event):
        return stopped(job)
    if event.memory:
        cause = "CUDA out of memory" if event.memory == "cuda" else "out of memory"
        verdict = Verdict(JobState.OUT_OF_MEMORY, cause)
        return _again(job, spec.retry, verdict, ("oom", "fail"), ran)
    if event.signal:
        verdict = Verdict(JobState.FAILED, f"killed by {signal_name(event.signal)}")
        return _again(job, spec.retry, verdict, ("signal", "fail"), ran)
    if event.stopped and job.requeues < MOST_REQUEUES:
        # It was asked to, by somebody whose word is not on record: a power cut came between.
        delay = _backoff(job.requeues, ran)
        return Verdict(JobState.FAILED, "stopped", again=True, delay=delay, requeued=True)
    if event.code == 0:
        return Verdict(JobState.COMPLETED, "done")
    if event.code == SKIPPED:
        return Verdict(JobState.COMPLETED, "skipped (exit 77)")
    if event.code == REQUEUE_ME and job.requeues < MOST_REQUEUES:
        cause = "asked to be requeued (exit 75)"
        delay = _backoff(job.requeues, ran)
        return Verdict(JobState.FAILED, cause, again=True, delay=delay, requeued=True)
    verdict = Verdict(JobState.FAILED, f"exit {event.code}")
    return _again(job, spec.retry, verdict, (f"exit:{event.code}", "fail"), ran)


def made_room(job: Job, spec: Spec, event: ProcessExited) -> bool:
    """Whether an attempt ended because it was asked to. Code 0 is then no sign of completion."""
    if job.ending == "stop":
        return True
    if job.progress is None or job.progress.stop is None:
        return False
    if event.stopped:
        return True
    if job.progress.listening:
        return False
    signal = spec.warning.signal if spec.warning is not None else None
    if signal is None:
        return False
    if event.code == 0:
        # It may have saved its work and left. If it never heard the signal, it is simply done.
        return not event.uncaught
    return event.signal == signal or event.code in (REQUEUE_ME, 128 + signal)


def stopped(job: Job) -> Verdict:
    """It made room, and goes on when there is some again."""
    stop = job.progress.stop if job.progress is not None else None
    cause = f"stopped: {stop.why}" if stop is not None else "stopped"
    return Verdict(JobState.FAILED, cause, again=True, preempted=True)


def stopped_early(job: Job) -> Verdict:
    """Others of its sweep did better: nothing has gone wrong."""
    step = job.score.step if job.score is not None else None
    where = f" at step {step:g}" if step is not None else ""
    return Verdict(JobState.COMPLETED, f"stopped early{where}: other trials were better")


def after_loss(job: Job, spec: Spec, why: str) -> Verdict:
    """Judge an attempt that vanished."""
    if job.ending == "stop":
        return stopped(job)
    if job.ending == "early":
        return stopped_early(job)
    if job.ending == "cancel":
        return Verdict(JobState.CANCELLED, "cancelled")
    if job.ending == "deadline":
        return Verdict(JobState.DEADLINE, "deadline")
    return _again(job, spec.retry, Verdict(JobState.NODE_FAIL, f"lost: {why}"), ("lost",), 0.0)


def _again(job: Job, rule: Retry, verdict: Verdict, words: tuple[str, ...], ran: float) -> Verdict:
    if job.retries >= rule.limit or not ("any" in rule.on or set(words) & set(rule.on)):
        return verdict
    return Verdict(verdict.state, verdict.cause, again=True, delay=_backoff(job.retries, ran))


def _backoff(times: int, ran: float) -> float:
    """Seconds to wait: doubling, but nothing after an attempt that got somewhere."""
    return 0.0 if ran > 60 else float(min(2 ** min(times, 20), LONGEST_BACKOFF))


def parse_retry(limit_text: str | None, on_text: str | None, requeue: bool | None) -> Retry:
    """Read `--retries 3 --retry-on oom,lost,exit:3` and Slurm's `--requeue`."""
    if limit_text is not None and not (limit_text.isdecimal() and len(limit_text) <= 6):
        raise BadValue(f"--retries '{limit_text}' is not a count; write a whole number.")
    on: list[str] = []
    for typed in filter(None, (w.strip().lower() for w in (on_text or "").split(","))):
        is_code = typed.isdecimal() and len(typed) <= 3
        word = f"exit:{int(typed)}" if is_code else typed
        known = word in ("any", "fail", "oom", "lost", "timeout", "signal")
        if not known and not re.fullmatch(r"exit:\d{1,3}", word):
            raise BadValue(
                f"--retry-on '{word}' is not known; "
                "write any, fail, oom, lost, timeout, signal or an exit code."
            )
        on.append(word)
    if limit_text is not None:
        return Retry(int(limit_text), tuple(on) or ("any",))
    if on:
        return Retry(3, tuple(on))
    return Retry(3, ("lost",)) if requeue else Retry()


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
