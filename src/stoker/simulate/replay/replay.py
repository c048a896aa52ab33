"""A workload in virtual time: the product's own core, and jobs that only take their time.

What is told to the core is what a real job would tell: that it has begun, that its first epochs
are over and how long they took, that it has stopped or ended. What the core wishes is done at
once, but for stopping, which waits for the next checkpoint.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil, exp, inf, log
from random import Random
from time import perf_counter

from msgspec import Struct

from stoker.core import events as e
from stoker.core.cluster import NodeFacts, Placement
from stoker.core.cycle import after_requests, before_requests
from stoker.core.fold import apply
from stoker.core.instructions import AskToStop, EndAttempt, LetGoOn, StartProcess
from stoker.core.job import Spec, Training
from stoker.core.policy.rules import Knows
from stoker.core.policy.rules import policy as policy_named
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.simulate.job_request import request_for
from stoker.simulate.replay.job_profiles import JobProfiles
from stoker.simulate.replay.recorder import RunRecorder
from stoker.simulate.replay.results import RunResult
from stoker.simulate.workload import TraceJob, Workload

TOLD_AFTER = 30.0
"""Seconds of work after which the steps of a job that knows its own epochs have told its speed."""

MOST_ROUNDS = 100
"""In one moment, so often the core is asked once more although there is nothing left to do."""
KEEP_SPECS = 1000
"""Names of specs that the core has dropped: so many at least are remembered."""


class ReplayAssumptions(Struct, frozen=True, kw_only=True):
    """What a trace does not say."""

    measured_after: float = 0.05
    """The share of a job's work after which its epochs have been measured."""
    checkpoint_seconds: float = 600.0
    """Seconds of work between two checkpoints, at most; an epoch is never longer."""
    restart_seconds: float = 60.0
    """Seconds that a job needs, whenever it goes on, before it does anything useful."""
    non_preemptible: bool = False
    """Jobs save no checkpoints, so they cannot be preempted."""
    time_limits_only: bool = False
    """Jobs report no epochs; the planner has only the time limits."""
    estimate_error: float | None = None
    """Jobs report no epochs but have an expected duration (`--expect`), two thirds of them right
    within this factor. None: only policies that plan with true durations know them."""
    seed: int = 0
    """Other estimates of the same kind."""


class JobRun:
    """One job that runs."""

    __slots__ = (
        "attempt",
        "end_time",
        "job",
        "placement",
        "rate",
        "reported_epochs",
        "stop_time",
        "version",
        "work_done",
        "work_start",
    )

    def __init__(self, load: TraceJob) -> None:
        self.job = load
        self.work_done = 0.0
        """Seconds of its work that are behind it, when the attempt began."""
        self.attempt = 0
        self.work_start = 0.0
        """When this attempt does its first useful work."""
        self.rate = 1.0
        self.end_time = inf
        self.stop_time = inf
        """When it stops, if it was asked to."""
        self.placement: Placement | None = None
        self.reported_epochs = 0
        """Epochs that the core has been told of."""
        self.version = 0

    def work_at(self, at: float) -> float:
        """Seconds of its work that are behind it now."""
        return min(self.work_done + max(at - self.work_start, 0.0) * self.rate, self.job.duration)

    def time_of(self, work: float) -> float:
        """The moment at which so much is behind it."""
        return self.work_start + max(work - self.work_done, 0.0) / self.rate


