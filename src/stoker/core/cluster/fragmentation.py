"""Expected loss of GPUs by fragmentation when a request is placed on a node.

After FGD (Weng et al., USENIX ATC 2023). A GPU is lost in one of two ways. Its free remainder is
smaller than typical requests: with 0.81 of a GPU allocated, the other 0.19 is used only by a
request for 0.19 or less. Or the node is short of cores or memory: four free GPUs beside one free
core cannot serve a request for four cores per GPU. Both losses are predicted from recent requests,
and a request is placed where it adds the least. Differences below `LOSS_STEP` are rounded away, so
that among about equal nodes the fullest is taken and whole nodes stay free.

All functions work on small immutable values, never on the ledger, so that results can be cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from stoker.core.model.units import THOUSAND

LOSS_STEP = 100
"""Thousandths of a GPU: losses that differ by less are equal, and best fit decides."""
LOOKAHEAD_REQUESTS = 40
"""Number of future requests among which one that fills a remainder is expected."""
DEMAND_WINDOW = 1000
"""Number of requests after which an older one counts about a quarter."""
MAX_DEMAND_CLASSES = 256
"""Number of different requests that are counted; the rarest are dropped first."""
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

    @property
    def whole(self) -> int:
        """The number of completely free GPUs."""
        return self.gpus.count(THOUSAND)

    @property
    def max_remainder(self) -> int:
        """The largest amount of GPUs that fits; all smaller amounts fit too."""
        whole = self.whole
        return whole * THOUSAND + (self.gpus[whole] if whole < len(self.gpus) else 0)


def fits(free: FreeResources, demand: ResourceDemand) -> bool:
    """Whether a demand fits into the free resources of a node."""
    if demand.cpu > free.cpu or demand.mem > free.mem:
        return False
    if demand.gpus and demand.gpus > free.max_remainder:
        return False
    if demand.models and free.model not in demand.models:
        return False
    if not demand.more:
        return True
    amounts = dict(free.more)
    return all(amounts.get(name, 0) >= amount for name, amount in demand.more)


def remainders(free: FreeResources, demand: ResourceDemand) -> list[int]:
    """Return the free amounts of the GPUs that can serve the demand's part of a GPU, sorted."""
    whole, part = divmod(demand.gpus, THOUSAND)
    if not part:
        return []
    return sorted({left for left in free.gpus[whole:] if left >= part})


