"""Looks at every fact beside the state it changes, and says what training jobs may not suffer."""

from __future__ import annotations

from collections import Counter

from simulation.simulated_machine import Key
from stoker.core import events as e
from stoker.core.model.job import Job, JobState, Progress
from stoker.core.model.resources import GPU, SHARED_SLOT
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import sweep_of


class TrainingInvariants:
    """Follows a journal; `wrong` says in sentences what should not have been."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.asked: Counter[Key] = Counter()
        self.victims: Counter[int] = Counter()
        self.stops: Counter[int] = Counter()
        self._before: tuple[Progress, int] | None = None
        self.short: dict[Key, int] = {}
        """What attempts that ran out of memory really used until then."""

    def before(self, state: State, event: e.Event) -> None:
        """A fact that has not changed anything yet."""
        job = state.jobs.get(getattr(event, "job", 0) if not _submits(event) else 0)
        self._before = (job.progress or Progress(), job.retries) if job is not None else None
        if isinstance(event, e.PreemptionCancelled):
            self.asked[event.job, event.attempt] -= 1
        if isinstance(event, e.PreemptionRequested) and job is not None:
            self._stop_asked(state, event, job)
        if isinstance(event, e.TrialStopped) and job is not None:
            self._stopped_early(state, job)
        if isinstance(event, e.ProcessExited) and event.memory == "cuda" and job is not None:
            self._ran_short(state, event, job)

    def after(self, state: State, event: e.Event) -> None:
        """The same fact, and what it has made of the state."""
        if isinstance(event, e.AttemptPlanned):
            self._placed(state, event)
        if self._before is None or _submits(event):
            return
        job = state.jobs.get(getattr(event, "job", 0))
        if job is None:
            return
        progress, retries = self._before
        epochs = job.progress.epochs if job.progress is not None else 0
        begins_anew = (e.JobRetried, e.JobLoaded, e.AttemptAbandoned, e.AttemptLost)
        if epochs < progress.epochs and not isinstance(event, begins_anew):
            self._say(f"job {job.id} had {progress.epochs} epochs, and has {epochs} by {event}")
        if isinstance(event, e.ProcessExited) and event.stopped and progress.stop is not None:
            if job.state is JobState.COMPLETED and not (job.score and job.score.stopped):
                self._say(f"job {job.id} stopped, and that was taken for its end")
            if job.retries != retries:
                self._say(f"job {job.id} made room, and that cost it a retry")

    def _say(self, what: str) -> None:
        self.wrong.append(what)

    def _stop_asked(self, state: State, event: e.PreemptionRequested, job: Job) -> None:
        key = (event.job, event.attempt)
        self.asked[key] += 1
        self.stops[event.job] += 1
        if self.asked[key] > 1:
            self._say(f"attempt {key[1]} of job {key[0]} was asked to stop {self.asked[key]} times")
        if job.state is not JobState.RUNNING or job.attempt != event.attempt:
            self._say(f"job {job.id} is {job.state} and was asked to stop")
        if event.by is not None:
            other = state.jobs[event.by]
            ahead = other.priority - job.priority
            equal = ahead == 0 and event.gpus is None
            if ahead < 0 or (equal and not _may_ask_its_equal(state, other, job, event.at)):
                self._say(f"job {job.id} is to stop for {other.id}, which is not more urgent")
            if other.id not in state.pending:
                self._say(f"job {job.id} is to stop for {other.id}, which does not wait")
        elif event.gpus is None and not _crowded(state, job) and not _has_alarm(state, job):
            self._say(f"nobody knows why job {job.id} is to stop: {event.why}")

    def _stopped_early(self, state: State, job: Job) -> None:
        """Somebody else was better where it was last compared, or it had gone astray."""
        sweep, score = sweep_of(state, job), job.score
        if sweep is None or score is None or not score.rungs:
            self._say(f"job {job.id} was stopped early, and was never compared")
            return
        last = score.rungs[-1]
        best = state.boards[sweep.id].values_at(sweep, len(score.rungs) - 1)[0]
        if sweep.ascending(last) <= best and last != sweep.worst_value:
            self._say(f"job {job.id} was stopped early, and was the best of all")

    def _ran_short(self, state: State, event: e.ProcessExited, job: Job) -> None:
        """A victim kept to what was set aside for it, and others were there."""
        used = self.short.get((event.job, event.attempt))
        placement = job.placement
        if used is None or placement is None or not state.spec(job).training:
            return
        held = min((take.memory for take in placement.allocations if take.type == GPU), default=0)
        grew = job.progress is not None and job.progress.exceeded_reservation
        if used <= held and not grew and _shares(state, job):
            self.victims[job.id] += 1
            if self.victims[job.id] > 1:
                self._say(f"job {job.id} was the victim of others {self.victims[job.id]} times")

    def _placed(self, state: State, event: e.AttemptPlanned) -> None:
        for part in event.placement.parts:
            for take in part.allocations:
                device = state.cluster.nodes[part.node].by_name[take.type, take.device]
                if take.memory and device.memory_free < device.foreign_memory:
                    self._say(f"{device.name} has not the memory that was promised on it")
                if take.type == GPU and take.amount == THOUSAND and device.sharers:
                    self._say(f"job {event.job} has all of a GPU that others share")
                if take.type == GPU and take.amount == SHARED_SLOT and _divided(device.unallocated):
                    self._say(f"job {event.job} shares a GPU with one that says no memory")


def _divided(free: int) -> bool:
    return free < THOUSAND // 2


def _submits(event: e.Event) -> bool:
    return isinstance(event, e.JobLoaded)


def _may_ask_its_equal(state: State, other: Job, job: Job, at: float) -> bool:
    """Whether both go by policies in which jobs of equal priority make room for each other."""
    rules = state.policy_of(state.spec(job).queue)
    had_its_time = job.started_at is not None and at - job.started_at >= rules.quantum
    return rules.preempts and state.preempts(other) and had_its_time


def _shares(state: State, job: Job) -> bool:
    return job.placement is not None and any(
        state.cluster.nodes[part.node].by_name[GPU, name].sharers > 1
        for part in job.placement.parts
        for name in part.names(GPU)
    )


def _crowded(state: State, job: Job) -> bool:
    return job.placement is not None and any(
        device.memory_free < device.foreign_memory
        for part in job.placement.parts
        for name in part.names(GPU)
        if (device := state.cluster.nodes[part.node].by_name.get((GPU, name))) is not None
    )


def _has_alarm(state: State, job: Job) -> bool:
    """An alarm ends it, as its rule says."""
    return any(
        alarm.job == job.id and alarm.action in ("retry", "preempt_if_waiting")
        for alarm in state.record.alarms.values()
    )
