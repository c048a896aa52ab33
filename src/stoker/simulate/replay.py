"""A workload in virtual time: the product's own core, and jobs that only take their time.

What is told to the core is what a real job would tell: that it has begun, that its first epochs
are over and how long they took, that it has stopped or ended. What the core wishes is done at
once, but for stopping, which waits for the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import ceil, inf
from time import perf_counter

from msgspec import Struct

from stoker.core import events as e
from stoker.core.cluster import NodeFacts, Placement
from stoker.core.cycle import after_requests, before_requests
from stoker.core.fold import apply
from stoker.core.instructions import AskToStop, EndAttempt, LetGoOn, StartProcess
from stoker.core.job import Spec, Training
from stoker.core.policy.rules import POLICIES, Knows
from stoker.core.request import GPU, GpuAsk, Request
from stoker.core.state import State
from stoker.core.units import THOUSAND
from stoker.simulate.diary import Diary
from stoker.simulate.outcome import Run
from stoker.simulate.workload import Load, Workload


class Assumed(Struct, frozen=True, kw_only=True):
    """What a trace does not say."""

    known_after: float = 0.05
    """The share of a job's work after which its epochs have been measured."""
    checkpoint: float = 600.0
    """Seconds of work between two checkpoints, at most; an epoch is never longer."""
    restart: float = 60.0
    """Seconds that a job needs, whenever it goes on, before it does anything useful."""
    steady: bool = False
    """Nobody saves anything on the way, so that nobody can be stopped."""
    limits: bool = False
    """Nobody reports epochs; the planner has only the time limits."""