class DemandHistogram:
    """Recent demands by frequency; older ones decay.

    Derived from: the requests that were submitted, after a restart those of the jobs in memory.
    Invariant: at most 2 * MAX_DEMAND_CLASSES different demands are counted.
    Cost: the loss tables are rebuilt after every half DEMAND_WINDOW requests, more often at first.
    """

    def __init__(self, demands: Iterable[ResourceDemand] = ()) -> None:
        self.version = 0
        """Number of changes of the models that `model_for` returns."""
        self._weights: dict[ResourceDemand, float] = {}
        self._since_rebuild = 0
        self._recorded = 0
        self._models: dict[str | None, FragmentationModel] = {}
        self._constrained = False
        for demand in demands:
            self.record(demand)

    def record(self, demand: ResourceDemand) -> None:
        """Count a submitted demand."""
        self._weights[demand] = self._weights.get(demand, 0.0) + 1.0
        self._recorded += 1
        self._since_rebuild += 1
        too_many = len(self._weights) > 2 * MAX_DEMAND_CLASSES
        if self._recorded % (DEMAND_WINDOW // 2) == 0 or too_many:
            self._decay()
        # Often at first, when every request adds information; later at regular intervals.
        if self._since_rebuild * 2 >= min(self._recorded, DEMAND_WINDOW):
            self._rebuild()

    def _decay(self) -> None:
        heaviest = sorted(self._weights.items(), key=lambda entry: (-entry[1], entry[0]))
        self._weights = {
            demand: weight / 2 for demand, weight in heaviest[:MAX_DEMAND_CLASSES] if weight > 0.1
        }

    def _rebuild(self) -> None:
        self._since_rebuild = 0
        self.version += 1
        self._constrained = any(demand.models for demand in self._weights)
        self._models.clear()

    def model_for(self, gpu_model: str) -> FragmentationModel:
        """Return the expected losses on GPUs of a model."""
        key = gpu_model if self._constrained else None
        loss_model = self._models.get(key)
        if loss_model is None:
            loss_model = self._models[key] = FragmentationModel(self._weights, gpu_model)
        return loss_model


class FragmentationModel:
    """Expected losses of free GPUs of one model if typical demands follow."""

    def __init__(self, weights: dict[ResourceDemand, float], gpu_model: str) -> None:
        matching = [
            (demand, weight)
            for demand, weight in sorted(weights.items())
            if not demand.models or gpu_model in demand.models
        ]
        total = sum(demand.gpus * weight for demand, weight in weights.items()) or 1.0
        constrained = sum(demand.gpus * weight for demand, weight in matching if demand.models)
        self.constrained_share = constrained / total
        """The share of all GPUs in demand that must be of this model."""
        self._remainders = _remainder_losses(matching, sum(weights.values()) or 1.0)
        self._cpu = _Shortage((demand.gpus, demand.cpu, weight) for demand, weight in matching)
        self._mem = _Shortage((demand.gpus, demand.mem, weight) for demand, weight in matching)

    def gpu_remainder(self, left: int) -> float:
        """Return the expected loss of a GPU with this free remainder, in thousandths."""
        return self._remainders[left // REMAINDER_STEP]

    def stranded_gpus(self, gpus: int, cpu: int, mem: int) -> float:
        """Return the expected loss of free GPUs by the lack of cores or memory, in thousandths."""
        return max(self._cpu.lost(gpus, cpu), self._mem.lost(gpus, mem))


def _remainder_losses(matching: list[tuple[ResourceDemand, float]], total: float) -> list[float]:
    """Return the expected loss of a GPU by its free remainder, in steps of REMAINDER_STEP.

    A demand that fits takes its part of the remainder, as often as such demands occur, and what is
    left is again a remainder. If none is expected within LOOKAHEAD_REQUESTS, all of it is lost.
    """
    shares: dict[int, float] = {}
    for demand, weight in matching:
        if demand.gpus:
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


class _Shortage:
    """Expected loss of GPUs when another resource of the node is scarce.

    If all demands were of one kind, the GPUs beside which the resource is used up would be lost;
    this is the mean over all kinds, each weighted by the GPUs that it needs.
    """

    def __init__(self, demands: Iterable[tuple[int, int, float]]) -> None:
        kinds = sorted(
            ((other / gpus, gpus * weight) for gpus, other, weight in demands if gpus),
            key=itemgetter(0),
        )
        total = sum(weight for _, weight in kinds) or 1.0
        kinds = [(ratio, weight / total) for ratio, weight in kinds if ratio]
        self._ratios = [ratio for ratio, _ in kinds]
        # Suffix sums over kinds: their share, and the GPUs that one unit of the resource serves.
        self._share = [0.0, *accumulate(weight for _, weight in reversed(kinds))]
        self._served = [0.0, *accumulate(weight / ratio for ratio, weight in reversed(kinds))]

    def lost(self, gpus: int, other: int) -> float:
        if not gpus:
            return 0.0
        short_kinds = len(self._ratios) - bisect_right(self._ratios, other / gpus)
        return gpus * self._share[short_kinds] - other * self._served[short_kinds]


Cost = tuple[int, int, int]
"""Smaller is better: steps of loss, then the GPUs and then the cores left on the node."""


def placement_cost(
    free: FreeResources, demand: ResourceDemand, histogram: DemandHistogram
) -> tuple[Cost, int]:
    """Return the cost of a demand on a node where it fits, and the remainder it is taken from."""
    loss_model = histogram.model_for(free.model)
    total = sum(free.gpus)
    stranded = stranded_loss(loss_model, demand, total, free.cpu, free.mem)
    steps, remainder = min(
        (quantize(stranded + remainder_loss(loss_model, demand, remainder)), remainder)
        for remainder in remainders(free, demand) or [0]
    )
    return (steps, total - demand.gpus, free.cpu - demand.cpu), remainder


def stranded_loss(
    loss_model: FragmentationModel, demand: ResourceDemand, gpus: int, cpu: int, mem: int
) -> float:
    """Return the loss a demand adds by using up cores, memory, and GPUs others depend on."""
    before = loss_model.stranded_gpus(gpus, cpu, mem)
    after = loss_model.stranded_gpus(gpus - demand.gpus, cpu - demand.cpu, mem - demand.mem)
    model_loss = 0.0 if demand.models else loss_model.constrained_share * demand.gpus
    return after - before + model_loss


def remainder_loss(loss_model: FragmentationModel, demand: ResourceDemand, remainder: int) -> float:
    """Return the loss a demand adds by taking its part of a GPU from this remainder."""
    whole, part = divmod(demand.gpus, THOUSAND)
    loss = -whole * loss_model.gpu_remainder(THOUSAND)
    if part:
        loss = loss + loss_model.gpu_remainder(remainder - part)
        loss -= loss_model.gpu_remainder(remainder)
    return loss


def quantize(loss: float) -> int:
    """Return a loss in steps of LOSS_STEP, rounded."""
    return int((loss + LOSS_STEP / 2) // LOSS_STEP)
