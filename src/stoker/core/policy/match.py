"""Which job on which model of GPU: who gains most where, when a move pays, and who shares.

All of it is arithmetic on times: the seconds a job still needs on each model, measured in its
family or guessed from others. Who is asked first, and what is free, is the planner's business.

**For short waits.** Jobs choose in the planner's order. One that takes `n` GPUs for `t` seconds
ends after `t`, and keeps all who come after it from `n` GPUs for `t`. So it goes where
`t × (1 + n × dearness)` is least: with nobody behind it, where it is fastest; in a crowd, a job
that is hardly faster on a fast GPU leaves it to one that is. Going on where it is counts a fifth
less, since forecasts are not exact and those behind are stopped, too.

**For the earliest end of everything.** GPUs of each model have a price, such that all models have
equally much to do when every job goes where it is cheapest. What counts is not where a job is
fast but where it is fast compared with others, and the price knows. The longest job comes first.
At last, when all can run, the longest goes where it ends first.

**Sharing.** Two on one GPU pay when the two shares of speed that remain add up to clearly more
than one. Who shares for want of anything better chooses the company in which both together end
soonest: its own end and the delay of the other count alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from msgspec import Struct

STAY = 0.8
"""A place must be better than the one a job has by more than a fifth."""
CROWD = 0.5
"""How dear a GPU of the fastest model is when as many wait as there are GPUs."""
GAIN = 0.2
"""What two on one GPU must do more than one alone."""
SHARP = 12.0
"""How clearly a job prefers the cheaper of two models: one dearer by 10 % gets a third as much."""
PACE = 0.7 / SHARP
"""How far prices go in a round; loads answer by the power of SHARP, and must not overshoot."""
EVEN = 0.01
"""Loads that differ by no more are equal."""
ROUNDS = 80
"""So often prices are corrected at most."""
CHEAPEST = 0.001
"""Nothing is for nothing, though nobody wants it: the next may."""

Key = TypeVar("Key")
Seconds = Mapping[str, float]
"""By model of GPU; none for those on which it does not run."""


# ------------------------------------------------------------------------- what is known


def usual(families: Iterable[Seconds]) -> dict[str, float]:
    """Seconds by model of the typical family, where the fastest model needs 1.0.

    Each family counts by its ratios only. A model is tied to the one that most were measured on.
    """
    known = [each for each in families if len(each) > 1]
    counts: dict[str, int] = {}
    for each in known:
        for model in each:
            counts[model] = counts.get(model, 0) + 1
    if not counts:
        return {}
    from statistics import median  # most daemons never get here, and it is slow to import

    common = min(counts, key=lambda model: (-counts[model], model))
    found = {}
    for model in sorted(counts):
        ratios = [each[model] / each[common] for each in known if model in each and common in each]
        if ratios:
            found[model] = median(ratios)
    least = min(found.values())
    return {model: seconds / least for model, seconds in found.items()}


def expected(measured: Seconds, typical: Seconds, models: Iterable[str]) -> dict[str, float]:
    """Seconds on each model: as measured, else as is typical beside what was measured.

    A model of which nobody knows anything is taken to be like the fastest that is measured: it
    will be tried, and then it is known. Empty, when nothing at all was measured.
    """
    if not measured:
        return {}
    from statistics import median

    scales = [measured[model] / typical[model] for model in measured if model in typical]
    scale = median(scales) if scales else None
    fastest = min(measured.values())
    found = {}
    for model in models:
        if model in measured:
            found[model] = measured[model]
        elif scale is not None and model in typical:
            found[model] = typical[model] * scale
        else:
            found[model] = fastest
    return found


# -------------------------------------------------------------------------- short waits


class Option(Struct, frozen=True):
    """A place that a job could have now."""

    model: str
    seconds: float
    """Until it ends there, with what a restart costs if it would have to move."""
    here: bool = False
    """It runs there already."""


def dearness(typical: Seconds, behind: float, gpus: float) -> dict[str, float]:
    """What a GPU of each model is worth to `behind` more GPUs' worth of jobs, with `gpus` in all.

    The delay of others, as a share of the time that a job holds one GPU.
    """
    crowd = CROWD * min(behind / gpus, 1.0) if gpus > 0 else 0.0
    fastest = min(typical.values(), default=1.0)
    return {model: crowd * fastest / seconds for model, seconds in typical.items()}


def cost(option: Option, gpus: float, dear: Mapping[str, float]) -> float:
    """Its own time and the delay of others."""
    whole = option.seconds * (1.0 + gpus * dear.get(option.model, 0.0))
    return whole * STAY if option.here else whole


def choose(options: Iterable[Option], gpus: float, dear: Mapping[str, float]) -> Option | None:
    """Where a job goes, among the places it could have; of equal ones, the first."""
    best = min(options, key=lambda option: cost(option, gpus, dear), default=None)
    return best if best is not None and best.seconds < inf else None


# ------------------------------------------------------------------------------ sharing


def gain(mine: float, other: float, suits_me: float = 1.0, suits_other: float = 1.0) -> float:
    """What a GPU does more when a second job joins the one on it.

    `mine` and `other` are the shares of their speeds that remain. How well the GPU suits each of
    them (`suits`) tells what that speed is worth; alike, if nothing is known of prices.
    """
    if mine <= 0.0 or other <= 0.0:  # they do not fit
        return -inf
    return mine * suits_me - (1.0 - other) * suits_other


def pays(mine: float, other: float) -> bool:
    """Whether two jobs get clearly more done on one GPU together than one after the other."""
    return gain(mine, other) > GAIN


def together(one: float, other: float, share: float, others: float) -> tuple[float, float]:
    """When two end that share a GPU, the survivor going on alone.

    From the seconds that each needs alone, and the shares of their speeds that remain.
    """
    if share <= 0.0 or others <= 0.0:
        return inf, inf
    if one / share <= other / others:
        end = one / share
        return end, end + max(other - end * others, 0.0)
    end = other / others
    return end + max(one - end * share, 0.0), end


class Company(Struct, frozen=True):
    """A job that has a GPU to itself, which another could share."""

    mine: float
    """Seconds that the newcomer needs there alone, with a restart if it would have to move."""
    other: float
    """Seconds that the one who is there needs alone."""
    share: float
    """What is left of the newcomer's speed beside it."""
    others: float
    """What is left of its speed beside the newcomer."""
    here: bool = False
    """They share already."""