class Course:
    """One job that runs."""

    __slots__ = ("attempt", "begin", "done", "end", "load", "placement", "rate", "stop", "version")

    def __init__(self, load: Load) -> None:
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
        assumed: Assumed | None = None,
        pieces: int = 0,
        state: State | None = None,
    ) -> None:
        """With a state, that of a real daemon (or a copy) is played on; see `carry_on`."""
        self.workload, self.nodes, self.name = workload, nodes, policy
        self.parameters, self.assumed = parameters or {}, assumed or Assumed()
        rules = POLICIES[policy]
        self.oracle = rules.knows is Knows.SAID
        """It is told how long a job takes, and may stop anybody at any moment."""
        self.given = state is not None
        self.state = state or State()
        self.courses: dict[int, Course] = {}
        self.todo: list[tuple[float, int, str, int, int]] = []
        """What happens next: when, in which order, what, to which job, and its version."""
        self.count = 0
        self.now = 0.0
        self.specs: dict[tuple[object, ...], str] = {}
        self.per_node = max((len(each.types.get(GPU, ())) for each in nodes), default=0)
        self.diary = Diary(nodes, pieces)
        self.spent: list[float] = []

    # -- from beginning to end ----------------------------------------------------------

    def run(self, heard: Callable[[int], None] = lambda done: None) -> Run:
        """Play it all."""
        if not self.given:
            chosen = e.PolicyChosen(
                at=0.0, queue="*", name=self.name, parameters=self.parameters
            )
            self._apply(chosen)
            for facts in self.nodes:
                self._apply(e.NodeJoined(at=0.0, facts=facts))
        jobs, at = self.workload.jobs, 0
        while at < len(jobs) or self.todo:
            arrival = jobs[at].at if at < len(jobs) else inf
            self.now = min(arrival, self.todo[0][0] if self.todo else inf)
            drift = self.state.drift[0][0] if self.state.drift and len(self.state.line) else inf
            if drift < self.now:
                self.now = drift
            wishes: list[object] = []
            while at < len(jobs) and jobs[at].at <= self.now:
                wishes += self._submit(at + 1, jobs[at])
                at += 1
            while self.todo and self.todo[0][0] <= self.now:
                _, _, what, job, version = heappop(self.todo)
                wishes += self._happens(what, job, version)
            self._turn(wishes)
            heard(self.diary.ended)
        return self._told()

    def carry_on(self, id: int, load: Load, left: float) -> None:
        """A job that the given state knows already needs so many seconds more."""
        job = self.state.jobs[id]
        course = self.courses[id] = Course(load)
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
        while True:
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
            if not again and not state.line.stirred:
                break
            wishes = again
            begin = perf_counter()
        self.diary.note(now, len(state.line))

    def _apply(self, fact: e.Event) -> list[object]:
        return list(apply(self.state, fact))

    # -- jobs ---------------------------------------------------------------------------

    def _submit(self, id: int, load: Load) -> list[object]:
        request = self._request(load)
        training = self._training(load)
        limit = load.limit
        key = (request, training, limit, load.user, id, load.queue)
        hash = self.specs.get(key)
        wishes: list[object] = []
        if hash is None or hash not in self.state.specs:
            hash = self.specs[key] = hash or str(len(self.specs))
            spec = Spec(
                kind="argv", user=load.user, directory="/", shell="", environment="",
                request=request, name=f"{load.name}#{id}", queue=load.queue or "default", limit=limit,
                training=training, steady=load.steady or self.assumed.steady,
            )  # fmt: skip
            wishes += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        self.courses[id] = Course(load)
        wishes += self._apply(
            e.JobsSubmitted(
                at=self.now, first=id, count=1, spec=hash, argv=(str(id),), priority=load.priority
            )
        )
        return wishes

    def _request(self, load: Load) -> Request:
        amount = round(load.gpus * THOUSAND)
        machines = 1
        if self.per_node and amount > self.per_node * THOUSAND:
            machines = -(-amount // (self.per_node * THOUSAND))
            amount = -(-amount // (machines * THOUSAND)) * THOUSAND
        ask = GpuAsk(
            amount,
            model=load.models[0].lower() if len(load.models) == 1 else None,
            memory=load.memory,
            beside=load.memory is not None,
            most=load.most * THOUSAND if load.most is not None else None,
        )
        return Request(
            gpus=ask if amount else None,
            cpus=round(load.cpus * THOUSAND),
            memory=load.ram,
            machines=machines,
        )

    def _training(self, load: Load) -> Training | None:
        if self.oracle:
            return Training(expected=ceil(load.seconds))
        if self.assumed.limits:
            return None
        return Training(epochs=self._epochs(load))

    def _epochs(self, load: Load) -> int:
        assumed = self.assumed
        least = ceil(1 / assumed.known_after) if assumed.known_after else 1
        often = ceil(load.seconds / assumed.checkpoint) if assumed.checkpoint else least
        return max(least, often, 1)

    def _known(self, load: Load) -> float:
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
        if what == "stop" and course.stop <= self.now:
            wishes = [] if self.oracle else self._counted(id, course, course.work(self.now))
            course.done = course.work(self.now)
            return wishes + self._over(id, course, stopped=True)
        if what == "end" and course.end <= self.now:
            wishes = self._over(id, course)
            del self.courses[id]
            return wishes
        return []

    def _counted(self, id: int, course: Course, work: float) -> list[object]:
        epochs = self._epochs(course.load)
        epoch = course.load.seconds / epochs
        done = int(work / epoch + 1e-6)
        seconds = epoch / course.rate
        return self._apply(
            e.EpochsCounted(
                at=self.now, job=id, attempt=course.attempt, done=done, seconds=seconds
            )
        )

    def _over(self, id: int, course: Course, stopped: bool = False) -> list[object]:
        course.version += 1
        self.diary.over(id, course.load, self.now, course.placement, ended=not stopped)
        return self._apply(
            e.ProcessExited(
                at=self.now, job=id, attempt=course.attempt, code=0, stopped=stopped
            )
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
        course.begin = self.now + (self.assumed.restart if wish.attempt else 0.0)
        course.rate = self._rate(load, course)
        course.end = course.when(load.seconds)
        self._later(course.end, "end", id, course.version)
        self.diary.begun(id, load, self.now, wish.placement)
        wishes = self._apply(
            e.ProcessStarted(at=self.now, job=id, attempt=wish.attempt, pid=1, boot=self.now)
        )
        if load.steady or self.assumed.steady:
            return wishes
        wishes += self._apply(e.TrainingBegan(at=self.now, job=id, attempt=wish.attempt))
        if not self.oracle and not self.assumed.limits:
            known = self._known(load)
            if course.done < known:
                self._later(course.when(known), "known", id, course.version)
        return wishes

    def _rate(self, load: Load, course: Course) -> float:
        if load.speed is None or course.placement is None:
            return 1.0
        parts = course.placement.parts
        gpus = sum(len(part.names(GPU)) for part in parts)
        return load.speed.rate(course.done / load.seconds, gpus, len(parts), self._model(parts[0]))

    def _model(self, part: Placement) -> str:
        node = self.state.cluster.nodes[part.node]
        for name in part.names(GPU):
            return node.by_name[GPU, name].facts.model or ""
        return ""

    def _ask_to_stop(self, id: int) -> None:
        """It stops at its next checkpoint, unless it is done before."""
        course = self.courses[id]
        if self.oracle or not self.assumed.checkpoint:
            course.stop = self.now
        else:
            epoch = course.load.seconds / self._epochs(course.load)
            next_one = ceil(course.work(self.now) / epoch - 1e-6) * epoch
            course.stop = max(course.when(next_one), self.now)
        if course.stop < course.end:
            self._later(course.stop, "stop", id, course.version)

    # -- the end ------------------------------------------------------------------------

    def _told(self) -> Run:
        return self.diary.told(
            policy=self.name, parameters=self.parameters, workload=self.workload,
            spent=self.spent, unfinished=len(self.courses),
        )  # fmt: skip


def replay(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    parameters: dict[str, float] | None = None,
    assumed: Assumed | None = None,
    heard: Callable[[int], None] = lambda done: None,
    pieces: int = 0,
) -> Run:
    """What becomes of a workload under a policy."""
    return Replay(workload, nodes, policy, parameters, assumed, pieces).run(heard)


def policies() -> Iterator[tuple[str, str]]:
    """Names of policies, and what each of them does."""
    for each in POLICIES.values():
        yield each.name, each.about
