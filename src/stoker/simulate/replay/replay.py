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

    known_after: float = 0.05
    """The share of a job's work after which its epochs have been measured."""
    checkpoint: float = 600.0
    """Seconds of work between two checkpoints, at most; an epoch is never longer."""
    restart: float = 60.0
    """Seconds that a job needs, whenever it goes on, before it does anything useful."""
    steady: bool = False
    """Jobs save no checkpoints, so they cannot be preempted."""
    limits: bool = False
    """Jobs report no epochs; the planner has only the time limits."""
    estimates: float | None = None
    """Jobs report no epochs but have an expected duration (`--expect`), two thirds of them right
    within this factor. None: only policies that plan with true durations know them."""
    seed: int = 0
    """Other estimates of the same kind."""


class JobRun:
    """One job that runs."""

    __slots__ = (
        "attempt", "begin", "done", "end", "load", "placement", "rate", "stop", "told", "version",
    )  # fmt: skip

    def __init__(self, load: TraceJob) -> None:
        self.load = load
        self.done = 0.0
        """Seconds of its work that are behind it, when the attempt began."""
        self.attempt = 0
        self.begin = 0.0
        """When this attempt does its first useful work."""
        self.rate = 1.0
        self.end = inf
        self.stop = inf
        """When it stops, if it was asked to."""
        self.placement: Placement | None = None
        self.told = 0
        """Epochs that the core has been told of."""
        self.version = 0

    def work(self, at: float) -> float:
        """Seconds of its work that are behind it now."""
        return min(self.done + max(at - self.begin, 0.0) * self.rate, self.load.seconds)

    def when(self, work: float) -> float:
        """The moment at which so much is behind it."""
        return self.begin + max(work - self.done, 0.0) / self.rate


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
        self.workload, self.nodes, self.name = workload, nodes, policy
        self.parameters, self.assumed = parameters or {}, assumed or ReplayAssumptions()
        rules = policy_named(policy)
        self.oracle = rules.knows is Knows.SAID
        """It is told how long a job takes, and may stop anybody at any moment."""
        said = self.assumed.estimates is not None
        self.reports = not (self.oracle or said or self.assumed.limits)
        """Whether jobs report epochs."""
        self.kinds: JobProfiles | None = None
        """What is known beforehand of the jobs, by a planner that counts on such things."""
        self.on: dict[tuple[str, str], list[int]] = {}
        """Who is on each GPU, if that matters."""
        if workload.families and rules.knows is Knows.MEASURED and not self.assumed.limits:
            self.kinds = JobProfiles(workload, nodes, self.assumed.checkpoint)
            self.nodes = self.kinds.with_memory(nodes)
        self.given = state is not None
        self.state = state or State()
        self.courses: dict[int, JobRun] = {}
        self.todo: list[tuple[float, int, str, int, int]] = []
        """What happens next: when, in which order, what, to which job, and its version."""
        self.count = 0
        self.now = 0.0
        self.specs: dict[tuple[object, ...], str] = {}
        """Under which name the core knows what was submitted alike."""
        self.recorded = 0
        self.per_node = max((len(each.types.get(GPU, ())) for each in nodes), default=0)
        self.diary = RunRecorder(nodes, pieces)
        self.spent = array("d")

    # -- from beginning to end ----------------------------------------------------------

    def run(self, heard: Callable[[int], None] = lambda done: None) -> RunResult:
        """Play it all."""
        if not self.given:
            chosen = e.PolicyChosen(at=0.0, queue="*", name=self.name, parameters=self.parameters)
            self._apply(chosen)
            for facts in self.nodes:
                self._apply(e.NodeJoined(at=0.0, facts=facts))
            for fact in self.kinds.measured(self.assumed.restart) if self.kinds else ():
                self._apply(fact)
        jobs, todo, at = self.workload.jobs, self.todo, 0
        while at < len(jobs) or todo:
            self.now = now = self._next(jobs[at].at if at < len(jobs) else inf)
            wishes: list[object] = []
            while at < len(jobs) and jobs[at].at <= now:
                wishes += self._submit(at + 1, jobs[at])
                at += 1
            while todo and todo[0][0] <= now:
                _, _, what, job, version = heappop(todo)
                wishes += self._happens(what, job, version)
            if self.kinds is not None:
                wishes += self._catch_up()
            self._turn(wishes)
            heard(self.diary.ended)
        return self._told()

    def _next(self, arrival: float) -> float:
        """When something happens, if the next job comes then."""
        state, moment = self.state, min(arrival, self.state.deal_at)
        if self.todo and self.todo[0][0] < moment:
            moment = self.todo[0][0]
        if len(state.line) and (drift := state.drift.first()) is not None:
            moment = min(moment, drift[0])
        return moment

    def carry_on(self, id: int, load: TraceJob, left: float) -> None:
        """A job that the given state knows already needs so many seconds more."""
        job = self.state.jobs[id]
        course = self.courses[id] = JobRun(load)
        course.done, course.attempt = max(load.seconds - left, 0.0), job.attempt
        if job.placement is not None:
            course.placement, course.begin = job.placement, self.now
            course.end = course.when(load.seconds)
            self._later(course.end, "end", id, course.version)
            self.diary.begun(id, load, self.now, job.placement)

    def _turn(self, wishes: list[object]) -> None:
        """One cycle of the core, until it wishes for nothing more."""
        begin = perf_counter()
        state, now = self.state, self.now
        for number in count():
            for fact in before_requests(state, now, now):
                wishes += self._apply(fact)
            for decided in after_requests(state, now, now):
                wishes += self._apply(decided)
            self.spent.append(perf_counter() - begin)
            again: list[object] = []
            for wish in wishes:
                again += self._carry_out(wish)
            state.touched.clear()
            state.dropped.clear()
            if not again and (not state.line.stirred or number >= MOST_ROUNDS):
                break
            wishes = again
            begin = perf_counter()
        self.diary.note(now, len(state.line))

    def _apply(self, fact: e.Event) -> list[object]:
        return list(apply(self.state, fact))

    # -- jobs ---------------------------------------------------------------------------

    def _submit(self, id: int, load: TraceJob) -> list[object]:
        request = self._request(load)
        training = self._training(load)
        limit, steady = load.limit, load.steady or self.assumed.steady
        name = load.name if self.kinds is not None else ""
        # Those of one name are one family to the core; without a name, each is one by itself.
        key = (request, training, limit, load.user, name, load.queue, steady, self._apart(load))
        hash = self.specs.get(key)
        wishes: list[object] = []
        if hash is None or hash not in self.state.specs:
            hash = self.specs[key] = self._new_name()
            spec = Spec(
                kind="argv", user=load.user, directory="/", shell="", environment="",
                request=request, name=name, queue=load.queue or "default", limit=limit,
                training=training, steady=steady,
            )  # fmt: skip
            wishes += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        self.courses[id] = JobRun(load)
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

    def _new_name(self) -> str:
        """A name for one more spec; those that the core has dropped are forgotten now and then."""
        live = self.state.specs
        if len(self.specs) > 2 * len(live) + KEEP_SPECS:
            self.specs = {key: name for key, name in self.specs.items() if name in live}
        self.recorded += 1
        return str(self.recorded)

    def _apart(self, load: TraceJob) -> object:
        """What makes a job another one than those that are submitted like it."""
        return None

    def _request(self, load: TraceJob) -> Request:
        memory = None
        if self.kinds is not None and self.kinds.shares(load):
            memory = self.kinds.memory
        return request_for(load, self.per_node, memory)

    def _training(self, load: TraceJob) -> Training | None:
        if self.assumed.estimates is not None:
            return Training(expected=ceil(_estimated(load, self.assumed)))
        if self.oracle:
            return Training(expected=ceil(load.seconds))
        if self.assumed.limits:
            return None
        several = load.most is not None and load.most > self.per_node
        return Training(epochs=self._epochs(load), distributed=several)

    def _epochs(self, load: TraceJob) -> int:
        assumed = self.assumed
        if load.epochs is not None:
            return load.epochs
        if self.kinds is not None and (epoch := self.kinds.epoch(load)) is not None:
            return max(ceil(load.seconds / epoch - 1e-6), 1)
        least = ceil(1 / assumed.known_after) if assumed.known_after else 1
        often = ceil(load.seconds / assumed.checkpoint) if assumed.checkpoint else least
        return max(least, often, 1)

    def _epoch(self, load: TraceJob) -> float:
        """Seconds of its work in an epoch."""
        if self.kinds is not None and (epoch := self.kinds.epoch(load)) is not None:
            return epoch
        return load.seconds / self._epochs(load)

    def _known(self, load: TraceJob) -> float:
        """The work after which its epochs have been measured."""
        return load.seconds * self.assumed.known_after

    # -- what happens -------------------------------------------------------------------

    def _later(self, at: float, what: str, job: int, version: int) -> None:
        self.count += 1
        heappush(self.todo, (at, self.count, what, job, version))

    def _happens(self, what: str, id: int, version: int) -> list[object]:
        course = self.courses.get(id)
        if course is None or course.version != version:
            return []
        if what == "known":
            return self._counted(id, course, self._known(course.load))
        if what == "told":
            return self._counted(id, course, course.work(self.now))
        if what == "epoch":
            return self._next_epoch(id, course)
        if what == "stop" and course.stop <= self.now:
            wishes = self._counted(id, course, course.work(self.now)) if self.reports else []
            course.done = course.work(self.now)
            return wishes + self._over(id, course, stopped=True)
        if what == "end" and course.end <= self.now:
            wishes = self._over(id, course)
            del self.courses[id]
            return wishes
        return []

    def _counted(self, id: int, course: JobRun, work: float) -> list[object]:
        epoch = self._epoch(course.load)
        done = course.told = int(work / epoch + 1e-6)
        at = self.now
        if self.kinds is not None:
            at = min(max(course.when(done * epoch), course.begin), at)
        return self._apply(
            e.EpochsCounted(
                at=at, job=id, attempt=course.attempt, done=done, seconds=epoch / course.rate
            )
        )

    def _next_epoch(self, id: int, course: JobRun) -> list[object]:
        """One that is not always as fast has come to the end of an epoch."""
        load, epoch = course.load, self._epoch(course.load)
        done = round(course.work(self.now) / epoch)
        heard = self.reports and not load.steady
        wishes = self._counted(id, course, done * epoch) if heard else []
        course.done, course.begin = done * epoch, self.now
        course.rate = self._rate(load, course)
        course.end = course.when(load.seconds)
        self._later(course.end, "end", id, course.version)
        self._until_epoch(id, course)
        return wishes

    def _until_epoch(self, id: int, course: JobRun) -> None:
        """Look at it again when its speed may change."""
        epoch = self._epoch(course.load)
        following = (int(course.done / epoch + 1e-6) + 1) * epoch
        if following < course.load.seconds - 1e-6 * epoch:
            self._later(course.when(following), "epoch", id, course.version)

    def _catch_up(self) -> list[object]:
        """Tell of all epochs that are over. Between two other events nobody would act on them."""
        wishes: list[object] = []
        for id, course in self.courses.items():
            if course.placement is not None and course.begin < self.now < course.end:
                work = course.work(self.now)
                if int(work / self._epoch(course.load) + 1e-6) > course.told:
                    wishes += self._counted(id, course, work)
        return wishes

    def _over(self, id: int, course: JobRun, stopped: bool = False) -> list[object]:
        course.version += 1
        placement, course.placement = course.placement, None
        progress = self.state.jobs[id].progress
        stop = progress.stop if stopped and progress is not None else None
        resized = stop is not None and stop.gpus is not None
        self.diary.over(id, course.load, self.now, placement, not stopped, resized)
        if self.kinds is not None and placement is not None:
            self._leaves(id, placement)
        return self._apply(
            e.ProcessExited(at=self.now, job=id, attempt=course.attempt, code=0, stopped=stopped)
        )

    # -- what is wished for -------------------------------------------------------------

    def _carry_out(self, wish: object) -> list[object]:
        match wish:
            case StartProcess():
                return self._start(wish)
            case AskToStop():
                self._ask_to_stop(wish.job)
            case LetGoOn():
                course = self.courses[wish.job]
                course.stop = inf
            case EndAttempt():
                course = self.courses[wish.job]
                course.done = course.work(self.now)
                return self._over(wish.job, course, stopped=True)
        return []

    def _start(self, wish: StartProcess) -> list[object]:
        id, load = wish.job, self.courses[wish.job].load
        course = self.courses[id]
        course.attempt, course.placement = wish.attempt, wish.placement
        course.version += 1
        course.stop = inf
        course.begin = self.now + (self.assumed.restart if wish.attempt or load.bare else 0.0)
        course.rate = self._rate(load, course)
        course.end = course.when(load.seconds)
        self._later(course.end, "end", id, course.version)
        if load.epochs is not None:
            self._until_epoch(id, course)
        if self.kinds is not None:
            self._joins(id, wish.placement)
        self.diary.begun(id, load, self.now, wish.placement)
        wishes = self._apply(
            e.ProcessStarted(at=self.now, job=id, attempt=wish.attempt, pid=1, boot=self.now)
        )
        if load.steady or self.assumed.steady:
            return wishes
        wishes += self._apply(e.TrainingBegan(at=self.now, job=id, attempt=wish.attempt))
        if self.reports:
            known = self._known(load)
            if load.epochs is not None:
                self._later(course.begin + TOLD_AFTER, "told", id, course.version)
            elif self.kinds is None and course.done < known:
                self._later(course.when(known), "known", id, course.version)
        return wishes

    def _rate(self, load: TraceJob, course: JobRun) -> float:
        if load.speed is None or course.placement is None:
            return 1.0
        parts = course.placement.parts
        gpus = sum(len(part.names(GPU)) for part in parts)
        return load.speed.rate(course.done / load.seconds, gpus, len(parts), self._model(parts[0]))

    # -- sharing GPUs -------------------------------------------------------------------

    def _joins(self, id: int, placement: Placement) -> None:
        for gpu in _gpus(placement):
            there = self.on.setdefault(gpu, [])
            there.append(id)
            if len(there) > 1:
                for each in there:
                    self._go_at(each)

    def _leaves(self, id: int, placement: Placement) -> None:
        for gpu in _gpus(placement):
            there = self.on[gpu]
            there.remove(id)
            for each in there:
                self._go_at(each)

    def _go_at(self, id: int) -> None:
        """Others have come to its GPUs, or left: from now on it is faster or slower."""
        course = self.courses[id]
        assert course.placement is not None
        load, model = course.load, self._model(course.placement)
        course.done = course.work(self.now)
        course.begin = max(self.now, course.begin)
        course.rate = self._rate(load, course)
        others = {each for gpu in _gpus(course.placement) for each in self.on[gpu]} - {id}
        for other in others:
            speed = self.courses[other].load.speed
            if load.speed is not None and speed is not None:
                course.rate *= load.speed.beside(speed, model)
        asked = course.stop < inf
        course.version += 1
        course.end = course.when(load.seconds)
        self._later(course.end, "end", id, course.version)
        if asked:
            self._ask_to_stop(id)

    def _model(self, part: Placement) -> str:
        node = self.state.cluster.nodes[part.node]
        for name in part.names(GPU):
            return node.by_name[GPU, name].facts.model or ""
        return ""

    def _ask_to_stop(self, id: int) -> None:
        """It stops at its next checkpoint, unless it is done before."""
        course = self.courses[id]
        if self.oracle or not self.assumed.checkpoint or course.load.at_once:
            course.stop = self.now
        else:
            epoch = self._epoch(course.load)
            next_one = ceil(course.work(self.now) / epoch - 1e-6) * epoch
            course.stop = max(course.when(next_one), self.now)
        if course.stop < course.end:
            self._later(course.stop, "stop", id, course.version)

    # -- the end ------------------------------------------------------------------------

    def _told(self) -> RunResult:
        return self.diary.told(
            policy=self.name, parameters=self.parameters, workload=self.workload,
            spent=self.spent, unfinished=len(self.courses),
        )  # fmt: skip


def _estimated(load: TraceJob, assumed: ReplayAssumptions) -> float:
    """Return what the owner of a job says: its duration, off by a log-normal factor."""
    chance = Random(f"{assumed.seed} {load.at} {load.seconds} {load.user}")
    return load.seconds * exp(chance.gauss(0.0, 1.0) * log(assumed.estimates or 1.0))


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