def burden(company: Company) -> float:
    """The newcomer's own time and the delay of the other."""
    mine, other = together(company.mine, company.other, company.share, company.others)
    if mine == inf:
        return inf
    whole = mine + max(other - company.other, 0.0)
    return whole * STAY if company.here else whole


def join(companies: Sequence[Company]) -> int | None:
    """Whom to join if there is no GPU alone: the number of the best; None: rather wait."""
    paying = [
        (burden(each), number)
        for number, each in enumerate(companies)
        if pays(each.share, each.others)
    ]
    return min(paying)[1] if paying else None


# ------------------------------------------------------------- the earliest end of all


def prices(
    demands: Iterable[Seconds], supply: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """What a GPU of each model costs, the dearest 1.0, so that all models are equally busy.

    A demand is GPU-seconds by model, of one job or of a family's jobs together: only what is
    measured apart need be counted apart. `before` are the last prices: starting from them, a
    round or two is enough.
    """
    models = [model for model, gpus in supply.items() if gpus > 0]
    wanted = [
        found
        for each in demands
        if (found := [(place, each[m]) for place, m in enumerate(models) if each.get(m, 0.0) > 0])
    ]
    price = [before.get(model, 1.0) for model in models]
    gpus = [supply[model] for model in models]
    for _ in range(ROUNDS):
        loads = _loads(wanted, price, gpus)
        mean = sum(load * n for load, n in zip(loads, gpus, strict=True)) / max(sum(gpus), 1e-9)
        if mean <= 0.0 or max(loads) - min(loads) <= EVEN * mean:
            break
        # An idle model becomes cheaper step by step: to nothing at once would bring everybody.
        price = [
            each * max(load / mean, 0.05) ** PACE for each, load in zip(price, loads, strict=True)
        ]
        dearest = max(price)
        price = [max(each / dearest, CHEAPEST) for each in price]
    return dict(zip(models, price, strict=True))


def _loads(
    wanted: list[list[tuple[int, float]]], price: list[float], gpus: list[float]
) -> list[float]:
    """Seconds of work for each model when all divide theirs by what it costs."""
    loads = [0.0] * len(price)
    for demand in wanted:
        costs = [seconds * price[place] for place, seconds in demand]
        least = min(costs)
        weights = [(least / each) ** SHARP for each in costs]
        whole = sum(weights)
        for (place, seconds), weight in zip(demand, weights, strict=True):
            loads[place] += seconds * weight / whole / gpus[place]
    return loads


def suits(seconds: Seconds, price: Mapping[str, float]) -> dict[str, float]:
    """How well each model suits a job: 1.0 where it is cheapest, 0.5 where it costs twice that.

    Whoever finds its best model full goes into what is left by this, the best-suited job first.
    """
    costs = {model: each * price[model] for model, each in seconds.items() if model in price}
    least = min(costs.values(), default=0.0)
    return {model: least / each if each > 0.0 else 1.0 for model, each in costs.items()}


def home(seconds: Seconds, price: Mapping[str, float], now: str | None = None) -> str | None:
    """The model on which a job is cheapest; the one it has now, unless another clearly is."""
    fitness = suits(seconds, price)
    if not fitness:
        return None
    best = max(fitness, key=lambda model: fitness[model])
    return now if now is not None and fitness.get(now, 0.0) >= STAY else best


def least_loss(waiting: Mapping[Key, Mapping[str, float]], free: Iterable[str]) -> Key | None:
    """Who of those without a place loses least on the models that have room; of equals, the first.

    By what `suits` says of each. The place to take is the free model that suits it best.
    """
    open_ = set(free)
    best, most = None, 0.0
    for key, fitness in waiting.items():
        found = max((fitness.get(model, 0.0) for model in open_), default=0.0)
        if found > most:
            best, most = key, found
    return best
