"""Scores of the buckets of the free-capacity index: what a demand is likely to cost there."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nsmallest

from stoker.core.cluster.fragmentation import (
    REMAINDER_STEP,
    FragmentationModel,
    ResourceDemand,
    remainder_loss,
    stranded_loss,
)
from stoker.core.model.units import THOUSAND

MAX_REMAINDERS_PER_QUERY = 6
"""Number of remainders of a GPU that are searched for a part of a GPU, cheapest first."""
MAX_WHOLE_COUNTS_PER_QUERY = 4
"""Number of counts of free whole GPUs that are searched, lowest first (best fit)."""
_GPU_STEP = THOUSAND
_CPU_BITS = 1
_MEM_BITS = 0
"""Width of a bucket: one GPU, half a doubling of cores, a doubling of memory."""

BucketKey = tuple[int, int, int]
"""Free GPUs, cores and MiB of the nodes in a bucket, in steps."""

_Stranded = tuple[float, int, int]
"""Loss by the lack of cores and memory, and the GPUs and cores that are left."""
_TOO_SMALL: _Stranded = (0.0, -1, -1)
"""No node of the bucket has enough."""


class BucketScores:
    """Cached losses of one demand by remainder and by bucket.

    Derived from: the fragmentation model of one GPU model. Invalidated by: its next version.
    """

    __slots__ = ("_by_remainder", "stranded")

    def __init__(self) -> None:
        self._by_remainder: dict[int, float] = {}
        self.stranded: dict[BucketKey, _Stranded] = {}

    def remainders_to_search(
        self, keys: Collection[int], demand: ResourceDemand, loss_model: FragmentationModel
    ) -> list[int]:
        """Return the remainders, or numbers of whole GPUs, of which buckets are scored."""
        if not demand.gpus:
            return [0]
        minimum = demand.gpus // REMAINDER_STEP * REMAINDER_STEP
        if minimum >= THOUSAND:
            minimum = minimum // THOUSAND * THOUSAND
            whole = [key for key in keys if key >= minimum]
            return nsmallest(MAX_WHOLE_COUNTS_PER_QUERY, whole)
        whole = [key for key in keys if key >= THOUSAND]
        parts = [key for key in keys if minimum <= key < THOUSAND and key]
        if len(parts) > MAX_REMAINDERS_PER_QUERY:
            parts = nsmallest(
                MAX_REMAINDERS_PER_QUERY,
                parts,
                lambda key: (self.remainder_loss(key, demand, loss_model), key),
            )
        return parts + nsmallest(MAX_WHOLE_COUNTS_PER_QUERY, whole)

    def remainder_loss(
        self, key: int, demand: ResourceDemand, loss_model: FragmentationModel
    ) -> float:
        """Return the loss that the demand adds to a GPU with this remainder."""
        loss = self._by_remainder.get(key)
        if loss is None:
            remainder = max(min(key, THOUSAND), demand.gpus % THOUSAND)
            loss = self._by_remainder[key] = remainder_loss(loss_model, demand, remainder)
        return loss

    def compute(
        self,
        demand: ResourceDemand,
        loss_model: FragmentationModel,
        bucket_key: BucketKey,
        minimum: BucketKey,
    ) -> _Stranded:
        """Return, and cache, the loss on the smallest node that a bucket can contain."""
        stranded = _TOO_SMALL
        if all(map(int.__ge__, bucket_key, minimum)):
            gpus, cpu, mem = _smallest_amounts(bucket_key)
            gpus, cpu, mem = max(gpus, demand.gpus), max(cpu, demand.cpu), max(mem, demand.mem)
            loss = stranded_loss(loss_model, demand, gpus, cpu, mem)
            stranded = (loss, gpus - demand.gpus, cpu - demand.cpu)
        self.stranded[bucket_key] = stranded
        return stranded


def bucket_key(gpus: int, cpu: int, mem: int) -> BucketKey:
    """Return the bucket of a node, or the smallest bucket for a demand, by its amounts."""
    return gpus // _GPU_STEP, _level(cpu, _CPU_BITS), _level(mem, _MEM_BITS)


def _smallest_amounts(key: BucketKey) -> tuple[int, int, int]:
    gpus, cpu, mem = key
    return gpus * _GPU_STEP, _smallest_at(cpu, _CPU_BITS), _smallest_at(mem, _MEM_BITS)


def _level(amount: int, bits: int) -> int:
    """Return the level of an amount on a scale with 2 ** bits levels per doubling."""
    shift = max(amount.bit_length() - bits - 1, 0)
    return (amount >> shift) + (shift << bits)


def _smallest_at(level: int, bits: int) -> int:
    """Return the smallest amount on a level of that scale."""
    shift = max((level >> bits) - 1, 0)
    return (level - (shift << bits)) << shift
