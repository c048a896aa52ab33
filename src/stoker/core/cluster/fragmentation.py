"""Expected loss of GPUs by fragmentation when a request is placed on a node.

After FGD (Weng et al., USENIX ATC 2023). A GPU is lost in one of two ways. Its free remainder is
smaller than typical requests: with 0.81 of a GPU allocated, the other 0.19 is used only by a
request for 0.19 or less. Or the node cannot serve typical requests: eight free GPUs beside 60 free
cores are lost to all requests for eight GPUs and 64 cores. Both losses are predicted from the
requests of all unfinished jobs, and a request is placed where it adds the least. Differences below
`LOSS_STEP` are rounded away, so that among about equal nodes the fullest is taken and whole nodes
stay free.

All functions work on small immutable values, never on the ledger, so that results can be cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import floor, log
from typing import NamedTuple

from stoker.core.model.units import THOUSAND

LOSS_STEP = 25
"""Thousandths of a GPU: losses that differ by less are equal, and best fit decides."""
LOOKAHEAD_REQUESTS = 40
"""Number of future requests among which one that fills a remainder is expected."""
LEVEL_RATIO = 1.25
"""Ratio of two levels of how often a demand occurs."""
MAX_TYPICAL_DEMANDS = 500
"""Number of demands that are predicted, at most: a rarer one is not typical."""
REMAINDER_STEP = 10
"""Thousandths of a GPU: the resolution of the table of remainder losses."""

Named = tuple[tuple[str, int], ...]


class ResourceDemand(NamedTuple):
    """The amounts that a request needs on one node."""

    gpus: int = 0
    """Thousandths: whole GPUs, and a part of one more."""
    cpu: int = 0
    mem: int = 0
    models: tuple[str, ...] = ()
    """Keys of the acceptable GPU models; empty: any."""
    more: Named = ()
    """Other amounts, by resource name."""


class FreeResources(NamedTuple):
    """The free amounts of one node."""

    gpus: tuple[int, ...] = ()
    """Free thousandths of each GPU, largest first."""
    cpu: int = 0
    mem: int = 0
    model: str = ""
    more: Named = ()


def fits(free: FreeResources, demand: ResourceDemand) -> bool:
    """Whether a demand fits into the free resources of a node."""
    if demand.cpu > free.cpu or demand.mem > free.mem:
        return False
    if demand.models and free.model not in demand.models:
        return False
    if demand.gpus > max_request_amount(free.gpus):
        return False
    if not demand.more:
        return True
    amounts = dict(free.more)
    return all(amounts.get(name, 0) >= amount for name, amount in demand.more)


def remainders(free: FreeResources, demand: ResourceDemand) -> list[int]:
    """Return the free amounts of the GPUs that can serve the demand's part of a GPU, sorted."""
    whole, part = divmod(demand.gpus, THOUSAND)
    return sorted({left for left in free.gpus[whole:] if left >= part})


def max_request_amount(gpus: Sequence[int]) -> int:
    """Return the largest amount that GPUs with these free amounts can serve.

    That is the whole GPUs among them, and the largest of the others.
    """
    return gpus.count(THOUSAND) * THOUSAND + max({0, *gpus} - {THOUSAND})


class DemandHistogram:
    """The demands of all unfinished jobs by frequency.

    Derived from: the requests of these jobs, so that a restart changes nothing. Counts are rounded
    down to powers of LEVEL_RATIO: the losses are computed again only when one of these changes.
    """

    def __init__(self, demands: Iterable[ResourceDemand] = ()) -> None:
        self.version = 0
        """Number of changes of the models that `model_for` returns."""
        self._counts: Counter[ResourceDemand] = Counter(demands)
        self._total = self._counts.total()
        self._models: dict[str, FragmentationModel] = {}

    def count(self, demand: ResourceDemand, step: int) -> None:
        """Count a demand (+1), or count it no longer (-1)."""
        total, weight = _rounded(self._total), self._weight(demand)
        self._total += step
        self._counts[demand] += step
        if not self._counts[demand]:
            del self._counts[demand]
        if weight != self._weight(demand) or total != _rounded(self._total):
            self.version += 1
            self._models.clear()

    def _weight(self, demand: ResourceDemand) -> float:
        """Return the rounded count of a demand; 0 if it is too rare to be typical."""
        weight = _rounded(self._counts[demand])
        return weight if weight * MAX_TYPICAL_DEMANDS >= _rounded(self._total) else 0.0

    def model_for(self, gpu_model: str) -> FragmentationModel:
        """Return the expected losses on GPUs of a model."""
        if gpu_model not in self._models:
            weights = {each: weight for each in self._counts if (weight := self._weight(each))}
            self._models[gpu_model] = FragmentationModel(weights, gpu_model)
        return self._models[gpu_model]


