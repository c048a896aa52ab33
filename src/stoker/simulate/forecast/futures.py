"""Forecast of starts and ends: a copy of the daemon's state, simulated on by the daemon's own core.

It is simulated several times. Each time the durations of the jobs are drawn from their
distributions, and jobs are submitted as they were submitted before. One more simulation, with the
median durations, finds on which durations each start depends: there a job of which only the time
limit is known uses all of it, and a job of which nothing is known does not end.

`python -m stoker.simulate.forecast.futures` reads one question and writes one answer, each a line
of JSON.
"""

from __future__ import annotations

import os
import sys
from heapq import heappop
from math import inf
from random import Random
from time import perf_counter

import msgspec
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.admission import dependency_of, dependency_standing
from stoker.core.clock import seconds_until_due
from stoker.core.dependency import Standing, stuck
from stoker.core.estimate import Family, attained, epoch_on, epochs_of, known, likely_hardware
from stoker.core.instructions import EndAttempt
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.outlook import Foreseen, Kind, Outlook, Question, Samples, combined
from stoker.core.policy.rules import USUAL
from stoker.core.restore import restore
from stoker.core.state import State
from stoker.simulate.forecast.arrivals import Arrival, ArrivalModel
from stoker.simulate.forecast.durations import ENDING, DurationEstimate, DurationModel
from stoker.simulate.forecast.start_bounds import Bound, Bounds, StartRecorder
from stoker.simulate.replay.replay import JobRun, Replay
from stoker.simulate.workload import Speed, TraceJob, Workload

PLAYS = 9
"""How many futures are simulated: of nine, the earliest and the latest are the range of 80 %."""
SECONDS = 20.0
"""When that much is spent, there are no more plays."""
HORIZON = 30 * 86400.0
"""Nobody looks further."""
TURNS = 20_000
"""Of all plays together: where much happens, nobody looks as far ahead."""
NICE = 10


