"""The pending queue: eligible jobs in classes of equal request, in scheduling order.

As in HyperQueue, jobs that differ only in their order are one class, of which the planner reads
only the head. Within a class jobs are in a binary heap with lazy deletion; the heads of all
classes are in one sorted list.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heappop, heappush, nsmallest

from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.request_shape import request_shape
from stoker.core.queue.job_class import (
    ClassKey,
    HeapEntry,
    JobClass,
    ShapeGroup,
    is_groupable,
)
from stoker.core.structures.fit_tree import SortKey
from stoker.core.structures.sorted_list import SortedList


class PendingQueue:
    """Eligible jobs that wait for capacity.

    Derived from: jobs, specs, ranks and fair-share usage; filled by `state.eligibility`.
    Invariant: `order` holds every class exactly once, under the sort key of its head.
    Cost: adding or removing a job takes O(log n); finding all classes is linear in classes.
    """

    def __init__(self) -> None:
        self.classes: dict[ClassKey, JobClass] = {}
        self.order: SortedList[tuple[SortKey, JobClass]] = SortedList()
        """All classes by the sort key of their head; keys are unique, as they end in the job id."""
        self.groups: dict[tuple[ResourceRequest, str], ShapeGroup] = {}
        """Groups by request shape and queue."""
        self.queues: dict[str, int] = {}
        """Number of classes per queue."""
        self.class_of: dict[int, JobClass] = {}
        """Class by job."""
        self.rank_of: dict[int, float] = {}
        """Rank by job; without an entry it is 0."""
        self.classes_by_user: dict[str, dict[ClassKey, JobClass]] = {}
        """Classes by user, in queues with fair share."""
        self.user_penalties: dict[str, float] = {}
        self.queue_fair_weight: dict[str, float] = {}
        """Factor of the penalties in a queue."""
        self.tombstones: set[tuple[JobClass, float, int, int]] = set()
        """Heap entries of removed jobs; the first entry of a heap is never among them."""
        self._planning_requested = False
        self._scan_complete = False
        """Whether the last scan saw every class but the unscanned ones, and none fitted."""
        self._unscanned_classes: dict[ClassKey, JobClass] = {}
        """Classes created since the last scan."""
        self.time_limited_classes = 0
        """Number of classes with a time limit."""
        self._recheck_all = False
        self._cached_head: Job | None = None

    def __len__(self) -> int:
        return len(self.class_of)

    def __contains__(self, job: int) -> bool:
        return job in self.class_of

    @property
    def planning_requested(self) -> bool:
        """Whether something changed since the last plan that could let a job start."""
        return self._planning_requested

    def request_planning(self) -> None:
        """Note that something changed that could let a job start."""
        self._planning_requested = True

    def take_planning_request(self) -> bool:
        """Return whether planning is requested, and clear the request."""
        requested, self._planning_requested = self._planning_requested, False
        return requested

    @property
    def has_overdue(self) -> bool:
        """Whether the head of some class is overdue."""
        return any(job_class.is_overdue for job_class in self.classes.values())

    def head(self, jobs: dict[int, Job], is_blocked: Callable[[JobClass], object]) -> Job | None:
        """Return the first job of the classes that no quota blocks.

        Cached until the queue changes, because every row of a job list asks for it.
        """
        if self._cached_head is None or self._cached_head.id not in self.class_of:
            classes = (job_class for _, job_class in self.order)
            job_class = next((each for each in classes if not is_blocked(each)), None)
            self._cached_head = jobs[job_class.heap[0][2]] if job_class is not None else None
        return self._cached_head

    def invalidate_head(self) -> None:
        """Recompute the head, since a quota may have changed."""
        self._cached_head = None

    def add(self, job: Job, key: ClassKey, rank: float = 0.0) -> bool:
        """Add a job; return whether it is the head of its class."""
        self._cached_head = None
        job_class = self.classes.get(key) or self._create_class(key)
        self.class_of[job.id] = job_class
        if rank:
            self.rank_of[job.id] = rank
        entry = (rank, job.order, job.id)
        if self.tombstones and (job_class, *entry) in self.tombstones:
            self.tombstones.discard((job_class, *entry))
        elif not job_class.heap or entry < job_class.heap[0]:
            self._deindex(job_class)
            heappush(job_class.heap, entry)
            self._index(job_class)
        else:
            heappush(job_class.heap, entry)
        self.mark_unchecked(job_class)
        return job_class.heap[0] == entry

    def mark_unchecked(self, job_class: JobClass) -> None:
        """Note that a job was added, its rank changed, or its nomination was revoked."""
        job_class.is_unchecked = True

    def mark_all_unchecked(self) -> None:
        """Note that the preemption check of every class is out of date."""
        for job_class in self.classes.values():
            job_class.is_unchecked = True

    def mark_checked(self, job_class: JobClass) -> None:
        """Note that no preemption helps this class until a node changes."""
        job_class.is_unchecked = False

    def remove(self, job: Job) -> bool:
        """Remove a job with its unchanged order; return whether it was the head of its class."""
        job_class = self.class_of.pop(job.id, None)
        if job_class is None:
            return False
        entry = (self.rank_of.pop(job.id, 0.0), job.order, job.id)
        if job_class.heap[0] != entry:
            self.tombstones.add((job_class, *entry))
            return False
        self._deindex(job_class)
        heap = job_class.heap
        heappop(heap)
        while self.tombstones and heap and (job_class, *heap[0]) in self.tombstones:
            self.tombstones.discard((job_class, *heappop(heap)))
        if heap:
            self._index(job_class)
        else:
            self._remove_class(job_class)
        return True

    @property
    def recheck_all(self) -> bool:
        """Whether preemption may help any class, whether checked before or not."""
        return self._recheck_all

    def request_recheck(self) -> None:
        """Note that a quota has capacity again, so that preemption may help any class."""
        self._recheck_all = True

    def finish_recheck(self) -> None:
        """Note that all classes were checked for preemption."""
        self._recheck_all = False

    def begin_scan(self) -> list[JobClass] | None:
        """Return the classes that the last scan did not see; None if it was not complete."""
        was_complete, self._scan_complete = self._scan_complete, False
        return list(self._unscanned_classes.values()) if was_complete else None

    def complete_scan(self) -> None:
        """Note that every class was seen and none fits."""
        self._unscanned_classes.clear()
        self._scan_complete = True

    def sort_key(self, job: Job) -> SortKey:
        """Return the position of a pending job."""
        job_class = self.class_of[job.id]
        rank = job_class.effective_rank(self.rank_of.get(job.id, 0.0))
        return (-job_class.priority, rank, job.order, job.id)

    def lower_bound(self) -> SortKey | None:
        """Return the sort key of the first job, blocked by a quota or not."""
        first = self.order.first()
        return first[0] if first is not None else None

    def penalize_user(self, user: str, penalty: float) -> None:
        """Move all pending jobs of a user by its new fair-share penalty."""
        forward = penalty < self.user_penalties.get(user, 0.0)
        self.user_penalties[user] = penalty
        for job_class in self.classes_by_user.get(user, {}).values():
            self._cached_head = None
            self._deindex(job_class)
            job_class.fair_share_penalty = self._penalty_of(job_class, penalty)
            self._index(job_class)
            if forward:
                self.mark_unchecked(job_class)

    def _penalty_of(self, job_class: JobClass, penalty: float) -> float:
        return penalty * self.queue_fair_weight.get(job_class.queue, 1.0)

    def _create_class(self, key: ClassKey) -> JobClass:
        job_class = JobClass(key, self._group_for(key))
        self.classes[key] = self._unscanned_classes[key] = job_class
        self.queues[key.queue] = self.queues.get(key.queue, 0) + 1
        self.time_limited_classes += key.time_limit is not None
        if user := key.user:
            penalty = self.user_penalties.get(user, 0.0)
            job_class.fair_share_penalty = self._penalty_of(job_class, penalty)
            self.classes_by_user.setdefault(user, {})[key] = job_class
        return job_class

    def _group_for(self, key: ClassKey) -> ShapeGroup | None:
        if key.request is None or not is_groupable(key):
            return None
        shape = request_shape(key.request)
        group = self.groups.get((shape, key.queue))
        if group is None:
            group = self.groups[shape, key.queue] = ShapeGroup(shape, key.queue)
        group.class_count += 1
        return group

    def _remove_class(self, job_class: JobClass) -> None:
        key = job_class.key
        del self.classes[key]
        self._unscanned_classes.pop(key, None)
        self.time_limited_classes -= key.time_limit is not None
        self.queues[key.queue] -= 1
        if not self.queues[key.queue]:
            del self.queues[key.queue]
        if user := key.user:
            del self.classes_by_user[user][key]
            if not self.classes_by_user[user]:
                del self.classes_by_user[user]
        group = job_class.group
        if group is not None:
            group.class_count -= 1
            if not group.class_count:
                del self.groups[group.shape, group.queue]

    def _index(self, job_class: JobClass) -> None:
        key = job_class.indexed_key = job_class.sort_key(job_class.heap[0])
        self.order.add((key, job_class))

    def _deindex(self, job_class: JobClass) -> None:
        if job_class.heap:
            self.order.remove((job_class.indexed_key, job_class))


def first_jobs(
    pending: PendingQueue, jobs: dict[int, Job], count: int, without: Container[int] = ()
) -> list[Job]:
    """Return the first pending jobs in scheduling order, without those of some arrays."""
    first: list[SortKey] = []
    for job_class in pending.classes.values():
        if not (job_class.array and job_class.array in without):
            first += map(job_class.sort_key, _first_of_class(pending, job_class, count))
    return [jobs[int(key[-1])] for key in sorted(first)[:count]]


def _first_of_class(pending: PendingQueue, job_class: JobClass, count: int) -> list[HeapEntry]:
    """Return the first entries of a class, without those of removed jobs."""
    heap, entries = job_class.heap.copy(), list[HeapEntry]()
    while heap and len(entries) < count:
        entry = heappop(heap)
        if (job_class, *entry) not in pending.tombstones:
            entries.append(entry)
    return entries


def first_rows(
    pending: PendingQueue, jobs: dict[int, Job], count: int, without: Container[int] = ()
) -> list[list[int]]:
    """Return the first pending jobs in the same order, equal members of an array in one row."""
    first: list[tuple[SortKey, list[HeapEntry]]] = []
    for job_class in pending.classes.values():
        if job_class.array and job_class.array in without:
            continue
        if all(jobs[entry[2]].array is None for entry in job_class.heap):
            entries = _first_of_class(pending, job_class, count)
            first += [(job_class.sort_key(entry), [entry]) for entry in entries]
            continue
        # Not sorted: 100,000 members of an array take 40 ms, sorting them several times as long.
        rows: dict[object, list[HeapEntry]] = {}
        for entry in job_class.heap:
            if not pending.tombstones or (job_class, *entry) not in pending.tombstones:
                job = jobs[entry[2]]
                alike = job.array is not None and job.params is None
                row = (job.array, job.spec) if alike else entry[2]
                rows.setdefault(row, []).append(entry)
        first += [(job_class.sort_key(min(entries)), entries) for entries in rows.values()]
    return [
        [int(key[-1]), *(entry[2] for entry in entries if entry[2] != key[-1])]
        for key, entries in nsmallest(count, first, key=lambda row: row[0])
    ]
