"""All that is known, in one mutable object that only events change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappush
from math import inf, log2
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import Cluster, DeviceFacts, NodeFacts, Placement
from stoker.core.dependency import Dependency, Other, Standing, standing
from stoker.core.estimate import Families, estimate, known
from stoker.core.events import NodeAdded, QueueDefined
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import UNHAPPY, JobState, check
from stoker.core.moments import Moments
from stoker.core.policy.backfill import latest_end
from stoker.core.policy.bars import Bars
from stoker.core.policy.ends import Ends
from stoker.core.policy.ground import note
from stoker.core.policy.order import LONG_AGO, JobClass, Key, ReadyLine
from stoker.core.policy.rank import Known, gpus_of, rank
from stoker.core.policy.rules import POLICIES, USUAL, Gaps, Policy, policy
from stoker.core.policy.share import can_stop, reserved
from stoker.core.policy.shelf import Place
from stoker.core.policy.victims import Seat, Victims
from stoker.core.request import CPU, GPU, MEMORY, Request
from stoker.core.sweep import Board, Sweep, trial_of, word_of
from stoker.core.usage import EVERY, Had, Usage

KEEP_FINISHED = 256
"""Finished jobs kept in memory; older ones are read from the store."""
KEEP_UNSEEN = 1024
"""Unseen failures are kept longer, since the listing shows them, but not without bound."""
FORGET_BATCH = 64
KEEP_BOARDS = 8
"""Boards of sweeps that are over; the others are read from the store when more is wanted."""
DEMOTION = 1000
"""What a job loses of its priority when it takes far longer than it said."""
LATE = 1.2
"""A measured job may take so much longer than it seems."""
AUTO = "auto"
"""A queue goes by `planner` from the moment at which one of its jobs reports epochs."""
NONE_OF_ITS_OWN = "none"
"""No GPU is called that: what a queue without GPUs gives to jobs that ask for one."""

Among = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of devices by type."""

_K = TypeVar("_K", str, int)


class Away(Struct, frozen=True, omit_defaults=True):
    """Since when a machine does not answer, and why."""

    since: float
    boot: float | None
    """By the boot clock; None while nobody has tried to reach it."""
    why: str


class Rest(Struct, omit_defaults=True):
    """What there is besides jobs and specs: small, and saved whole when it changed."""

    next_id: int = 1
    last_first: int = 0
    """The newest submission: what people mean by `last`."""
    last_count: int = 0
    boot: str = ""
    term: int = 0
    nodes: dict[str, NodeFacts] = {}
    drained: dict[str, str] = {}
    """Reasons by `node/type:device`."""
    strangers: dict[str, tuple[str, int]] = {}
    queues: dict[str, QueueDefined] = {}
    cleared: dict[str, float] = {}
    """When the history of a front door was last wiped."""
    remotes: dict[str, NodeAdded] = {}
    """Machines over SSH."""
    away: dict[str, Away] = {}
    """Those of them that do not answer."""
    closed: dict[str, str] = {}
    """Machines that answer but take nothing new, and why."""
    others: dict[str, tuple[int, int]] = {}
    """What others use of a machine's cores and memory."""
    strays: dict[str, tuple[tuple[int, int], ...]] = {}
    """Attempts that were restarted elsewhere and may still run, by machine."""
    families: Families = {}
    """What was learned about kinds of training jobs, the one heard of last at the end."""
    policies: dict[str, tuple[str, dict[str, float]]] = {}
    """What each queue goes by, and with which parameters; `*`: those for whom nothing is said."""
    usage: dict[str, Had] = {}
    """What users have had, where that counts."""
    reporting: dict[str, None] = {}
    """Queues of which some job has reported epochs."""