class ElasticSpeed:
    """How fast an elastic job is on other numbers of GPUs than it has, or is likely to get."""

    def __init__(self, family: Family, gpus: int, model: str) -> None:
        self.family, self.gpus, self.model = family, gpus, model

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Work per second."""
        here, there = epoch_on(self.family, self.gpus, self.model)[0], None
        if here:
            there = epoch_on(self.family, gpus, model or self.model)[0]
        return here / there if here and there else 1.0

    def interference(self, other: Speed, model: str) -> float:
        """Nothing is known of that."""
        return 1.0


class PredictedJob(TraceJob, kw_only=True):
    """A job as it is believed to be in one of the futures."""

    epochs: int | None = None
    restarts_from_zero: bool = False
    """When it is stopped, all is to be done again."""


class FutureReplay(Replay):
    """One future of a given state."""

    def __init__(self, asked: Question, state: State, guesses: DurationModel) -> None:
        nodes = list(asked.rest.nodes.values())
        super().__init__(Workload(title="", jobs=[]), nodes, USUAL.name, state=state)
        self.now, self.durations = asked.at, guesses
        self.recorder = self.start_recorder = StartRecorder(state, self._kind_of)
        self.forecast_ids = {job.id for job in asked.jobs if not job.finished}
        """Jobs that are to be forecast."""
        self.halted = False
        """Whether nothing more happens: pending jobs wait for something that is not simulated."""

    def _kind_of(self, id: int) -> Kind:
        guess = self.durations.estimates.get(id)
        return guess.kind if guess is not None else Kind.SIMILAR

    # -- the jobs that there are --------------------------------------------------------

    def add_job(self, job: Job, left: float) -> None:
        """A job needs so many seconds more."""
        load = self._predict(job, left)
        if job.state in (JobState.CONFIGURING, JobState.QUEUED):
            self._start_process(job)
        if job.state is JobState.COMPLETING and job.ending != "stop":
            left = ENDING
        self.resume_job(job.id, load, left)
        course = self.runs[job.id]
        if job.state is JobState.SUSPENDED:
            course.version += 1  # what was noted for its end does not count: it stands still
        elif job.state is JobState.COMPLETING and job.ending == "stop":
            course.work_done = 0.0 if load.restarts_from_zero else course.work_done
            course.stop_time = self.now + ENDING
            self._schedule(course.stop_time, "stop", job.id, course.version)
        elif job.placement is not None:
            self._schedule_reports(job, load, course)

    def _start_process(self, job: Job) -> None:
        """Its process is being started: it is there in a moment."""
        boot, training = self.now, self.state.spec(job).training
        self._apply(
            e.ProcessStarted(at=self.now, job=job.id, attempt=job.attempt, pid=1, boot=boot)
        )
        if training is not None:
            self._apply(e.TrainingBegan(at=self.now, job=job.id, attempt=job.attempt))

    def _schedule_reports(self, job: Job, load: PredictedJob, course: JobRun) -> None:
        progress = job.progress
        if load.epochs and not load.non_preemptible and (progress is None or progress.pace is None):
            first = course.time_of(max(self._measured_work(load), course.work_done))
            self._schedule(first, "known", job.id, course.version)
        if progress is not None and progress.stop is not None and not progress.stop.ignored:
            self._request_stop(job.id)

    def _predict(self, job: Job, left: float) -> PredictedJob:
        spec = self.state.spec(job)
        training, progress = spec.training, job.progress
        epochs = epochs_of(job, spec)
        done = attained(job, self.now)
        if epochs and progress is not None and progress.pace is not None:
            done = max(epochs * progress.pace[2] - left, 0.0)
        reports = training is not None or (progress is not None and progress.listening)
        return PredictedJob(
            submit_time=job.submitted_at, duration=max(done + left, 1.0), epochs=epochs,
            non_preemptible=not reports, restarts_from_zero=spec.restartable and not reports,
            speed=self._speed(job, spec),
        )  # fmt: skip

    def _speed(self, job: Job, spec: Spec) -> Speed | None:
        ask = spec.request.gpus
        if ask is None or ask.most is None:
            return None
        family = known(self.state.rest.families, job, spec)
        gpus, model = likely_hardware(self.state.cluster, job, spec, family)
        return ElasticSpeed(family, gpus, model)

    # -- how it goes on -----------------------------------------------------------------

    def simulate(self, newcomers: list[Arrival], turns: int, stop: float) -> None:
        """Until all are over of whom something is asked, or for as long as that is bearable."""
        end, place = self.now + HORIZON, 0
        self._cycle([])
        for _ in range(turns):
            arrival = newcomers[place].submit_time if place < len(newcomers) else inf
            due = seconds_until_due(self.state, self.now, self.now)
            moment = self.timers[0][0] if self.timers else inf
            if due is not None:  # never twice at the same moment, however it is rounded
                moment = min(moment, self.now + max(due, 0.01))
            self.halted = moment == inf
            if self.halted or perf_counter() > stop:
                break
            self.now = max(min(moment, arrival), self.now)
            if self.now > end:
                break
            wishes: list[object] = []
            while place < len(newcomers) and newcomers[place].submit_time <= self.now:
                wishes += self._submit_arrival(newcomers[place])
                place += 1
            while self.timers and self.timers[0][0] <= self.now:
                _, _, what, job, version = heappop(self.timers)
                wishes += self._on_timer(what, job, version)
            self._cycle(wishes)
            if self.start_recorder.ends.keys() >= self.forecast_ids:
                break

    def _submit_arrival(self, newcomer: Arrival) -> list[object]:
        id, spec, model = self.state.rest.next_id, newcomer.spec, newcomer.template
        hash = f"{model.spec} again {spec.name}"
        wishes: list[object] = []
        if hash not in self.state.specs:
            wishes += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        wishes += self._apply(
            e.JobsSubmitted(
                at=self.now, first=id, count=1, spec=hash, argv=("",), priority=model.priority
            )
        )
        self.runs[id] = JobRun(self._predict(self.state.jobs[id], newcomer.duration))
        return wishes

    def _epoch_count(self, load: TraceJob) -> int:
        epochs = load.epochs if isinstance(load, PredictedJob) else None
        return epochs or super()._epoch_count(load)

    def _measured_work(self, load: TraceJob) -> float:
        return load.duration / self._epoch_count(load)

    def _execute(self, wish: object) -> list[object]:
        wishes = super()._execute(wish)
        if isinstance(wish, EndAttempt):
            job, course = self.state.jobs[wish.job], self.runs[wish.job]
            if job.finished:  # its time was up
                self.start_recorder.job_ended(job.id, self.now)
                del self.runs[job.id]
            elif isinstance(course.job, PredictedJob) and course.job.restarts_from_zero:
                course.work_done = 0.0
        return wishes


def foresee(question: bytes, plays: int = PLAYS, seed: int = 0, seconds: float = inf) -> Outlook:
    """Return the forecast of every job; with one play, that of the median durations.

    With enough seconds, the same question and seed have the same answer.
    """
    asked = _decoded(question)
    state = _restored(asked)
    begin, turns = perf_counter(), max(TURNS // plays, 1)
    expected = DurationModel(asked, state)
    middle = _played(question, asked, expected, None, turns, begin + seconds)
    futures = [middle] if plays == 1 else []
    while len(futures) < plays and (not futures or perf_counter() - begin < seconds):
        random = Random(f"{seed}:{len(futures)}")
        guesses = DurationModel(asked, state, random)
        futures.append(_played(question, asked, guesses, random, turns, begin + seconds))
    still = _standing_still(state)
    bounds = Bounds(state, middle.start_recorder, cut=middle.now < asked.at + HORIZON)
    jobs = [
        _foreseen(
            state, job, job.id in still, expected.estimate_of(job), bounds.bound_of(job), futures
        )
        for job in asked.jobs
        if not job.finished
    ]
    starts = middle.start_recorder.starts
    begun = [starts[each.job] for each in jobs if each.start and each.job in starts]
    return Outlook(
        at=asked.at, jobs=jobs, plays=len(futures), horizon=max(begun, default=None)
    )  # fmt: skip


def _played(
    question: bytes, asked: Question, guesses: DurationModel, random: Random | None, turns: int,
    stop: float,
) -> FutureReplay:  # fmt: skip
    """Simulate one future."""
    again = _decoded(question)
    future = FutureReplay(again, _restored(again), guesses)
    for job in again.jobs:
        if not job.finished:
            future.add_job(job, guesses.estimate_of(job).remaining(random))
    others = ArrivalModel(asked, guesses).sample(random) if random is not None else []
    future.simulate(others, turns, stop)
    return future


def _decoded(question: bytes) -> Question:
    """A copy of its own, on one clock: in the future, the boot clock is the wall clock."""
    asked = msgspec.json.decode(question, type=Question)
    shift = asked.at - asked.boot
    for job in asked.jobs:
        if job.started_boot is not None:
            job.started_boot += shift
        if job.paused_boot is not None:
            job.paused_boot += shift
        if job.progress is not None:
            job.progress = job.progress.later(shift)
    asked.rest.away = {
        name: replace(away, boot=away.boot + shift if away.boot is not None else None)
        for name, away in asked.rest.away.items()
    }
    return asked


def _restored(asked: Question) -> State:
    return restore(asked.rest, asked.specs, asked.jobs, asked.sweeps)


def _standing_still(state: State) -> set[int]:
    """Who is held or paused, and who waits for such a one."""
    found = {
        job.id for job in state.jobs.values() if job.held or job.state is JobState.SUSPENDED
    }  # fmt: skip
    todo = list(found)
    while todo:
        for id in state.dependents.get(todo.pop(), set()) - found:
            job = state.jobs.get(id)
            dependency = dependency_of(state, job) if job is not None else None
            if job is None or dependency is None or not stuck(dependency, found):
                continue
            if dependency_standing(state, job, inf)[0] is not Standing.MET:
                found.add(id)
                todo.append(id)
    return found


def _foreseen(
    state: State,
    job: Job,
    still: bool,
    own: DurationEstimate,
    bound: Bound,
    futures: list[FutureReplay],
) -> Foreseen:
    if job.state is JobState.SUSPENDED:
        return Foreseen(job=job.id, never="it is paused")
    if job.held:
        return Foreseen(job=job.id, never="it is held")
    if job.id in state.doomed:
        return Foreseen(job=job.id, never="a job that it depends on has failed")
    if still:
        return Foreseen(job=job.id, never="a job that it depends on is held or paused")
    if all(future.halted and job.id not in future.start_recorder.ends for future in futures):
        return Foreseen(job=job.id, never="it needs something whose end cannot be estimated")
    until = min(future.now for future in futures)
    kind = combined(bound.causes)
    start = None
    if job.placement is None:
        start = _samples(
            [future.start_recorder.starts.get(job.id) for future in futures], until, kind,
            _ahead_in_words(state, bound, kind), bound.latest_start,
        )  # fmt: skip
    whole = combined({*bound.causes, own.kind})
    end = _samples(
        [future.start_recorder.ends.get(job.id) for future in futures], until, whole,
        own.basis if whole is own.kind else _ahead_in_words(state, bound, whole),
        bound.latest_end,
    )  # fmt: skip
    return Foreseen(job=job.id, start=start, end=end)


def _samples(
    at: list[float | None], until: float, kind: Kind, basis: str, latest: float | None
) -> Samples:
    if kind is not Kind.LIMIT:
        latest = None
    elif latest is None:
        at = [None] * len(at)  # the samples are no bound: it is later than was simulated
    elif any(each is not None and each > latest + ENDING for each in at):
        kind, latest = Kind.SIMILAR, None  # jobs behind it or submitted later can delay it
    return Samples(
        at=[_rounded(each) for each in at], until=until, kind=kind, basis=basis,
        latest=_rounded(latest),
    )  # fmt: skip


AHEAD = {
    Kind.EPOCHS: "measured epochs of the jobs ahead",
    Kind.RUNS: "earlier runs of the jobs ahead",
    Kind.STATED: "stated durations of the jobs ahead",
    Kind.ORDER: "the order of the queue",
    Kind.LIMIT: "time limits of the jobs ahead",
    Kind.SIMILAR: "runs of jobs similar to the jobs ahead",
}


def _ahead_in_words(state: State, bound: Bound, kind: Kind) -> str:
    """Say what the start of a job depends on."""
    if kind is Kind.UNKNOWN and kind in bound.causes:
        unknown, first = bound.causes[kind], bound.after
        text = f"job {state.jobs[unknown].label} has no earlier run and no time limit"
        if first is None or first == unknown:
            return text
        return f"job {state.jobs[first].label} may start before it, and {text}"
    if kind is Kind.SIMILAR and kind not in bound.causes:
        return "time limits and earlier runs of the jobs ahead"
    return AHEAD.get(kind, "")


def _rounded(at: float | None) -> float | None:
    return None if at is None else round(at, 3)


def main() -> int:
    """One question on stdin, one answer on stdout."""
    os.nice(NICE)
    answer = foresee(sys.stdin.buffer.readline(), seconds=SECONDS)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
