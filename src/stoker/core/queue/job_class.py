"""Job classes: pending jobs that differ only in their order."""

from __future__ import annotations

from typing import NamedTuple

from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.request_shape import gpu_bucket_of, is_amount_only
from stoker.core.policies.ranking import OVERDUE_RANK
from stoker.core.structures import BEFORE_ALL, Amounts, SortKey


class ClassKey(NamedTuple):
    """What the jobs of one class have in common."""

    request: ResourceRequest | None
    """None in a queue of strict order, where only the head can start."""
    priority: int
    queue: str
    array: int
    """Id of an array with a limit of running members; 0: none."""
    time_limit: int | None
    """Seconds. A short job may be backfilled where a long one before it may not."""
    user: str
    """Only in queues with fair share, where all jobs of a user move together; else empty."""
    time_needed: int = 0
    """Seconds for which a node must exist for a start: not the time limit of a training job."""
    owner: str = ""
    """Key of the user, only if users or groups have limits."""


ClassEntry = tuple[float, int, int]
"""Rank by the policy, order of arrival and id of a job: its sort key within a class."""


class JobClass:
    """Pending jobs that are interchangeable to the planner, except for their order."""

    def __init__(self, key: ClassKey, size: RequestSize) -> None:
        self.key, self.size = key, size
        self.request, self.priority, self.queue, self.array = key[:4]
        self.entries: list[ClassEntry] = []
        """Entries of the jobs, sorted."""
        self.indexed_key: SortKey = BEFORE_ALL
        """Sort key of the head, set by the pending queue."""
        self.gpu_bucket = gpu_bucket_of(self.request)
        self.fair_share_penalty = 0.0
        """Ranks by which the user's recent usage moves all jobs of the class back."""

    @property
    def head(self) -> int:
        """Id of the first job."""
        return self.entries[0][2]

    @property
    def is_overdue(self) -> bool:
        """Whether the head exceeded the starvation bound of its policy."""
        return self.indexed_key[1] <= OVERDUE_RANK

    def sort_key(self, entry: ClassEntry) -> SortKey:
        """Return the position of one of the jobs in the pending queue."""
        rank, order, id = entry
        if rank > OVERDUE_RANK:  # overdue jobs have no penalty
            rank += self.fair_share_penalty
        return (-self.priority, rank, order, id)


class ShapeGroup:
    """Classes of one queue that differ only in amounts, time limit, priority and user."""

    def __init__(self, shape: ResourceRequest, queue: str) -> None:
        self.shape, self.queue = shape, queue


class RequestSize:
    """Classes of which none fits if one does not: of several users, or with other priorities."""

    def __init__(self, group: ShapeGroup | None, amounts: Amounts) -> None:
        self.group, self.amounts = group, amounts
        """Amounts and time limit of the requests; without a group, they do not decide alone."""
        self.order: list[tuple[SortKey, JobClass]] = []
        """The classes by the sort key of their head."""


def is_groupable(key: ClassKey) -> bool:
    """Whether the requested amounts alone decide if a class fits."""
    request = key.request
    if request is None or key.array or request.exclusive:
        return False
    if request.node_count > 1:
        return is_amount_only(request)
    return request.gpus is None or request.gpus.fixed_share is None
