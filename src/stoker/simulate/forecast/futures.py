"""forecast(): predict starts and ends by simulating futures of a copy of the daemon's state.

Several futures are simulated with the real core. Each samples the durations of the jobs from their
distributions, and further submissions from those of the recent past. One more simulation, with
median durations, finds the durations that each start depends on: there, a job with only a time
limit uses all of it, and a job without any estimate does not end.
"""

from __future__ import annotations

from heapq import heappop
from math import inf
from random import Random
from time import perf_counter

import msgspec
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import TerminateAttempt
from stoker.core.explain.forecast import (
    CLUSTER_DECIDES,
    CLUSTER_SCHEDULE,
    ExpectedNode,
    Forecast,
    ForecastInput,
    JobForecast,
    Kind,
    Samples,
    combined,
)
from stoker.core.measurement.estimator import (
    attained,
    epoch_seconds_on,
    epochs_of,
    likely_hardware,
    profile_of,
)
from stoker.core.model.dependency import DependencyStatus
from stoker.core.model.job import Job, JobState
from stoker.core.model.profile import JobProfile
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import Spec
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.policies.policy import DEFAULT_POLICY
from stoker.core.state.eligibility import dependency_of, dependency_status_of
from stoker.core.state.restore import restore
from stoker.core.state.state import State
from stoker.core.state.timers import next_wakeup
from stoker.simulate.forecast.arrivals import Arrival, ArrivalModel
from stoker.simulate.forecast.durations import ENDING_SECONDS, DurationEstimate, DurationModel
from stoker.simulate.forecast.start_bounds import CLUSTER, StartBound, StartBounds, StartRecorder
from stoker.simulate.replay.job_run import JobRun
from stoker.simulate.replay.replay import Replay
from stoker.simulate.workload import Speed, TraceJob, Workload

FUTURES = 9
"""Number of futures: the earliest and the latest of nine are the 80 % range."""
HORIZON_SECONDS = 30 * 86400.0
"""Nothing later is predicted."""
MAX_NODE_DELAY = 2.0
"""Other schedulers provide a node after half to twice the time that they expect."""
MAX_CYCLES = 20_000
"""Cycles of all futures together; a busy cluster is predicted less far ahead."""