def _rounded(count: int) -> float:
    """Return a count, rounded down to a power of LEVEL_RATIO."""
    return LEVEL_RATIO ** floor(log(count, LEVEL_RATIO) + 1e-9) if count else 0.0


class FragmentationModel:
    """Expected losses of free GPUs of one model if typical demands follow."""

    def __init__(self, weights: dict[ResourceDemand, float], gpu_model: str) -> None:
        matching = [
            (demand, weight)
            for demand, weight in sorted(weights.items())
            if demand.gpus and (not demand.models or gpu_model in demand.models)
        ]
        gpu_total = sum(weight for demand, weight in weights.items() if demand.gpus) or 1.0
        self._shares = [(demand, weight / gpu_total) for demand, weight in matching]
        self._unserved: dict[tuple[int, int, int], float] = {}
        """Results of `unserved_share`."""
        self._remainders = _remainder_losses(matching, sum(weights.values()) or 1.0)

    def remainder_loss(self, left: int) -> float:
        """Return the expected loss of a GPU with this free remainder, in thousandths."""
        return self._remainders[left // REMAINDER_STEP]

    def unserved_share(self, gpus: int, cpu: int, mem: int) -> float:
        """Return the share of GPU demands for which a node with these free amounts is too small."""
        key = gpus, cpu, mem
        if key not in self._unserved:
            self._unserved[key] = 1.0 - sum(
                share
                for demand, share in self._shares
                if demand.gpus <= gpus and demand.cpu <= cpu and demand.mem <= mem
            )
        return self._unserved[key]


def _remainder_losses(matching: list[tuple[ResourceDemand, float]], total: float) -> list[float]:
    """Return the expected loss of a GPU by its free remainder, in steps of REMAINDER_STEP.

    A demand that fits takes its part of the remainder, as often as such demands occur, and what is
    left is again a remainder. If none is expected within LOOKAHEAD_REQUESTS, all of it is lost.
    """
    shares: dict[int, float] = {}
    for demand, weight in matching:
        size = -(-min(demand.gpus, THOUSAND) // REMAINDER_STEP)
        shares[size] = shares.get(size, 0.0) + weight / total
    by_size = sorted(shares.items())
    losses: list[float] = []
    for left in range(THOUSAND // REMAINDER_STEP + 1):
        fitting_share = loss_after = 0.0
        for size, share in by_size:
            if size > left:
                break
            fitting_share += share
            loss_after += share * losses[left - size]
        unfilled = max(1.0 - fitting_share, 0.0) ** LOOKAHEAD_REQUESTS
        filled = (1.0 - unfilled) * loss_after / fitting_share if fitting_share else 0.0
        losses.append(unfilled * left * REMAINDER_STEP + filled)
    return losses


Cost = tuple[int, int, int, int]
"""Smaller is better: steps of loss, GPUs and cores left on the node, remainder of a GPU used."""


def placement_cost(
    free: FreeResources, demand: ResourceDemand, histogram: DemandHistogram
) -> Cost | None:
    """Return the cost of a demand on a node with these free resources; None: it does not fit."""
    if not fits(free, demand):
        return None
    model = histogram.model_for(free.model)
    whole, part = divmod(demand.gpus, THOUSAND)
    total = sum(free.gpus)
    left, cpu, mem = total - demand.gpus, free.cpu - demand.cpu, free.mem - demand.mem
    before = total * model.unserved_share(max_request_amount(free.gpus), free.cpu, free.mem)
    before += whole * model.remainder_loss(THOUSAND)
    # The fullest node with enough is best; demands without GPUs are spread by cores and memory.
    best_fit = (left, cpu if demand.gpus else -cpu * (mem + 1))
    costs = []
    for remainder in remainders(free, demand) if part else (0,):
        rest = list(free.gpus[whole:])
        loss = -before
        if part:
            rest.remove(remainder)
            rest.append(remainder - part)
            loss += model.remainder_loss(remainder - part) - model.remainder_loss(remainder)
        loss += left * model.unserved_share(max_request_amount(rest), cpu, mem)
        costs.append((int((loss + LOSS_STEP / 2) // LOSS_STEP), *best_fit, remainder))
    return min(costs)
