"""The pending queue: eligible jobs in classes of equal request, in scheduling order.

As in HyperQueue, jobs that differ only in their order are one class, of which the planner reads
only the head. The jobs of a class are in a sorted list, and so are the heads of all classes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Container
from heapq import nsmallest
from math import inf
from weakref import WeakValueDictionary

from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.request_shape import request_amounts, request_shape
from stoker.core.queue.job_class import (
    ClassEntry,
    ClassKey,
    JobClass,
    RequestSize,
    ShapeGroup,
    is_groupable,
)
from stoker.core.structures import BEFORE_ALL, Amounts, SortKey, remove_sorted


class PendingQueue:
    """Eligible jobs that wait for capacity.

    Derived from: jobs, specs, ranks and fair-share usage; filled by `state.eligibility`.
    Invariant: `order` holds every class exactly once, under the sort key of its head.
    Cost: adding or removing a job takes O(log n); finding all classes is linear in classes.
    """

    def __init__(self) -> None:
        self.classes: dict[ClassKey, JobClass] = {}
        self.order: list[tuple[SortKey, JobClass]] = []
        """All classes by the sort key of their head; keys are unique, as they end in the job id."""
        self._groups = WeakValueDictionary[tuple[ResourceRequest, str], ShapeGroup]()
        """Groups by request shape and queue, as long as they have classes."""
        self._sizes = WeakValueDictionary[tuple[object, Amounts], RequestSize]()
        self.class_of: dict[int, JobClass] = {}
        """Class by job."""
        self.rank_of: dict[int, float] = {}
        """Rank by job."""
        self.user_penalties: dict[str, float] = {}
        self.queue_fair_weight: dict[str, float] = {}
        """Factor of the penalties in a queue."""
        self._traits = Counter[tuple[str, str, int, bool]]()
        """Number of classes by queue, user, priority, and whether they have a time limit: some
        questions are asked in every plan, and it takes 0.1 ms to ask 1,000 classes."""
        self.planning_requested = False
        """Whether something changed since the last plan that could let a job start."""
        self._cached_head: Job | None = None
        self.reorder_count = 0
        """How often the order changed otherwise than by jobs at the end, or by removed ones."""
        self._removed_last = 0
        self._last_key: SortKey = ()
        """No job has a greater one; lists on screens append jobs that come after it."""

    def __len__(self) -> int:
        return len(self.class_of)

    def __contains__(self, job: int) -> bool:
        return job in self.class_of

    def request_planning(self) -> None:
        """Note that something changed that could let a job start."""
        self.planning_requested = True
        self._cached_head = None  # on other nodes, other jobs can start

    def take_planning_request(self) -> bool:
        """Return whether planning is requested, and clear the request."""
        requested, self.planning_requested = self.planning_requested, False
        return requested

    @property
    def queues(self) -> set[str]:
        """Names of the queues with pending jobs."""
        return {queue for queue, _, _, _ in self._traits}

    @property
    def fair_share_users(self) -> set[str]:
        """Names of the users with pending jobs in queues with fair share."""
        return {user for _, user, _, _ in self._traits if user}

    @property
    def may_have_reservations(self) -> bool:
        """Whether a pending job has a time limit or is overdue."""
        for _, _, priority, has_limit in self._traits:
            first = bisect_left(self.order, ((-priority,),))
            if has_limit or self.order[first][1].is_overdue:
                return True
        return False

    def head(self, jobs: dict[int, Job], is_blocked: Callable[[JobClass], object]) -> Job | None:
        """Return the first job of the classes that are not blocked.

        Cached until the queue changes, because every row of a job list asks for it.
        """
        if self._cached_head is None or self._cached_head.id not in self.class_of:
            classes = (job_class for _, job_class in self.order)
            job_class = next((each for each in classes if not is_blocked(each)), None)
            self._cached_head = jobs[job_class.head] if job_class is not None else None
        return self._cached_head

    def invalidate_head(self) -> None:
        """Recompute the head, since a quota may have changed."""
        self._cached_head = None

    def add(self, job: Job, key: ClassKey, rank: float = 0.0) -> bool:
        """Add a job; return whether it is the head of its class."""
        self._cached_head = None
        job_class = self.classes.get(key) or self._create_class(key)
        self.class_of[job.id] = job_class
        self.rank_of[job.id] = rank
        entry = (rank, job.order, job.id)
        insort(job_class.entries, entry)
        self._index(job_class)
        sort_key = job_class.sort_key(entry)
        is_at_end = sort_key >= self._last_key or len(self.class_of) == 1
        if is_at_end:
            self._last_key = sort_key
        if not is_at_end or job.id == self._removed_last:
            self.reorder_count += 1
        return job_class.head == job.id

    def remove(self, job: Job) -> bool:
        """Remove a job with its unchanged order; return whether it was the head of its class."""
        job_class = self.class_of.pop(job.id, None)
        if job_class is None:
            return False
        self._removed_last = job.id
        entry = (self.rank_of.pop(job.id), job.order, job.id)
        was_head = job_class.head == job.id
        remove_sorted(job_class.entries, entry)
        self._index(job_class)
        if not job_class.entries:
            del self.classes[job_class.key]
            traits = _traits_of(job_class.key)
            self._traits[traits] -= 1
            if not self._traits[traits]:
                del self._traits[traits]
        return was_head

    def set_rank(self, job: Job, rank: float) -> SortKey:
        """Move a pending job within its class; return its position."""
        job_class, before = self.class_of[job.id], self.rank_of[job.id]
        entry = (rank, job.order, job.id)
        if rank != before:
            self._cached_head = None
            self.reorder_count += 1
            self.rank_of[job.id] = rank
            remove_sorted(job_class.entries, (before, job.order, job.id))
            insort(job_class.entries, entry)
            self._index(job_class)
        return job_class.sort_key(entry)

    def sort_key(self, job: Job) -> SortKey:
        """Return the position of a pending job."""
        return self.class_of[job.id].sort_key((self.rank_of[job.id], job.order, job.id))

    def lower_bound(self) -> SortKey | None:
        """Return the sort key of the first job, blocked by a quota or not."""
        return self.order[0][0] if self.order else None

    def penalize_user(self, user: str, penalty: float) -> None:
        """Move all pending jobs of a user by its new fair-share penalty."""
        self.user_penalties[user] = penalty
        self._cached_head = None
        self.reorder_count += 1
        for job_class in [each for each in self.classes.values() if each.key.user == user]:
            job_class.fair_share_penalty = self._penalty_of(job_class.key)
            self._index(job_class)

    def _penalty_of(self, key: ClassKey) -> float:
        weight = self.queue_fair_weight.get(key.queue, 1.0)
        return self.user_penalties.get(key.user, 0.0) * weight

    def _create_class(self, key: ClassKey) -> JobClass:
        job_class = self.classes[key] = JobClass(key, self._size_of(key))
        job_class.fair_share_penalty = self._penalty_of(key)
        self._traits[_traits_of(key)] += 1
        return job_class

    def _size_of(self, key: ClassKey) -> RequestSize:
        request = key.request
        if request is None or not is_groupable(key):
            return self._sizes.setdefault((key, ()), RequestSize(None, ()))
        shape = request_shape(request)
        group = self._groups.setdefault((shape, key.queue), ShapeGroup(shape, key.queue))
        amounts = (*request_amounts(request), inf if key.time_limit is None else key.time_limit)
        return self._sizes.setdefault((group, amounts), RequestSize(group, amounts))

    def _index(self, job_class: JobClass) -> None:
        """Index a class by the sort key of its head; one without jobs is not in the order."""
        entries, before = job_class.entries, job_class.indexed_key
        key = job_class.sort_key(entries[0]) if entries else BEFORE_ALL
        if key == before:
            return
        job_class.indexed_key = key
        for order in (self.order, job_class.size.order):
            if before is not BEFORE_ALL:
                remove_sorted(order, (before, job_class))
            if entries:
                insort(order, (key, job_class))

    def first_classes(self) -> list[tuple[SortKey, JobClass]]:
        """Return the first class of each request size, with its sort key."""
        return [size.order[0] for size in self._sizes.values() if size.order]


def _traits_of(key: ClassKey) -> tuple[str, str, int, bool]:
    return key.queue, key.user, key.priority, key.time_limit is not None


def first_jobs(
    pending: PendingQueue, jobs: dict[int, Job], count: int, without: Container[int] = ()
) -> list[Job]:
    """Return the first pending jobs in scheduling order, without those of some arrays."""
    first: list[SortKey] = []
    for job_class in pending.classes.values():
        if not (job_class.array and job_class.array in without):
            first += map(job_class.sort_key, job_class.entries[:count])
    return [jobs[int(key[-1])] for key in sorted(first)[:count]]


def first_rows(
    pending: PendingQueue, jobs: dict[int, Job], count: int, without: Container[int] = ()
) -> list[list[int]]:
    """Return the first pending jobs in the same order, equal members of an array in one row."""
    first: list[tuple[SortKey, list[ClassEntry]]] = []
    for job_class in pending.classes.values():
        if job_class.array and job_class.array in without:
            continue
        rows: dict[object, list[ClassEntry]] = {}
        for entry in job_class.entries:
            job = jobs[entry[2]]
            alike = job.array is not None and job.params is None
            row = (job.array, job.spec) if alike else entry[2]
            rows.setdefault(row, []).append(entry)
        first += [(job_class.sort_key(entries[0]), entries) for entries in rows.values()]
    return [
        [entry[2] for entry in entries]
        for _, entries in nsmallest(count, first, key=lambda row: row[0])
    ]
