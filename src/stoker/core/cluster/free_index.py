"""Free-capacity index: the best node for a demand without a scan of all nodes.

Nodes with about the same free resources share a bucket: the same free remainder of a GPU (or number
of whole GPUs), and about the same amounts of GPUs, cores and memory. A query scores buckets, not
nodes, and only those where the fragmentation cost is likely to be lowest, so that its cost hardly
depends on the number of nodes. Scores of buckets are cached until the demand histogram changes; the
exact cost is then computed for one node of each of the best buckets.

Buckets only decide where to search first. Whether a demand fits at all is exact: every node is also
in a `FitTree`, which finds the fullest node with enough of everything.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, merge
from operator import itemgetter

from stoker.core.cluster.bucket_scores import BucketKey, BucketScores, bucket_key
from stoker.core.cluster.fragmentation import (
    REMAINDER_STEP,
    Cost,
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    fits,
    placement_cost,
    quantize,
)
from stoker.core.model.units import THOUSAND
from stoker.core.structures.fit_tree import BEFORE_ALL, Amounts, FitTree, SortKey, at_most

MAX_MISSES_PER_BUCKET = 16
"""Number of nodes of a bucket that are tried although they turn out to be too small."""
MAX_BUCKETS_PER_QUERY = 128
"""Number of buckets that one query scores, about."""
MAX_EXACT_COSTS_PER_QUERY = 6
"""Number of nodes, of the buckets with the best scores, whose exact costs are compared."""

_BucketEntry = tuple[int, int, int]
"""Order within a bucket: free GPUs, free cores, number of the node."""
_Bucket = list[_BucketEntry]
_KindKey = tuple[str, tuple[str, ...]]
"""What nodes of one kind have in common besides amounts: GPU model, names of other resources."""


class _RemainderBuckets:
    """The buckets of nodes with the same remainder of a GPU, or number of whole GPUs."""

    __slots__ = ("buckets", "order")

    def __init__(self) -> None:
        self.buckets: dict[BucketKey, _Bucket] = {}
        self.order: list[BucketKey] = []
        """Keys of all buckets, sorted: the fewest free GPUs first."""

    def sample(self, minimum: BucketKey, count: int) -> list[BucketKey]:
        """Return buckets that may have enough: all of them, or about `count`."""
        order = self.order
        start = bisect_left(order, minimum)
        if len(order) - start <= count:
            return order[start:]
        # Half of them where best fit searches, the others evenly spaced over what follows.
        middle = start + count // 2
        step = -(-(len(order) - middle) // (count - count // 2))
        return order[start:middle] + order[middle::step]


class _NodeKind:
    """All nodes of one kind."""

    def __init__(self, more: tuple[str, ...]) -> None:
        self.more = more
        """Names of resources other than GPUs, cores and memory."""
        self.by_remainder: dict[int, _RemainderBuckets] = {}
        """By remainder of a GPU or whole GPUs, in thousandths; 0: all nodes."""
        self.tree: FitTree[int] = FitTree()


class FreeCapacityIndex:
    """Nodes by their free resources.

    Derived from: `free_resources` of every node whose GPUs are of one model.
    Invariant: a node is in one tree, and in one bucket per remainder of its GPUs.
    Invalidated by: `Cluster.mark_changed`; `node_lookup.refresh_index` applies the changes.
    Cost: a query scores at most about MAX_BUCKETS_PER_QUERY buckets. Without the index decisions
    take 17 to 22 times as long at 10^4 nodes with mixed requests.
    """

    def __init__(self) -> None:
        self._node_kinds: dict[_KindKey, _NodeKind] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: dict[int, FreeResources] = {}
        self._scores: dict[tuple[ResourceDemand, str], BucketScores] = {}
        self._version: tuple[DemandHistogram, int] | None = None

    def register(self, name: str) -> int:
        """Number a node; among equal nodes, the one that was registered first is taken."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def update(self, name: str, free: FreeResources) -> None:
        """Set the free resources of a node."""
        number = self.register(name)
        if number in self._free:
            if self._free[number] == free:
                return
            self._deindex(number)
        self._free[number] = free
        kind_key = _kind_key(free)
        kind = self._node_kinds.get(kind_key)
        if kind is None:
            kind = self._node_kinds[kind_key] = _NodeKind(kind_key[1])
        entry, key = _bucket_entry(number, free), bucket_key(sum(free.gpus), free.cpu, free.mem)
        for remainder in _remainders_of(free):
            group = kind.by_remainder.setdefault(remainder, _RemainderBuckets())
            bucket = group.buckets.get(key)
            if bucket is None:
                bucket = group.buckets[key] = []
                insort(group.order, key)
            insort(bucket, entry)
        kind.tree.add(entry, _tree_amounts(free), number)

    def remove(self, name: str) -> None:
        """Remove a node that left or became unavailable; it keeps its number."""
        number = self._numbers[name]
        self._deindex(number)
        del self._free[number]

    def _deindex(self, number: int) -> None:
        free = self._free[number]
        kind_key = _kind_key(free)
        kind = self._node_kinds[kind_key]
        entry, key = _bucket_entry(number, free), bucket_key(sum(free.gpus), free.cpu, free.mem)
        for remainder in _remainders_of(free):
            group = kind.by_remainder[remainder]
            bucket = group.buckets[key]
            del bucket[bisect_left(bucket, entry)]
            if not bucket:
                del group.buckets[key]
                del group.order[bisect_left(group.order, key)]
                if not group.order:
                    del kind.by_remainder[remainder]
        kind.tree.remove(entry, _tree_amounts(free))
        if not kind.tree:
            del self._node_kinds[kind_key]

    def free_resources(self, name: str) -> FreeResources | None:
        """Return the free resources of a node, or None if it is not in the index."""
        return self._free.get(self._numbers.get(name, -1))

    def __len__(self) -> int:
        return len(self._free)

    def fitting(self, demand: ResourceDemand) -> Iterator[str]:
        """Yield all nodes where a demand fits, the fullest first."""
        for number in self._fitting_in(self._matching_kinds(demand), demand):
            yield self._names[number]

    def any_fitting(self, demand: ResourceDemand) -> Iterator[str]:
        """Yield all nodes where a demand fits in any order, which is faster."""
        for _, kind in self._matching_kinds(demand):
            for number in kind.tree.any_fitting(at_most(_tree_demand(kind, demand))):
                yield self._names[number]

    def _matching_kinds(self, demand: ResourceDemand) -> list[tuple[str, _NodeKind]]:
        return [
            (model, kind)
            for (model, more), kind in sorted(self._node_kinds.items(), key=itemgetter(0))
            if (not demand.models or model in demand.models)
            and all(name in more for name, amount in demand.more if amount)
        ]

    def best(self, demand: ResourceDemand, histogram: DemandHistogram, count: int = 1) -> list[str]:
        """Return the nodes with the lowest placement cost, one per part; empty: does not fit."""
        kinds = self._matching_kinds(demand)
        chosen: dict[int, None] = {}
        limit = count if count > 1 else MAX_EXACT_COSTS_PER_QUERY
        for number in self._candidates(demand, histogram, kinds, one_per_bucket=count == 1):
            chosen[number] = None
            if len(chosen) == limit:
                break
        if len(chosen) < count:
            # The trees contain every node, in the order of best fit.
            for number in self._fitting_in(kinds, demand):
                chosen[number] = None
                if len(chosen) == count:
                    break
            else:
                return []
        if count == 1 < len(chosen):
            cheapest = min(chosen, key=lambda number: self._exact_cost(number, demand, histogram))
            return [self._names[cheapest]]
        return [self._names[number] for number in chosen]

    def _exact_cost(
        self, number: int, demand: ResourceDemand, histogram: DemandHistogram
    ) -> tuple[Cost, int]:
        return placement_cost(self._free[number], demand, histogram)[0], number

    def _candidates(
        self,
        demand: ResourceDemand,
        histogram: DemandHistogram,
        kinds: list[tuple[str, _NodeKind]],
        one_per_bucket: bool,
    ) -> Iterator[int]:
        """Yield nodes where the demand fits, bucket by bucket, the lowest score first."""
        heap: list[tuple[Cost, int, int, _Bucket]] = []
        minimum = bucket_key(demand.gpus, demand.cpu, demand.mem)
        for model, kind in kinds:
            loss_model = histogram.model_for(model)
            scores = self._scores_for(demand, model, histogram)
            searched = scores.remainders_to_search(kind.by_remainder, demand, loss_model)
            limit = max(MAX_BUCKETS_PER_QUERY // (len(kinds) * max(len(searched), 1)), 3)
            for remainder in searched:
                group = kind.by_remainder[remainder]
                lost_part = scores.remainder_loss(remainder, demand, loss_model)
                for key in group.sample(minimum, limit):
                    stranded = scores.stranded.get(key)
                    if stranded is None:
                        stranded = scores.compute(demand, loss_model, key, minimum)
                    loss, gpus, cpu = stranded
                    if gpus >= 0:
                        bucket = group.buckets[key]
                        cost = (quantize(lost_part + loss), gpus, cpu)
                        heap.append((cost, bucket[0][2], remainder, bucket))
        heapify(heap)
        while heap:
            for number in self._fitting_of(heappop(heap)[3], demand):
                yield number
                if one_per_bucket:
                    break

    def _fitting_of(self, bucket: _Bucket, demand: ResourceDemand) -> Iterator[int]:
        """Yield the nodes of a bucket where the demand fits, until too many do not."""
        misses = 0
        for _, _, number in bucket:
            if fits(self._free[number], demand):
                yield number
            else:
                misses += 1
                if misses == MAX_MISSES_PER_BUCKET:
                    break

    def _fitting_in(
        self, kinds: list[tuple[str, _NodeKind]], demand: ResourceDemand
    ) -> Iterator[int]:
        """Yield all nodes of these kinds where the demand fits, the fullest first."""
        for entry in merge(*(self._fitting_of_kind(kind, demand) for _, kind in kinds)):
            yield int(entry[-1])

    def _fitting_of_kind(self, kind: _NodeKind, demand: ResourceDemand) -> Iterator[SortKey]:
        after: SortKey = BEFORE_ALL
        test = at_most(_tree_demand(kind, demand))
        while (entry := kind.tree.first_fitting(after, test)) is not None:
            after = entry[0]
            yield after

    def _scores_for(
        self, demand: ResourceDemand, model: str, histogram: DemandHistogram
    ) -> BucketScores:
        version = self._version
        if version is None or version[0] is not histogram or version[1] != histogram.version:
            self._version = (histogram, histogram.version)
            self._scores.clear()
        scores = self._scores.get((demand, model))
        if scores is None:
            scores = self._scores[demand, model] = BucketScores()
        return scores


def _kind_key(free: FreeResources) -> _KindKey:
    return free.model, tuple(name for name, _ in free.more)


def _bucket_entry(number: int, free: FreeResources) -> _BucketEntry:
    return sum(free.gpus), free.cpu, number


def _remainders_of(free: FreeResources) -> set[int]:
    parts = {left // REMAINDER_STEP * REMAINDER_STEP for left in free.gpus if left < THOUSAND}
    return parts | {free.whole * THOUSAND, 0}


def _tree_amounts(free: FreeResources) -> Amounts:
    """Return the free amounts of a node as its tree compares them."""
    others = (amount for _, amount in free.more)
    return tuple(map(_inverse, (free.max_remainder, free.cpu, free.mem, *others)))


def _tree_demand(kind: _NodeKind, demand: ResourceDemand) -> Amounts:
    """Return a demand as the tree of this kind compares it."""
    named = dict(demand.more) if kind.more else {}
    others = (named.get(name, 0) for name in kind.more)
    return tuple(map(_inverse, (demand.gpus, demand.cpu, demand.mem, *others)))


def _inverse(amount: int) -> float:
    """Return a number that falls with the amount: the tree finds small entries, not large ones.

    Exact: different whole numbers below 2 ** 50 never become equal.
    """
    return (1 << 40) / amount if amount > 0 else float("inf")