class ElasticSpeed:
    """Speed of an elastic job relative to the number of GPUs that it has or is likely to get."""

    def __init__(self, family: JobProfile, gpus: int, model: str) -> None:
        self.family, self.gpus, self.model = family, gpus, model

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Return work per second."""
        base, actual = epoch_seconds_on(self.family, self.gpus, self.model)[0], None
        if base:
            actual = epoch_seconds_on(self.family, gpus, model or self.model)[0]
        return base / actual if base and actual else 1.0

    def interference(self, other: Speed, model: str) -> float:
        """Return 1.0: interference is not predicted."""
        return 1.0


class PredictedJob(TraceJob, kw_only=True):
    """A job with its duration in one future."""

    epochs: int | None = None
    restarts_from_zero: bool = False
    """A stopped job loses all its work."""


class FutureReplay(Replay):
    """One simulated future of a state."""

    def __init__(self, input: ForecastInput, state: State, durations: DurationModel) -> None:
        nodes = list(input.record.nodes.values())
        super().__init__(Workload(title="", jobs=[]), nodes, DEFAULT_POLICY.name, state=state)
        self.now, self.durations = input.at, durations
        self.recorder = self.start_recorder = StartRecorder(state, self._kind_of)
        self.forecast_ids = {job.id for job in input.jobs if not job.finished}
        """Ids of the jobs to predict."""
        self.expected_nodes: list[ExpectedNode] = []
        """Those that have not joined; the first one to join is the last in the list."""
        self.halted = False
        """No further event is due: pending jobs wait for something that is not simulated."""

    def _kind_of(self, id: int) -> Kind:
        guess = self.durations.estimates.get(id)
        return guess.kind if guess is not None else Kind.SIMILAR

    # -- jobs of the state --------------------------------------------------------------

    def add_job(self, job: Job, left: float) -> None:
        """Continue a job of the state that needs these seconds more."""
        trace_job = self._predict(job, left)
        if job.state in (JobState.CONFIGURING, JobState.QUEUED):
            self._start_process(job)
        if job.state is JobState.COMPLETING and job.ending != "stop":
            left = ENDING_SECONDS
        self.resume_job(job.id, trace_job, left)
        run = self.runs[job.id]
        if job.state is JobState.SUSPENDED:
            run.version += 1  # a suspended job does not end: ignore its timer
        elif job.state is JobState.COMPLETING and job.ending == "stop":
            run.work_done = 0.0 if trace_job.restarts_from_zero else run.work_done
            run.stop_time = self.now + ENDING_SECONDS
            self._schedule(run.stop_time, "stop", job.id, run.version)
        elif job.placement is not None:
            self._schedule_reports(job, trace_job, run)

    def _start_process(self, job: Job) -> None:
        """Apply the start of the process of a job that is being started."""
        boot, training = self.now, self.state.spec(job).training
        self._apply(
            e.ProcessStarted(at=self.now, job=job.id, attempt=job.attempt, pid=1, boot=boot)
        )
        if training is not None:
            self._apply(e.TrainingBegan(at=self.now, job=job.id, attempt=job.attempt))

    def _schedule_reports(self, job: Job, trace_job: PredictedJob, run: JobRun) -> None:
        progress = job.progress
        if trace_job.epochs and not trace_job.non_preemptible and progress.epoch_time is None:
            first = run.time_of(max(self._measured_work(trace_job), run.work_done))
            self._schedule(first, "known", job.id, run.version)
        if progress.stop is not None and not progress.stop.timed_out:
            self._request_stop(job.id)

    def _predict(self, job: Job, left: float) -> PredictedJob:
        spec = self.state.spec(job)
        training, progress = spec.training, job.progress
        epochs = epochs_of(job, spec)
        done = attained(job, self.now)
        if epochs and progress.epoch_time is not None:
            done = max(epochs * progress.epoch_time[2] - left, 0.0)
        reports = training is not None or progress.accepts_stop
        return PredictedJob(
            submit_time=job.submitted_at, duration=max(done + left, 1.0), epochs=epochs,
            non_preemptible=not reports, restarts_from_zero=spec.requeueable and not reports,
            speed=self._speed(job, spec),
        )  # fmt: skip

    def _speed(self, job: Job, spec: Spec) -> Speed | None:
        gpu_request = spec.request.gpus
        if gpu_request is None or gpu_request.max_amount is None:
            return None
        family = profile_of(self.state.record.profiles, job, spec)
        gpus, model = likely_hardware(self.state.cluster, job, spec)
        return ElasticSpeed(family, gpus, model)

    # -- nodes that are expected --------------------------------------------------------

    def expect_nodes(self, nodes: list[ExpectedNode], delay: float) -> None:
        """Let nodes join when they are expected, with this factor of the time until then."""
        expected = []
        for node in nodes:
            at = self.now + max(node.at - self.now, 0.0) * delay
            end = node.facts.ends_at
            facts = replace(node.facts, ends_at=None if end is None else end + at - node.at)
            expected.append(ExpectedNode(at, facts))
        self.expected_nodes = sorted(expected, key=lambda node: node.at, reverse=True)

    def _join(self, facts: NodeFacts) -> list[object]:
        self.start_recorder.node_joined(facts.name)
        joined = self._apply(e.NodeJoined(at=self.now, facts=facts))
        return joined + self._apply(e.NodeReached(at=self.now, node=facts.name))

    # -- simulation ---------------------------------------------------------------------

    def simulate(self, arrivals: list[Arrival], cycles: int, stop: float) -> None:
        """Simulate until all predicted jobs have ended, or a limit of cycles or time is reached."""
        end, index = self.now + HORIZON_SECONDS, 0
        self._cycle([])
        for _ in range(cycles):
            arrival_time = arrivals[index].submit_time if index < len(arrivals) else inf
            due = next_wakeup(self.state, self.now, self.now)
            next_time = min(self.timers[0][0] if self.timers else inf, self._next_node_end())
            next_time = min(next_time, self.expected_nodes[-1].at if self.expected_nodes else inf)
            if due is not None:  # never twice at the same time, however it is rounded
                next_time = min(next_time, self.now + max(due, 0.01))
            self.halted = next_time == inf
            if self.halted or perf_counter() > stop:
                break
            self.now = max(min(next_time, arrival_time), self.now)
            if self.now > end:
                break
            instructions: list[object] = []
            while index < len(arrivals) and arrivals[index].submit_time <= self.now:
                instructions += self._submit_arrival(arrivals[index])
                index += 1
            while self.timers and self.timers[0][0] <= self.now:
                _, _, timer, job, version = heappop(self.timers)
                instructions += self._on_timer(timer, job, version)
            while self.expected_nodes and self.expected_nodes[-1].at <= self.now:
                instructions += self._join(self.expected_nodes.pop().facts)
            instructions += self._end_nodes()
            self._cycle(instructions)
            if self.start_recorder.ends.keys() >= self.forecast_ids:
                break

    def _submit_arrival(self, arrival: Arrival) -> list[object]:
        id, spec, model = self.state.record.next_id, arrival.spec, arrival.template
        hash = f"{model.spec} again {spec.name}"
        instructions: list[object] = []
        if hash not in self.state.specs:
            instructions += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        instructions += self._apply(
            e.JobsSubmitted(
                at=self.now, first=id, count=1, spec=hash, argv=("",), priority=model.priority
            )
        )
        self.runs[id] = JobRun(self._predict(self.state.jobs[id], arrival.duration))
        return instructions

    def _epoch_count(self, trace_job: TraceJob) -> int:
        epochs = trace_job.epochs if isinstance(trace_job, PredictedJob) else None
        return epochs or super()._epoch_count(trace_job)

    def _measured_work(self, trace_job: TraceJob) -> float:
        return trace_job.duration / self._epoch_count(trace_job)

    def _execute(self, instruction: object) -> list[object]:
        instructions = super()._execute(instruction)
        if isinstance(instruction, TerminateAttempt):
            job, run = self.state.jobs[instruction.job], self.runs[instruction.job]
            if job.finished:  # its time limit was reached
                self.start_recorder.job_ended(job.id, self.now)
                del self.runs[job.id]
            elif isinstance(run.job, PredictedJob) and run.job.restarts_from_zero:
                run.work_done = 0.0
        return instructions


def forecast(data: bytes, count: int = FUTURES, seed: int = 0, seconds: float = inf) -> Forecast:
    """Return the forecast of every job; with one future, that of the median durations.

    With enough seconds, the same input and seed give the same forecast.
    """
    input = _decode_input(data)
    state = _restore_state(input)
    begin, cycles = perf_counter(), max(MAX_CYCLES // count, 1)
    medians = DurationModel(input, state)
    median = _simulate_future(data, input, medians, None, cycles, begin + seconds, 1.0)
    futures = [median] if count == 1 else []
    while len(futures) < count and (not futures or perf_counter() - begin < seconds):
        random = Random(f"{seed}:{len(futures)}")
        durations = DurationModel(input, state, random)
        delay = _node_delay(len(futures), count)
        futures.append(
            _simulate_future(data, input, durations, random, cycles, begin + seconds, delay)
        )
    blocked = _held_or_blocked(state)
    bounds = StartBounds(
        state, median.start_recorder, truncated=median.now < input.at + HORIZON_SECONDS
    )
    jobs = [
        _job_forecast(
            state, job, job.id in blocked, medians.estimate_of(job), bounds.bound_of(job), futures
        )
        for job in input.jobs
        if not job.finished
    ]
    starts = median.start_recorder.starts
    starts_predicted = [
        starts[job_forecast.job]
        for job_forecast in jobs
        if job_forecast.start and job_forecast.job in starts
    ]
    return Forecast(
        at=input.at, jobs=jobs, plays=len(futures), horizon=max(starts_predicted, default=None)
    )  # fmt: skip


def _node_delay(number: int, count: int) -> float:
    """Return the factor of the time until expected nodes join; 1.0 in the median future."""
    share = ((number + count // 2) % count + 0.5) / count
    return float(MAX_NODE_DELAY ** (2 * share - 1))


def _simulate_future(
    data: bytes, input: ForecastInput, durations: DurationModel, random: Random | None, cycles: int,
    stop: float, delay: float,
) -> FutureReplay:  # fmt: skip
    """Simulate one future of a copy of the state."""
    copy = _decode_input(data)
    future = FutureReplay(copy, _restore_state(copy), durations)
    for job in copy.jobs:
        if not job.finished:
            future.add_job(job, durations.estimate_of(job).remaining(random))
    future.expect_nodes(copy.expected_nodes, delay)
    arrivals = ArrivalModel(input, durations).sample(random) if random is not None else []
    future.simulate(arrivals, cycles, stop)
    return future


def _decode_input(data: bytes) -> ForecastInput:
    """Decode a copy of the input with boot times converted to wall times: futures use one clock."""
    input = msgspec.json.decode(data, type=ForecastInput)
    shift = input.at - input.boot
    for job in input.jobs:
        if job.started_boot is not None:
            job.started_boot += shift
        if job.paused_boot is not None:
            job.paused_boot += shift
        job.progress = job.progress.with_stop_postponed(shift)
    input.record.unreachable = {
        name: replace(
            away, boot_time=away.boot_time + shift if away.boot_time is not None else None
        )
        for name, away in input.record.unreachable.items()
    }
    return input


def _restore_state(input: ForecastInput) -> State:
    return restore(input.record, input.specs, input.jobs, input.sweeps)


def _held_or_blocked(state: State) -> set[int]:
    """Return the jobs that are held or paused, and those that depend on one."""
    blocked = {
        job.id for job in state.jobs.values() if job.held or job.state is JobState.SUSPENDED
    }  # fmt: skip
    unchecked = list(blocked)
    while unchecked:
        for id in state.dependents.get(unchecked.pop(), set()) - blocked:
            job = state.jobs.get(id)
            dependency = dependency_of(state, job) if job is not None else None
            if job is None or dependency is None or not dependency.stays_open(blocked):
                continue
            if dependency_status_of(state, job, inf)[0] is not DependencyStatus.MET:
                blocked.add(id)
                unchecked.append(id)
    return blocked


def _job_forecast(
    state: State,
    job: Job,
    is_blocked: bool,
    duration: DurationEstimate,
    bound: StartBound,
    futures: list[FutureReplay],
) -> JobForecast:
    if job.state is JobState.SUSPENDED:
        return JobForecast(job=job.id, never="it is paused")
    if job.held:
        return JobForecast(job=job.id, never="it is held")
    if job.id in state.never_eligible:
        return JobForecast(job=job.id, never="a job that it depends on has failed")
    if is_blocked:
        return JobForecast(job=job.id, never="a job that it depends on is held or paused")
    if all(future.halted and job.id not in future.start_recorder.ends for future in futures):
        waits_for_cluster = job.placement is None and _may_get_node(state, job)
        never = "it needs something whose end cannot be estimated"
        return JobForecast(job=job.id, never=CLUSTER_DECIDES if waits_for_cluster else never)
    until = min(future.now for future in futures)
    kind = combined(bound.causes)
    start = None
    if job.placement is None:
        start = _samples(
            [future.start_recorder.starts.get(job.id) for future in futures], until, kind,
            _basis_text(state, bound, kind), bound.latest_start,
        )  # fmt: skip
    end_kind = combined({*bound.causes, duration.kind})
    end = _samples(
        [future.start_recorder.ends.get(job.id) for future in futures], until, end_kind,
        duration.basis if end_kind is duration.kind else _basis_text(state, bound, end_kind),
        bound.latest_end,
    )  # fmt: skip
    return JobForecast(job=job.id, start=start, end=end)


def _may_get_node(state: State, job: Job) -> bool:
    """Whether a cluster provides nodes that the job can use."""
    request = state.effective_request(job, state.spec(job))
    return any(
        node.on_demand and infeasibility_reason(node, request) is None
        for node in state.cluster.nodes.values()
    )


def _samples(
    at: list[float | None], until: float, kind: Kind, basis: str, latest: float | None
) -> Samples:
    if kind is not Kind.LIMIT:
        latest = None
    elif latest is None:
        at = [None] * len(at)  # no bound: later than the simulated time
    elif any(time is not None and time > latest + ENDING_SECONDS for time in at):
        kind, latest = Kind.SIMILAR, None  # jobs behind it or submitted later can delay it
    return Samples(
        at=[_rounded(time) for time in at], until=until, kind=kind, basis=basis,
        latest=_rounded(latest),
    )  # fmt: skip


BASIS_TEXTS = {
    Kind.EPOCHS: "measured epochs of the jobs ahead",
    Kind.RUNS: "earlier runs of the jobs ahead",
    Kind.STATED: "stated durations of the jobs ahead",
    Kind.ORDER: "the order of the queue",
    Kind.LIMIT: "time limits of the jobs ahead",
    Kind.SIMILAR: "runs of jobs similar to the jobs ahead",
}


def _basis_text(state: State, bound: StartBound, kind: Kind) -> str:
    """Return the basis of the predicted start as text."""
    if kind is Kind.UNKNOWN and kind in bound.causes:
        unknown, first = bound.causes[kind], bound.after
        text = f"job {state.jobs[unknown].label} has no earlier run and no time limit"
        if first is None or first == unknown:
            return text
        return f"job {state.jobs[first].label} may start before it, and {text}"
    if kind is Kind.SIMILAR and bound.causes.get(kind) == CLUSTER:
        return CLUSTER_SCHEDULE
    if kind is Kind.SIMILAR and kind not in bound.causes:
        return "time limits and earlier runs of the jobs ahead"
    return BASIS_TEXTS.get(kind, "")


def _rounded(at: float | None) -> float | None:
    return None if at is None else round(at, 3)