class Replay:
    """One workload, one cluster, one policy."""

    def __init__(
        self,
        workload: Workload,
        nodes: list[NodeFacts],
        policy: str,
        parameters: dict[str, float] | None = None,
        assumed: ReplayAssumptions | None = None,
        pieces: int = 0,
        state: State | None = None,
    ) -> None:
        """With a state, that of a real daemon (or a copy) is played on; see `carry_on`."""
        self.workload, self.nodes, self.policy_name = workload, nodes, policy
        self.parameters, self.assumptions = parameters or {}, assumed or ReplayAssumptions()
        rules = policy_named(policy)
        self.knows_durations = rules.knows is Knows.SAID
        """It is told how long a job takes, and may stop anybody at any moment."""
        said = self.assumptions.estimate_error is not None
        self.jobs_report = not (self.knows_durations or said or self.assumptions.time_limits_only)
        """Whether jobs report epochs."""
        self.profiles: JobProfiles | None = None
        """What is known beforehand of the jobs, by a planner that counts on such things."""
        self.jobs_on_gpu: dict[tuple[str, str], list[int]] = {}
        """Who is on each GPU, if that matters."""
        if (
            workload.profiled
            and rules.knows is Knows.MEASURED
            and not self.assumptions.time_limits_only
        ):
            self.profiles = JobProfiles(workload, nodes, self.assumptions.checkpoint_seconds)
            self.nodes = self.profiles.with_memory(nodes)
        self.has_initial_state = state is not None
        self.state = state or State()
        self.runs: dict[int, JobRun] = {}
        self.timers: list[tuple[float, int, str, int, int]] = []
        """What happens next: when, in which order, what, to which job, and its version."""
        self.timer_count = 0
        self.now = 0.0
        self.spec_hashes: dict[tuple[object, ...], str] = {}
        """Under which name the core knows what was submitted alike."""
        self.spec_count = 0
        self.gpus_per_node = max((len(each.types.get(GPU, ())) for each in nodes), default=0)
        self.recorder = RunRecorder(nodes, pieces)
        self.cycle_seconds = array("d")

    # -- from beginning to end ----------------------------------------------------------

    def run(self, heard: Callable[[int], None] = lambda done: None) -> RunResult:
        """Play it all."""
        if not self.has_initial_state:
            chosen = e.PolicyChosen(
                at=0.0, queue="*", name=self.policy_name, parameters=self.parameters
            )
            self._apply(chosen)
            for facts in self.nodes:
                self._apply(e.NodeJoined(at=0.0, facts=facts))
            for fact in (
                self.profiles.profile_events(self.assumptions.restart_seconds)
                if self.profiles
                else ()
            ):
                self._apply(fact)
        jobs, todo, at = self.workload.jobs, self.timers, 0
        while at < len(jobs) or todo:
            self.now = now = self._next_event_time(jobs[at].submit_time if at < len(jobs) else inf)
            wishes: list[object] = []
            while at < len(jobs) and jobs[at].submit_time <= now:
                wishes += self._submit(at + 1, jobs[at])
                at += 1
            while todo and todo[0][0] <= now:
                _, _, what, job, version = heappop(todo)
                wishes += self._on_timer(what, job, version)
            if self.profiles is not None:
                wishes += self._report_finished_epochs()
            self._cycle(wishes)
            heard(self.recorder.ended_count)
        return self._result()

    def _next_event_time(self, arrival: float) -> float:
        """When something happens, if the next job comes then."""
        state, moment = self.state, min(arrival, self.state.deal_at)
        if self.timers and self.timers[0][0] < moment:
            moment = self.timers[0][0]
        if len(state.line) and (drift := state.drift.first()) is not None:
            moment = min(moment, drift[0])
        return moment

    def resume_job(self, id: int, load: TraceJob, left: float) -> None:
        """A job that the given state knows already needs so many seconds more."""
        job = self.state.jobs[id]
        course = self.runs[id] = JobRun(load)
        course.work_done, course.attempt = max(load.duration - left, 0.0), job.attempt
        if job.placement is not None:
            course.placement, course.work_start = job.placement, self.now
            course.end_time = course.time_of(load.duration)
            self._schedule(course.end_time, "end", id, course.version)
            self.recorder.attempt_started(id, load, self.now, job.placement)

    def _cycle(self, wishes: list[object]) -> None:
        """One cycle of the core, until it wishes for nothing more."""
        begin = perf_counter()
        state, now = self.state, self.now
        for number in count():
            for fact in before_requests(state, now, now):
                wishes += self._apply(fact)
            for decided in after_requests(state, now, now):
                wishes += self._apply(decided)
            self.cycle_seconds.append(perf_counter() - begin)
            again: list[object] = []
            for wish in wishes:
                again += self._execute(wish)
            state.touched.clear()
            state.dropped.clear()
            if not again and (not state.line.stirred or number >= MOST_ROUNDS):
                break
            wishes = again
            begin = perf_counter()
        self.recorder.cycle_ended(now, len(state.line))

    def _apply(self, fact: e.Event) -> list[object]:
        return list(apply(self.state, fact))

    # -- jobs ---------------------------------------------------------------------------

    def _submit(self, id: int, load: TraceJob) -> list[object]:
        request = self._request(load)
        training = self._training(load)
        limit, steady = load.time_limit, load.non_preemptible or self.assumptions.non_preemptible
        name = load.name if self.profiles is not None else ""
        # Those of one name are one family to the core; without a name, each is one by itself.
        key = (
            request,
            training,
            limit,
            load.user,
            name,
            load.queue,
            steady,
            self._spec_distinction(load),
        )
        hash = self.spec_hashes.get(key)
        wishes: list[object] = []
        if hash is None or hash not in self.state.specs:
            hash = self.spec_hashes[key] = self._new_spec_hash()
            spec = Spec(
                kind="argv", user=load.user, directory="/", shell="", environment="",
                request=request, name=name, queue=load.queue or "default", limit=limit,
                training=training, steady=steady,
            )  # fmt: skip
            wishes += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        self.runs[id] = JobRun(load)
        wishes += self._apply(
            e.JobsSubmitted(
                at=self.now, first=id, count=1, spec=hash, argv=self._argv(id, load),
                priority=load.priority,
            )
        )  # fmt: skip
        return wishes

    def _argv(self, id: int, load: TraceJob) -> tuple[str, ...]:
        """Return a command that no other job has."""
        return (f"{load.name}#{id}",)

    def _new_spec_hash(self) -> str:
        """A name for one more spec; those that the core has dropped are forgotten now and then."""
        live = self.state.specs
        if len(self.spec_hashes) > 2 * len(live) + KEEP_SPECS:
            self.spec_hashes = {key: name for key, name in self.spec_hashes.items() if name in live}
        self.spec_count += 1
        return str(self.spec_count)

    def _spec_distinction(self, load: TraceJob) -> object:
        """What makes a job another one than those that are submitted like it."""
        return None

    def _request(self, load: TraceJob) -> Request:
        memory = None
        if self.profiles is not None and self.profiles.may_share(load):
            memory = self.profiles.reserved_memory
        return request_for(load, self.gpus_per_node, memory)

    def _training(self, load: TraceJob) -> Training | None:
        if self.assumptions.estimate_error is not None:
            return Training(expected=ceil(_estimated(load, self.assumptions)))
        if self.knows_durations:
            return Training(expected=ceil(load.duration))
        if self.assumptions.time_limits_only:
            return None
        several = load.max_gpus is not None and load.max_gpus > self.gpus_per_node
        return Training(epochs=self._epoch_count(load), distributed=several)

    def _epoch_count(self, load: TraceJob) -> int:
        assumed = self.assumptions
        if load.epochs is not None:
            return load.epochs
        if self.profiles is not None and (epoch := self.profiles.epoch_work(load)) is not None:
            return max(ceil(load.duration / epoch - 1e-6), 1)
        least = ceil(1 / assumed.measured_after) if assumed.measured_after else 1
        often = (
            ceil(load.duration / assumed.checkpoint_seconds)
            if assumed.checkpoint_seconds
            else least
        )
        return max(least, often, 1)

    def _epoch_seconds(self, load: TraceJob) -> float:
        """Seconds of its work in an epoch."""
        if self.profiles is not None and (epoch := self.profiles.epoch_work(load)) is not None:
            return epoch
        return load.duration / self._epoch_count(load)

    def _measured_work(self, load: TraceJob) -> float:
        """The work after which its epochs have been measured."""
        return load.duration * self.assumptions.measured_after

    # -- what happens -------------------------------------------------------------------

    def _schedule(self, at: float, what: str, job: int, version: int) -> None:
        self.timer_count += 1
        heappush(self.timers, (at, self.timer_count, what, job, version))

    def _on_timer(self, what: str, id: int, version: int) -> list[object]:
        course = self.runs.get(id)
        if course is None or course.version != version:
            return []
        if what == "known":
            return self._report_epochs(id, course, self._measured_work(course.job))
        if what == "told":
            return self._report_epochs(id, course, course.work_at(self.now))
        if what == "epoch":
            return self._on_epoch_end(id, course)
        if what == "stop" and course.stop_time <= self.now:
            wishes = (
                self._report_epochs(id, course, course.work_at(self.now))
                if self.jobs_report
                else []
            )
            course.work_done = course.work_at(self.now)
            return wishes + self._end_attempt(id, course, stopped=True)
        if what == "end" and course.end_time <= self.now:
            wishes = self._end_attempt(id, course)
            del self.runs[id]
            return wishes
        return []

    def _report_epochs(self, id: int, course: JobRun, work: float) -> list[object]:
        epoch = self._epoch_seconds(course.job)
        done = course.reported_epochs = int(work / epoch + 1e-6)
        at = self.now
        if self.profiles is not None:
            at = min(max(course.time_of(done * epoch), course.work_start), at)
        return self._apply(
            e.EpochsCounted(
                at=at, job=id, attempt=course.attempt, done=done, seconds=epoch / course.rate
            )
        )

    def _on_epoch_end(self, id: int, course: JobRun) -> list[object]:
        """One that is not always as fast has come to the end of an epoch."""
        load, epoch = course.job, self._epoch_seconds(course.job)
        done = round(course.work_at(self.now) / epoch)
        heard = self.jobs_report and not load.non_preemptible
        wishes = self._report_epochs(id, course, done * epoch) if heard else []
        course.work_done, course.work_start = done * epoch, self.now
        course.rate = self._rate(load, course)
        course.end_time = course.time_of(load.duration)
        self._schedule(course.end_time, "end", id, course.version)
        self._schedule_epoch_end(id, course)
        return wishes

    def _schedule_epoch_end(self, id: int, course: JobRun) -> None:
        """Look at it again when its speed may change."""
        epoch = self._epoch_seconds(course.job)
        following = (int(course.work_done / epoch + 1e-6) + 1) * epoch
        if following < course.job.duration - 1e-6 * epoch:
            self._schedule(course.time_of(following), "epoch", id, course.version)

    def _report_finished_epochs(self) -> list[object]:
        """Tell of all epochs that are over. Between two other events nobody would act on them."""
        wishes: list[object] = []
        for id, course in self.runs.items():
            if course.placement is not None and course.work_start < self.now < course.end_time:
                work = course.work_at(self.now)
                if int(work / self._epoch_seconds(course.job) + 1e-6) > course.reported_epochs:
                    wishes += self._report_epochs(id, course, work)
        return wishes

    def _end_attempt(self, id: int, course: JobRun, stopped: bool = False) -> list[object]:
        course.version += 1
        placement, course.placement = course.placement, None
        progress = self.state.jobs[id].progress
        stop = progress.stop if stopped and progress is not None else None
        resized = stop is not None and stop.gpus is not None
        self.recorder.attempt_ended(id, course.job, self.now, placement, not stopped, resized)
        if self.profiles is not None and placement is not None:
            self._leave_gpus(id, placement)
        return self._apply(
            e.ProcessExited(at=self.now, job=id, attempt=course.attempt, code=0, stopped=stopped)
        )

    # -- what is wished for -------------------------------------------------------------

    def _execute(self, wish: object) -> list[object]:
        match wish:
            case StartProcess():
                return self._start(wish)
            case AskToStop():
                self._request_stop(wish.job)
            case LetGoOn():
                course = self.runs[wish.job]
                course.stop_time = inf
            case EndAttempt():
                course = self.runs[wish.job]
                course.work_done = course.work_at(self.now)
                return self._end_attempt(wish.job, course, stopped=True)
        return []

    def _start(self, wish: StartProcess) -> list[object]:
        id, load = wish.job, self.runs[wish.job].job
        course = self.runs[id]
        course.attempt, course.placement = wish.attempt, wish.placement
        course.version += 1
        course.stop_time = inf
        course.work_start = self.now + (
            self.assumptions.restart_seconds if wish.attempt or load.first_start_costs else 0.0
        )
        course.rate = self._rate(load, course)
        course.end_time = course.time_of(load.duration)
        self._schedule(course.end_time, "end", id, course.version)
        if load.epochs is not None:
            self._schedule_epoch_end(id, course)
        if self.profiles is not None:
            self._join_gpus(id, wish.placement)
        self.recorder.attempt_started(id, load, self.now, wish.placement)
        wishes = self._apply(
            e.ProcessStarted(at=self.now, job=id, attempt=wish.attempt, pid=1, boot=self.now)
        )
        if load.non_preemptible or self.assumptions.non_preemptible:
            return wishes
        wishes += self._apply(e.TrainingBegan(at=self.now, job=id, attempt=wish.attempt))
        if self.jobs_report:
            known = self._measured_work(load)
            if load.epochs is not None:
                self._schedule(course.work_start + TOLD_AFTER, "told", id, course.version)
            elif self.profiles is None and course.work_done < known:
                self._schedule(course.time_of(known), "known", id, course.version)
        return wishes

    def _rate(self, load: TraceJob, course: JobRun) -> float:
        if load.speed is None or course.placement is None:
            return 1.0
        parts = course.placement.parts
        gpus = sum(len(part.names(GPU)) for part in parts)
        return load.speed.rate(
            course.work_done / load.duration, gpus, len(parts), self._gpu_model(parts[0])
        )

    # -- sharing GPUs -------------------------------------------------------------------

    def _join_gpus(self, id: int, placement: Placement) -> None:
        for gpu in _gpus(placement):
            there = self.jobs_on_gpu.setdefault(gpu, [])
            there.append(id)
            if len(there) > 1:
                for each in there:
                    self._update_rate(each)

    def _leave_gpus(self, id: int, placement: Placement) -> None:
        for gpu in _gpus(placement):
            there = self.jobs_on_gpu[gpu]
            there.remove(id)
            for each in there:
                self._update_rate(each)

    def _update_rate(self, id: int) -> None:
        """Others have come to its GPUs, or left: from now on it is faster or slower."""
        course = self.runs[id]
        assert course.placement is not None
        load, model = course.job, self._gpu_model(course.placement)
        course.work_done = course.work_at(self.now)
        course.work_start = max(self.now, course.work_start)
        course.rate = self._rate(load, course)
        others = {each for gpu in _gpus(course.placement) for each in self.jobs_on_gpu[gpu]} - {id}
        for other in others:
            speed = self.runs[other].job.speed
            if load.speed is not None and speed is not None:
                course.rate *= load.speed.interference(speed, model)
        asked = course.stop_time < inf
        course.version += 1
        course.end_time = course.time_of(load.duration)
        self._schedule(course.end_time, "end", id, course.version)
        if asked:
            self._request_stop(id)

    def _gpu_model(self, part: Placement) -> str:
        node = self.state.cluster.nodes[part.node]
        for name in part.names(GPU):
            return node.by_name[GPU, name].facts.model or ""
        return ""

    def _request_stop(self, id: int) -> None:
        """It stops at its next checkpoint, unless it is done before."""
        course = self.runs[id]
        if (
            self.knows_durations
            or not self.assumptions.checkpoint_seconds
            or course.job.stops_immediately
        ):
            course.stop_time = self.now
        else:
            epoch = self._epoch_seconds(course.job)
            next_one = ceil(course.work_at(self.now) / epoch - 1e-6) * epoch
            course.stop_time = max(course.time_of(next_one), self.now)
        if course.stop_time < course.end_time:
            self._schedule(course.stop_time, "stop", id, course.version)

    # -- the end ------------------------------------------------------------------------

    def _result(self) -> RunResult:
        return self.recorder.result(
            policy=self.policy_name, parameters=self.parameters, workload=self.workload,
            spent=self.cycle_seconds, unfinished=len(self.runs),
        )  # fmt: skip


def _estimated(load: TraceJob, assumed: ReplayAssumptions) -> float:
    """Return what the owner of a job says: its duration, off by a log-normal factor."""
    chance = Random(f"{assumed.seed} {load.submit_time} {load.duration} {load.user}")
    return load.duration * exp(chance.gauss(0.0, 1.0) * log(assumed.estimate_error or 1.0))


def _gpus(placement: Placement) -> list[tuple[str, str]]:
    return [(part.node, name) for part in placement.parts for name in part.names(GPU)]


def replay(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    parameters: dict[str, float] | None = None,
    assumed: ReplayAssumptions | None = None,
    heard: Callable[[int], None] = lambda done: None,
    pieces: int = 0,
) -> RunResult:
    """What becomes of a workload under a policy."""
    return Replay(workload, nodes, policy, parameters, assumed, pieces).run(heard)
