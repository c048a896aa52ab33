"""All that is known, in one mutable object that only events change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import TypeVar

from msgspec.structs import replace

from stoker.core.cluster import Cluster, NodeFacts, Placement
from stoker.core.estimate import estimate, known
from stoker.core.events import QueueDefined
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.moments import Moments
from stoker.core.policy.backfill import latest_end
from stoker.core.policy.bars import Bars
from stoker.core.policy.ends import Ends
from stoker.core.policy.fit import could_ever
from stoker.core.policy.ground import note
from stoker.core.policy.in_force import InForce
from stoker.core.policy.later import Later, can_be_asked
from stoker.core.policy.order import JobClass, Key, ReadyLine
from stoker.core.policy.rank import Known
from stoker.core.policy.rules import Gaps
from stoker.core.policy.share import reserved
from stoker.core.policy.victims import Victims
from stoker.core.request import CPU, GPU, MEMORY, Request
from stoker.core.rest import Among, Rest, among, brought
from stoker.core.sweep import Board, Sweep
from stoker.core.units import THOUSAND
from stoker.core.usage import Usage

KEEP_FINISHED = 256
"""Finished jobs kept in memory; older ones are read from the store."""
KEEP_UNSEEN = 1024
"""Unseen failures are kept longer, since the listing shows them, but not without bound."""
FORGET_BATCH = 64
LATE = 1.2
"""A measured job may take so much longer than it seems."""
NONE_OF_ITS_OWN = "none"
"""No GPU is called that: what a queue without GPUs gives to jobs that ask for one."""

_K = TypeVar("_K", str, int)


class State:
    """Jobs, specs, the ledger, and the indexes that make questions cheap."""

    def __init__(self, rest: Rest | None = None) -> None:
        self.rest = rest if rest is not None else Rest()
        self.policies = InForce(self.rest)
        # Asked at every turn: nothing stands in between.
        self.policy = self.policies.of
        self.gaps = self.policies.gaps
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
        self.later = Later(self.cluster, self.victims, lambda job: can_be_asked(self.jobs[job]))
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
        self.in_flight: dict[str, set[int]] = {}
        """By delegated node: jobs that were placed there and do not run yet."""
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
        fair = self.line.weights[spec.queue] = self.policy(spec.queue).fair
        user = job.user if fair else ""
        if self.gaps(spec.queue) is Gaps.NOBODY:
            # Only the head of such a queue counts, whatever the others behind it ask for.
            return (None, job.priority, spec.queue, throttled, None, user)
        return (self.effective(job, spec), job.priority, spec.queue, throttled, spec.limit, user)

    def tells_apart(self) -> bool:
        """Whether it is known of some jobs where they are fast, or beside whom they are slow."""
        if self.telling is None:
            families = self.rest.families.values()
            self.telling = any(each.beside or each.compared for each in families)
        return self.telling

    def preempts(self, job: Job) -> bool:
        """Whether it makes room for others of equal priority."""
        return self.policy(self.specs[job.spec].queue).preempts

    def known(self, job: Job) -> Known:
        """What there is to judge a job by."""
        spec = self.specs[job.spec]
        rules = self.policy(spec.queue)
        return Known(job, spec, rules, self.rest.families, self.cluster)

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
        waits = job.state in (JobState.PENDING, JobState.QUEUED)
        return spec.deadline_at - (spec.limit or 0) if waits else spec.deadline_at

    def effective(self, job: Job, spec: Spec) -> Request:
        """The request as narrowed by its queue, `retry --same-gpus` and what nodes lack."""
        request = self._narrowed(job, spec)
        if spec.container is None or spec.container.image not in self.rest.lacking:
            return request
        lacking = (*request.not_nodes, *self.rest.lacking[spec.container.image])
        elsewhere = replace(request, not_nodes=tuple(dict.fromkeys(lacking)))
        able = sum(could_ever(node, elsewhere) is None for node in self.cluster.nodes.values())
        return elsewhere if able >= request.machines else request

    def _narrowed(self, job: Job, spec: Spec) -> Request:
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
            known = self._devices_of[queue.name] = (queue, among(queue, self.rest.nodes))
        return known[1]

    def own_devices(self, queue: QueueDefined) -> list[tuple[str, str, int]]:
        """The devices that a queue has on the present nodes: type, name and capacity."""
        sizes = {(type, name): capacity for type, name, capacity in queue.resources}
        return [
            (type, name, sizes.get((type, name), THOUSAND))
            for type, names in self._among(queue)
            for name in names
        ]

    def limit_reached(self, found: JobClass) -> str | None:
        """The limit that keeps a whole class from starting, in words, or None."""
        if found.array:
            job, sweep = self.line.head(found, self.jobs), self.sweeps.get(found.array)
            limit = self.specs[job.spec].array_limit if job else None
            if sweep is not None:
                limit = sweep.max_running
            if limit is not None and self.array_running.get(found.array, 0) >= limit:
                what = "array" if sweep is None else "sweep"
                return f"{what} {found.array} may run {limit} at a time"
        queue = self.rest.queues.get(found.queue)
        if queue is None:
            return None
        running = self.queue_running.get(found.queue, 0)
        if queue.max_running is not None and running >= queue.max_running:
            return f"queue {found.queue} may run {queue.max_running} at a time"
        if queue.max_gpus is not None:
            used = self.queue_gpus.get(found.queue, 0)
            head = self.line.head(found, self.jobs)
            asked = self.request(head, found).gpu_amount if head else 0
            if used + asked > queue.max_gpus:
                return f"queue {found.queue} uses all GPUs of its quota"
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

    def latest_end(self, job: Job, boot: float = -inf) -> float:
        """The latest end of a running attempt; infinite while it is suspended or queued.

        `boot`: it is known to run at that time, so that an estimated end is later than that.
        """
        if job.progress is not None and job.progress.stop is not None:
            return job.progress.stop.boot
        spec = self.specs[job.spec]
        stands_still = job.state in (JobState.SUSPENDED, JobState.QUEUED)
        limit = None if stands_still else spec.limit
        if limit is None and job.progress is not None and job.state is JobState.RUNNING:
            return self._likely_end(job, spec, boot)
        return latest_end(job.started_boot, limit, job.slack)

    def _likely_end(self, job: Job, spec: Spec, now: float) -> float:
        """The estimated end of an attempt without a time limit whose epochs were measured."""
        at, boot = job.progress.counted_at if job.progress else None, job.started_boot
        if at is None or boot is None or job.started_at is None:
            return inf
        left = estimate(self.rest.families, self.cluster, job, spec, at).remaining_seconds
        if left is None:
            return inf
        end, later = boot + (at - job.started_at) + left * LATE, max(left * LATE / 16, 60.0)
        while end <= now:  # it is late: return a time in the future
            end, later = end + later, later * 2
        return end

    def executor_of(self, node: str) -> str:
        """The kind of executor that runs attempts on a node; this machine's is `local`."""
        added = self.rest.remotes.get(node)
        return added.executor if added is not None else "local"

    def is_delegated(self, job: Job) -> bool:
        """Whether another scheduler decides where on its node a job runs."""
        node = self.cluster.nodes.get(job.placement.node) if job.placement is not None else None
        return node is not None and node.delegated

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

    def hold_devices(self, job: Job, placement: Placement) -> None:
        """Enter an attempt's placement in the ledger and the counters."""
        self.cluster.take(placement)
        self.count(job, placement, +1)
        job.placement = placement
        self._enter_running(job, placement)

    def _enter_running(self, job: Job, placement: Placement) -> None:
        self.running[job.id] = job
        if self.is_delegated(job):
            return  # neither its size nor its memory is ours to change
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
        self.count_in_flight(job)
        self.look_whether_leaving(job)

    def count_in_flight(self, job: Job) -> None:
        """Note whether a job waits for its start on a delegated node, which may be full now."""
        if job.placement is None or not self.is_delegated(job):
            return
        if job.started_at is None:
            self.in_flight.setdefault(job.placement.node, set()).add(job.id)
            self._look_whether_full(job.placement.node)
        else:
            self._count_out(job, job.placement.node)

    def _count_out(self, job: Job, name: str) -> None:
        """A job does not wait for its start on a node any more."""
        waiting = self.in_flight.get(name, set())
        waiting.discard(job.id)
        if not waiting:
            self.in_flight.pop(name, None)
        self._look_whether_full(name)

    def _look_whether_full(self, name: str) -> None:
        node, closed = self.cluster.nodes.get(name), self._why_closed(name)
        if node is not None and not node.removed and closed != node.closed:
            node.closed = closed
            self.cluster.changed(name)
            self.line.stirred = True

    def _why_closed(self, name: str) -> str | None:
        """Why nothing new is placed on a node; None: it is open."""
        if (away := self.rest.away.get(name)) is not None:
            return away.why
        if name in self.rest.strays:
            return "jobs abandoned there have not ended yet"
        if name in self.rest.closed:
            return self.rest.closed[name]
        facts, waiting = self.rest.nodes.get(name), len(self.in_flight.get(name, ()))
        if facts is not None and waiting >= facts.max_in_flight:
            what = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
            return f"{what} in its queue"
        return None

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
        if placement.node in self.in_flight:
            self._count_out(job, placement.node)

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

    def rejoin(self, facts: NodeFacts) -> None:
        """A machine has other devices than before; running attempts keep what they hold."""
        self.join(facts, held_on(self.running.values(), facts.name))
        self.mark_devices(facts.name)

    def gpus_moved(self) -> list[str]:
        """Find the devices of queues again, after nodes came, went or changed their GPUs.

        Returns the queues whose pending jobs may use other GPUs than before.
        """
        queues = [
            queue.name
            for queue in self.rest.queues.values()
            if any(type == GPU for type, _, _ in queue.resources)
        ]
        for name in queues:
            self._devices_of.pop(name, None)
        if queues:
            self.rejoin_first()
        return queues

    def rejoin_first(self) -> None:
        """Give the first machine the devices that queues bring along now."""
        for facts in list(self.rest.nodes.values())[:1]:
            self.rejoin(facts)

    def join(self, facts: NodeFacts, held: list[Placement]) -> None:
        """A machine has these devices, and the first one also what queues brought along."""
        more = {}
        if self._is_first(facts):
            more = brought(self.rest.queues.values(), facts, self.rest.nodes)
        types = {**facts.types, **more}
        self.cluster.join(replace(facts, types=types) if more else facts, held)

    def _is_first(self, facts: NodeFacts) -> bool:
        return next(iter(self.rest.nodes), facts.name) == facts.name

    def mark_devices(self, only: str | None = None) -> None:
        """Put what is known of machines and devices besides their use on the ledger."""
        for name in self.cluster.nodes if only is None else (only,):
            node = self.cluster.nodes[name]
            self.cluster.changed(name)
            if node.removed:
                continue
            node.closed = self._why_closed(name)
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


def held_on(jobs: Iterable[Job], node: str) -> list[Placement]:
    """Return what running jobs hold of a machine."""
    return [
        part
        for job in jobs
        if job.holding and job.placement is not None
        if (part := job.placement.on(node)) is not None
    ]


def _add(counter: dict[_K, int], key: _K, step: int) -> None:
    value = counter.get(key, 0) + step
    if value:
        counter[key] = value
    else:
        counter.pop(key, None)