class State:
    """Jobs, specs, the ledger, and the indexes that make questions cheap."""

    def __init__(self) -> None:
        self.rest = Rest()
        self.jobs: dict[int, Job] = {}
        self.specs: dict[str, Spec] = {}
        self.spec_users: dict[str, int] = {}
        self.cluster = Cluster()
        self.line = ReadyLine()
        self.running: dict[int, Job] = {}
        """Jobs that hold devices."""
        self.stoppable: dict[int, Job] = {}
        """Those of them that can be asked to stop and go on later."""
        self.victims = Victims()
        """The same by who makes room first; each stands at least as far back as it should."""
        self.bars = Bars(self.cluster, self.victims)
        self.leaving: dict[int, Job] = {}
        """Those who were asked to stop, or are being ended: what they hold is free before long."""
        self.promises: dict[int, Placement] = {}
        """What is kept for those who wait until somebody has stopped; then found anew."""
        self.elastic: dict[int, Job] = {}
        """Running jobs that can do with more or fewer GPUs."""
        self.flexible: dict[int, None] = {}
        """Those of them who wait; some may wait no longer."""
        self.allotted: dict[int, int] = {}
        """How many GPUs those were dealt in the last round who have yet to get them, elastic or
        not. Dealt anew after a restart."""
        self.dealt_at = -inf
        """When that was."""
        self.deal_at = inf
        """When the next round is due, if something has happened since."""
        self.sharing: dict[int, Job] = {}
        """Running jobs that share their GPUs by memory."""
        self.drift = Moments()
        """When a job's rank changes by itself."""
        self.usage = Usage(self.rest.usage)
        self.fair_at = 0.0
        """When to look again who has had how much."""
        self.ending = Ends()
        """Running jobs by when each is over at the latest."""
        self.watches = Moments()
        """When the clock may have something to say about a running job, by the boot clock."""
        self.dependents: dict[int, set[int]] = {}
        self.blockers: dict[str, int] = {}
        """By spec: one of the jobs that those who wait for several were seen to wait for."""
        self.doomed: set[int] = set()
        """Waiting jobs that can never start, because of what they wait for."""
        self.alarms: list[tuple[float, int]] = []
        """Begin times and back-offs, as a heap; stale entries are skipped."""
        self.deadlines: list[tuple[float, int]] = []
        self.finished: dict[int, None] = {}
        """Finished jobs still in memory, oldest first."""
        self.unseen: dict[int, None] = {}
        self.queue_running: dict[str, int] = {}
        self.queue_gpus: dict[str, int] = {}
        self.array_running: dict[int, int] = {}
        self.sweeps: dict[int, Sweep] = {}
        self.boards: dict[int, Board] = {}
        """Their trials, of those that go on or ended lately."""
        self.judging: dict[int, int] = {}
        """Trials that have just come to a rung."""
        self.touched_sweeps: set[int] = set()
        """Sweeps changed since the last commit."""
        self.touched: set[int] = set()
        """Jobs changed since the last commit."""
        self.dropped: list[int] = []
        """Jobs forgotten since the last commit."""
        self.rest_changed = False
        self.telling: bool | None = None
        """Whether some family tells models of GPU apart, or whom to share with; None: look."""
        self._devices_of: dict[str, tuple[QueueDefined, Among]] = {}
        self._policies: dict[str, Policy] = {}
        self._reluctance: float | None = None

    # -- asking -------------------------------------------------------------------------

    def spec(self, job: Job) -> Spec:
        """What was submitted."""
        return self.specs[job.spec]

    @property
    def live(self) -> int:
        """How many jobs have not finished."""
        return len(self.jobs) - len(self.finished)

    def key(self, job: Job) -> Key:
        """The class a ready job belongs to."""
        spec = self.specs[job.spec]
        together = spec.array_limit is not None or job.params is not None
        throttled = (job.array or job.id) if together else 0
        queue = self.rest.queues.get(spec.queue)
        priority = self.priority(job)
        if queue is not None and queue.strict:
            # Only the head of such a queue counts, whatever the others behind it ask for.
            return (None, priority, spec.queue, throttled, None, "")
        fair = self.line.weights[spec.queue] = self.policy(spec.queue).fair
        user = job.user if fair else ""
        return (self.effective(job, spec), priority, spec.queue, throttled, spec.limit, user)

    def policy(self, queue: str) -> Policy:
        """What a queue goes by."""
        found = self._policies.get(queue)
        if found is None:
            found = self._policies[queue] = self._policy(queue)
        return found

    def _policy(self, queue: str) -> Policy:
        name, parameters = self.rest.policies.get(queue) or self.rest.policies.get("*", ("", {}))
        if name == AUTO and queue not in self.rest.reporting:
            return USUAL
        return self._named(name, parameters)

    @staticmethod
    def _named(name: str, parameters: dict[str, float]) -> Policy:
        name = "planner" if name == AUTO else name
        return policy(name, parameters) if name in POLICIES else USUAL

    def forget_policies(self) -> None:
        """Some queue goes by another policy from now on."""
        self._policies.clear()
        self._reluctance = None

    @property
    def reluctance(self) -> float:
        """So much further back everybody stands who stops for an equal, in doublings."""
        if self._reluctance is None:
            named = (self._named(*each) for each in self.rest.policies.values())
            steps = [log2(rules.hysteresis) for rules in named if rules.preempts]
            self._reluctance = min(steps, default=inf)
        return self._reluctance

    def tells_apart(self) -> bool:
        """Whether it is known of some jobs where they are fast, or beside whom they are slow."""
        if self.telling is None:
            families = self.rest.families.values()
            self.telling = any(each.beside or each.compared for each in families)
        return self.telling

    def preempts(self, job: Job) -> bool:
        """Whether it makes room for others of equal priority."""
        return self.policy(self.specs[job.spec].queue).preempts

    def gaps(self, queue: str) -> Gaps:
        """Who may start there although somebody before cannot."""
        defined = self.rest.queues.get(queue)
        if defined is not None and defined.strict:
            return Gaps.NOBODY
        return self.policy(queue).gaps

    def ends_matter(self) -> bool:
        """Whether it counts for somebody who waits when those are over who run."""
        waiting = (Gaps.EASY, Gaps.CONSERVATIVE)
        return any(self.gaps(queue) in waiting for queue in self.line.queues)

    def known(self, job: Job) -> Known:
        """What there is to judge a job by."""
        spec = self.specs[job.spec]
        rules = self.policy(spec.queue)
        return Known(job, spec, rules, self.rest.families, self.cluster)

    @staticmethod
    def priority(job: Job) -> int:
        """What its owner gave it, less if it took far longer than it said."""
        demoted = job.progress is not None and job.progress.demoted
        return job.priority - DEMOTION if demoted else job.priority

    def request(self, job: Job, found: JobClass) -> Request:
        """What the job at the head of a class asks for."""
        if found.request is not None:
            return found.request
        return self.effective(job, self.specs[job.spec])

    def deadline(self, job: Job) -> float | None:
        """The moment by which a job must have ended, or begun if it waits, while that counts."""
        spec = self.specs[job.spec]
        if job.late or spec.deadline_at is None:
            return None
        waits = job.state is JobState.PENDING
        return spec.deadline_at - (spec.limit or 0) if waits else spec.deadline_at

    def effective(self, job: Job, spec: Spec) -> Request:
        """The request as narrowed by the queue's devices and by `retry --same-gpus`."""
        request = spec.request
        if request.gpus is not None and request.gpus.beside:
            ask = reserved(request.gpus, job.progress, known(self.rest.families, job, spec))
            request = replace(request, gpus=ask)
        queue = self.rest.queues.get(spec.queue)
        only = queue.devices if queue else ()
        if queue is not None and queue.resources:
            request = replace(request, among=self._among(queue))
            only = request.will_do(GPU) or (NONE_OF_ITS_OWN,)
        if job.same_devices and job.last_devices and request.machines == 1:
            only = job.last_devices
            if job.last_node is not None:
                request = replace(request, nodes=(job.last_node,))
        if only and request.gpus:
            return replace(request, gpus=replace(request.gpus, within=only))
        return request

    def _among(self, queue: QueueDefined) -> Among:
        """The devices that a queue has: worked out once, and shared by all who ask in it."""
        known = self._devices_of.get(queue.name)
        if known is None or known[0] is not queue:
            known = self._devices_of[queue.name] = (queue, among(queue))
        return known[1]

    def limit_reached(self, found: JobClass) -> str | None:
        """The limit that keeps a whole class from starting, in words, or None."""
        if found.array:
            job, sweep = self.line.head(found, self.jobs), self.sweeps.get(found.array)
            limit = self.specs[job.spec].array_limit if job else None
            if sweep is not None:
                limit = sweep.max_running
            if limit is not None and self.array_running.get(found.array, 0) >= limit:
                what = "array" if sweep is None else "sweep"
                return f"{what} {found.array} runs {limit} at a time"
        queue = self.rest.queues.get(found.queue)
        if queue is None:
            return None
        running = self.queue_running.get(found.queue, 0)
        if queue.max_running is not None and running >= queue.max_running:
            return f"queue {found.queue} runs {queue.max_running} at a time"
        if queue.max_gpus is not None:
            used = self.queue_gpus.get(found.queue, 0)
            head = self.line.head(found, self.jobs)
            asked = self.request(head, found).gpu_amount if head else 0
            if used + asked > queue.max_gpus:
                return f"queue {found.queue} has its GPUs in use"
        return None

    def gpus_left(self, queue: str) -> float | None:
        """How many GPUs more a queue may use, in thousandths; None when no more job may start."""
        limits = self.rest.queues.get(queue)
        if limits is None:
            return inf
        most, gpus = limits.max_running, limits.max_gpus
        if most is not None and self.queue_running.get(queue, 0) >= most:
            return None
        return inf if gpus is None else gpus - self.queue_gpus.get(queue, 0)

    def ends(self) -> Iterator[tuple[float, Placement]]:
        """When each running attempt is over at the latest, and what it gives back, in order."""
        for end, id in self.ending:
            placement = self.running[id].placement
            if placement is not None:
                yield end, placement

    def latest_end(self, job: Job) -> float:
        """When a running attempt is over at the latest; nobody knows how long a pause lasts."""
        if job.progress is not None and job.progress.stop is not None:
            return job.progress.stop.boot
        spec = self.specs[job.spec]
        limit = None if job.state is JobState.SUSPENDED else spec.limit
        if limit is None and job.progress is not None and job.state is JobState.RUNNING:
            return self._likely_end(job, spec)
        return latest_end(job.started_boot, limit, job.slack)

    def _likely_end(self, job: Job, spec: Spec) -> float:
        """Nobody limits it, but its epochs have been measured."""
        at, boot = job.progress.counted_at if job.progress else None, job.started_boot
        if at is None or boot is None or job.started_at is None:
            return inf
        left = estimate(self.rest.families, self.cluster, job, spec, at).remaining_seconds
        return inf if left is None else boot + (at - job.started_at) + left * LATE

    def other(self, id: int) -> Other | None:
        """A job, or all of a sweep, as its dependants see it."""
        sweep, job = self.sweeps.get(id), self.jobs.get(id)
        if sweep is not None:
            began = sweep.created_at if sweep.issued else None
            return Other(not sweep.open, sweep.went_well, began)
        if job is None:
            return None
        started = [past.started_at for past in job.past if past.started_at is not None]
        last = job.started_at if job.started_at is not None or not started else started[-1]
        return Other(job.finished, job.state is JobState.COMPLETED, last, id in self.doomed)

    def dependency_standing(self, job: Job, now: float) -> tuple[Standing, list[int], float | None]:
        """How a job's dependency stands."""
        dependency = self.dependency(job)
        if dependency is None:
            return Standing.MET, [], None
        return standing(dependency, self.other, inf if job.delay_over else now)

    def dependency(self, job: Job) -> Dependency | None:
        """What this very job waits for: of another array, the member with its own index."""
        dependency = self.specs[job.spec].dependency
        if dependency is not None and dependency.by_member:
            return replace(
                dependency,
                clauses=tuple(
                    replace(clause, jobs=self._same_index(job, clause.jobs))
                    if clause.kind == "aftercorr"
                    else clause
                    for clause in dependency.clauses
                ),
            )
        return dependency

    def _same_index(self, job: Job, others: tuple[int, ...]) -> tuple[int, ...]:
        known = [self.jobs[id] for id in others if id in self.jobs]
        same = tuple(each.id for each in known if each.index == job.index)
        return same or others

    def sweep_of(self, job: Job) -> Sweep | None:
        """The sweep that a job is a trial of."""
        return self.sweeps.get(job.array or 0) if job.params is not None else None

    # -- changing (called by the fold only) ---------------------------------------------

    def enter(self, job: Job) -> None:
        """A job comes to memory."""
        self.jobs[job.id] = job
        note(self.cluster, self.specs[job.spec].request)
        self.spec_users[job.spec] = self.spec_users.get(job.spec, 0) + 1
        self.touched.add(job.id)

    def leave(self, job: Job) -> None:
        """A finished job leaves memory."""
        del self.jobs[job.id]
        self.finished.pop(job.id, None)
        self.unseen.pop(job.id, None)
        self.dependents.pop(job.id, None)
        self.doomed.discard(job.id)
        self.drop_spec(job.spec)
        self.touched.discard(job.id)
        self.dropped.append(job.id)

    def drop_spec(self, hash: str) -> None:
        """One user of a spec fewer; unused ones go."""
        self.spec_users[hash] -= 1
        if not self.spec_users[hash]:
            del self.spec_users[hash], self.specs[hash]
            self.blockers.pop(hash, None)

    def move(self, job: Job, to: JobState) -> None:
        """Take one step of the lifecycle."""
        check(job.state, to)
        before = word_of(job.state, job.score) if job.params is not None else ""
        if job.state is JobState.PENDING:
            self.unlink(job)
            self.doomed.discard(job.id)
        if job.finished:
            self.finished.pop(job.id, None)
            self.unseen.pop(job.id, None)
        job.state = to
        self.victims.stir(job.id)
        if to is JobState.COMPLETING:
            self.leaving[job.id] = job
        if job.finished:
            self.finished[job.id] = None
            if to in UNHAPPY and not job.seen:
                self.unseen[job.id] = None
        self.touched.add(job.id)
        if before:
            self._recount(job, before)

    def _recount(self, job: Job, before: str) -> None:
        """A trial stands somewhere else now."""
        sweep = self.sweep_of(job)
        if sweep is None:
            return
        now = word_of(job.state, job.score)
        if now != before:
            sweep.count(before, -1)
            sweep.count(now, +1)
            self.touched_sweeps.add(sweep.id)
        self.note_trial(job)

    def note_trial(self, job: Job) -> None:
        """Keep a sweep's board up to date."""
        sweep = self.sweep_of(job)
        if sweep is not None and sweep.id in self.boards:
            self.boards[sweep.id].enter(trial_of(job), sweep)
            self.touched_sweeps.add(sweep.id)

    def look_whether_best(self, job: Job) -> None:
        """A trial stands otherwise than before: it may be the best of its sweep, or no longer."""
        sweep = self.sweep_of(job)
        if sweep is None:
            return
        self.touched_sweeps.add(sweep.id)
        if sweep.best_job != job.id:
            sweep.look_whether_best(trial_of(job))
            return
        sweep.best = sweep.best_job = None
        board = self.boards.get(sweep.id)
        for trial in board.trials.values() if board is not None else [trial_of(job)]:
            sweep.look_whether_best(trial)

    def admit(self, job: Job, now: float) -> None:
        """Decide whether a waiting job is ready, and if not, what will wake it."""
        todo = [job.id]
        while todo:
            # Whoever waits for a job that can never start can never start either.
            before = todo[-1] in self.doomed
            self._admit(self.jobs[todo[-1]], now)
            id = todo.pop()
            if before != (id in self.doomed):
                todo += [each for each in self.dependents.get(id, ()) if each in self.jobs]

    def _admit(self, job: Job, now: float) -> None:
        self.line.remove(job)
        self.doomed.discard(job.id)
        if job.state is not JobState.PENDING:
            return
        if not self._ready(job, now):
            return
        level, until, _ = rank(self.known(job), now)
        self.line.add(job, self.key(job), level)
        ask = self.specs[job.spec].request.gpus
        if ask is not None and ask.most is not None:
            self.flexible[job.id] = None
        self.drift.put(job.id, until)

    def _ready(self, job: Job, now: float) -> bool:
        dependency = self.dependency(job)
        if dependency is not None:
            how, _, wake = self.dependency_standing(job, now)
            if how is Standing.MET and dependency.delayed and not job.delay_over:
                job.delay_over = True
                self.touched.add(job.id)
            # Also when it is met: it may open again, should the other job be retried.
            for other in dependency.jobs():
                self.dependents.setdefault(other, set()).add(job.id)
            if wake is not None:
                heappush(self.alarms, (wake, job.id))
            if how is Standing.NEVER:
                self.doomed.add(job.id)
            if how is not Standing.MET:
                return False
        if job.held:
            return False
        if job.begin_at is not None:
            heappush(self.alarms, (job.begin_at, job.id))
            return False
        return True

    def readmit(self, queue: str | None, at: float) -> None:
        """Something else counts in a queue, or in all of them: all who wait there stand anew."""
        for id in list(self.line.where):
            if queue is None or self.specs[self.jobs[id].spec].queue == queue:
                self.admit(self.jobs[id], at)
        for job in list(self.stoppable.values()):
            if queue is None or self.specs[job.spec].queue == queue:
                self.look_whether_stoppable(job, at)

    def refresh(self, at: float) -> None:
        """Time has passed: put those anew whose rank has changed by itself."""
        if at >= self.fair_at and self.line.users:
            self.fair_at = at + EVERY
            self._be_fair(at)
        if self.deal_at <= at:
            self.deal_at = inf
            self.line.stirred = True
        for id in self.drift.due(at):
            job = self.jobs.get(id)
            if job is None:
                continue
            stirred = self.line.stirred
            if id in self.line:
                self._admit(job, at)
                seat, worst = self.line.seat(job), self.victims.worst()
                late = seat[1] <= LONG_AGO
                self.line.stirred = stirred or late or self._may_displace(seat, worst)
            elif id in self.stoppable:
                self.stand_anew(job, at)
                self.look_who_may_displace(job)

    def look_who_may_displace(self, job: Job) -> None:
        """A running job stands elsewhere: somebody may want its devices now."""
        first = self.line.earliest()
        if first is not None and self._may_displace(first, self.victims.seat(job.id)):
            self.victims.stir(job.id)
            self.line.stirred = True

    def anybody_may_displace(self) -> bool:
        """Whether somebody who waits may get what one of those has who run."""
        first = self.line.earliest()
        return first is not None and self._may_displace(first, self.victims.worst())

    def _may_displace(self, seat: Place, other: Seat | None) -> bool:
        """Whether one who runs stands so far behind this place that it may have to make room."""
        return other is not None and (seat[0], seat[1] + self.reluctance) < other[:2]

    def _be_fair(self, at: float) -> None:
        """Whoever has had more than others stands further back."""
        users = sorted({*self.line.users, *self.usage.holding})
        for user, back in self.usage.handicaps(users, at).items():
            if self.line.handicaps.get(user, 0.0) != back:
                self.line.handicap(user, back)
                self.line.stirred = True

    def took_up(self, job: Job) -> None:
        """An attempt has begun: what it holds counts for its user."""
        spec = self.specs[job.spec]
        if self.policy(spec.queue).fair and job.started_at is not None:
            self.usage.begins(job.user, gpus_of(spec.request), job.started_at)

    def laid_down(self, job: Job, at: float) -> None:
        """An attempt is over: what it had counts for a while."""
        if job.user in self.usage.holding and job.started_at is not None:
            gpus = gpus_of(self.specs[job.spec].request)
            self.usage.ends(job.user, gpus, job.started_at, at)
            self.rest_changed = True

    def stand_anew(self, job: Job, at: float) -> None:
        """Work out how soon a running job makes room for others."""
        known = self.known(job)
        level, until, holds = rank(known, at) if known.rules.preempts else (0.0, inf, inf)
        if known.rules.fair and level > LONG_AGO:
            level += known.rules.fair * self.line.handicaps.get(job.user, 0.0)
        started = job.started_at or 0.0
        self.victims.put(job.id, job.placement, self.priority(job), level, started, holds)
        if known.rules.quantum and job.started_at is not None:
            own = job.started_at + known.rules.quantum
            until = min(until, own) if own > at else until
        self.drift.put(job.id, until)

    def unlink(self, job: Job) -> None:
        """A job waits for others no longer."""
        dependency = self.specs[job.spec].dependency
        for other in dependency.jobs() if dependency else ():
            waiting = self.dependents.get(other)
            if waiting is not None:
                waiting.discard(job.id)
                if not waiting:
                    del self.dependents[other]

    def hold_devices(self, job: Job, placement: Placement) -> None:
        """Enter an attempt's placement in the ledger and the counters."""
        self.cluster.take(placement)
        self.count(job, placement, +1)
        job.placement = placement
        self._enter_running(job, placement)

    def _enter_running(self, job: Job, placement: Placement) -> None:
        self.running[job.id] = job
        ask = self.specs[job.spec].request.gpus
        if ask is not None and ask.most is not None:
            self.elastic[job.id] = job
        if ask is not None and ask.beside:
            self.sharing[job.id] = job

    def run_on(self, job: Job) -> None:
        """A job holds devices already (read back from the store)."""
        assert job.placement is not None
        self._enter_running(job, job.placement)
        self.count(job, job.placement, +1)
        self.took_up(job)
        self.look_whether_stoppable(job, 0.0)
        self.look_whether_leaving(job)

    def give_back(self, job: Job) -> None:
        """An attempt is over: its devices are free again."""
        placement = job.placement
        if placement is None:
            return
        self.cluster.release(placement)
        self.line.stirred = True
        self.count(job, placement, -1)
        job.last_devices, job.last_node = tuple(placement.names("gpu")), placement.node
        job.placement = None
        for some in (self.running, self.stoppable, self.leaving, self.elastic, self.sharing):
            some.pop(job.id, None)
        self.victims.drop(job.id)
        self.ending.drop(job.id)
        self.watches.drop(job.id)
        self.drift.drop(job.id)

    def look_whether_stoppable(self, job: Job, at: float) -> None:
        """Keep an eye on whoever can make room: asked politely, by a signal, or ended."""
        if job.started_at is not None and can_stop(job, self.specs[job.spec]):
            self.stoppable[job.id] = job
            self.stand_anew(job, at)

    def look_whether_leaving(self, job: Job) -> None:
        """Keep an eye on those whose devices are free before long."""
        asked = job.progress is not None and job.progress.stop is not None
        if asked or job.state is JobState.COMPLETING:
            self.leaving[job.id] = job
        else:
            self.leaving.pop(job.id, None)

    def reserve_anew(self, job: Job, placement: Placement) -> None:
        """An attempt holds the same devices, but more or less of their memory."""
        assert job.placement is not None
        self.cluster.release(job.placement)
        self.cluster.take(placement)
        self.count(job, job.placement, -1)
        self.count(job, placement, +1)
        job.placement = placement
        self.touched.add(job.id)
        self.line.stirred = True

    def join(self, facts: NodeFacts, held: list[Placement]) -> None:
        """A machine has these devices, and the first one also what queues brought along."""
        brought = _brought(self.rest.queues.values(), facts) if self._is_first(facts) else {}
        types = {**facts.types, **brought}
        self.cluster.join(NodeFacts(facts.name, types) if brought else facts, held)

    def _is_first(self, facts: NodeFacts) -> bool:
        return next(iter(self.rest.nodes), facts.name) == facts.name

    def mark_devices(self, only: str | None = None) -> None:
        """Put what is known of machines and devices besides their use on the ledger."""
        for name in self.cluster.nodes if only is None else (only,):
            node = self.cluster.nodes[name]
            self.cluster.changed(name)
            away = self.rest.away.get(name)
            node.closed = away.why if away is not None else self.rest.closed.get(name)
            if away is None and name in self.rest.strays:
                node.closed = "what was given up there has yet to be ended"
            for type, amount in zip((CPU, MEMORY), self.rest.others.get(name, (0, 0)), strict=True):
                for device in node.types.get(type, ()):
                    device.others = amount
        for key, reason in self.rest.drained.items():
            for device in self.cluster.named(key):
                device.drained = reason
        for key, (stranger, memory) in self.rest.strangers.items():
            for device in self.cluster.named(key):
                device.stranger, device.stranger_memory = stranger or None, memory

    def count(self, job: Job, placement: Placement, step: int) -> None:
        """Keep the counters behind queue and array limits."""
        spec = self.specs[job.spec]
        self.line.look_again()
        throttled = spec.array_limit is not None or job.params is not None
        if throttled or spec.queue in self.rest.queues:
            self.line.all_anew = True  # others may be let through now
        _add(self.queue_running, spec.queue, step)
        _add(self.queue_gpus, spec.queue, step * placement.gpu_amount)
        if throttled:
            _add(self.array_running, job.array or job.id, step)

    def forgettable_boards(self) -> list[int]:
        """Sweeps that are over and whose trials may leave memory, the oldest first."""
        if len(self.boards) <= KEEP_BOARDS:
            return []
        over = [id for id in self.boards if not self.sweeps[id].open]
        over.sort(key=lambda sweep: self.sweeps[sweep].ended_at or 0.0)
        return over[: max(len(over) - KEEP_BOARDS, 0)]

    def forgettable(self) -> tuple[int, ...]:
        """Finished jobs that may leave memory, once there are enough of them."""
        extra = len(self.finished) - len(self.unseen) - KEEP_FINISHED
        unseen_extra = len(self.unseen) - KEEP_UNSEEN
        if extra < FORGET_BATCH and unseen_extra < FORGET_BATCH:
            return ()
        chosen: list[int] = []
        for id in self.finished:
            if extra <= 0 and unseen_extra <= 0:
                break
            if self.dependents.get(id) or id in self.touched:
                continue  # needed, or its end is not in the store yet
            if id in self.unseen:
                if unseen_extra > 0:
                    unseen_extra -= 1
                    chosen.append(id)
            elif extra > 0:
                extra -= 1
                chosen.append(id)
        return tuple(chosen)


def among(queue: QueueDefined) -> Among:
    """The devices that a queue has, by type."""
    types = dict.fromkeys(type for type, _, _ in queue.resources)
    return tuple(
        (each, tuple(name for type, name, _ in queue.resources if type == each)) for each in types
    )


def _brought(
    queues: Iterable[QueueDefined], facts: NodeFacts
) -> dict[str, tuple[DeviceFacts, ...]]:
    """Devices of types that the machine itself knows nothing of. Equal names are one device."""
    found: dict[str, dict[str, int]] = {}
    for queue in queues:
        for type, name, capacity in queue.resources:
            if type not in facts.types:
                found.setdefault(type, {}).setdefault(name, capacity)
    return {
        type: tuple(DeviceFacts(name, capacity=capacity) for name, capacity in devices.items())
        for type, devices in found.items()
    }


def _add(counter: dict[_K, int], key: _K, step: int) -> None:
    value = counter.get(key, 0) + step
    if value:
        counter[key] = value
    else:
        counter.pop(key, None)
