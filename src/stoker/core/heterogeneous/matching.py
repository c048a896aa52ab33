"""Matching of jobs and GPU models: pure arithmetic on expected seconds (after Gavel, OSDI'20).

Input are the seconds that a job still needs on each model, measured for its profile or estimated
from other profiles. The order of jobs and what is free are decided elsewhere.

**Mean completion time.** Jobs choose in the planner's order. A job that holds `n` GPUs for `t`
seconds ends after `t` and keeps all later jobs from `n` GPUs for `t`. So it goes where
`t × (1 + n × opportunity cost)` is smallest: without later jobs where it is fastest; with many a
job that is hardly faster on a fast GPU leaves it to one that is. Its current placement counts a
fifth less, since estimates are not exact and a move may displace others.

**Makespan.** Every model has a price per GPU-second, such that all models are equally loaded when
every job goes where it is cheapest: what counts is not where a job is fast but where it is fast
compared with other jobs. The longest job chooses first. When all jobs can run, the longest goes
where it ends first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeVar

from msgspec import Struct

MOVE_HYSTERESIS = 0.8
"""Cost of another placement relative to the current one, at most, for a move to pay."""
CROWDING_WEIGHT = 0.5
"""Opportunity cost of a GPU of the fastest model when as many GPUs are requested as exist."""
PRICE_SHARPNESS = 12.0
"""Preference for the cheaper model: one that costs 10 % more gets a third of the load."""
PRICE_STEP = 0.7 / PRICE_SHARPNESS
"""Exponent of a price correction: loads react with PRICE_SHARPNESS and must not overshoot."""
PRICE_TOLERANCE = 0.01
"""Difference of loads, relative to their mean, that counts as equal."""
MAX_PRICE_ROUNDS = 80
"""Price corrections per plan: most converge in ten to thirty."""
MIN_PRICE = 0.001
"""Price of a model without load: not zero, since the next job may want it."""

Key = TypeVar("Key")
Seconds = Mapping[str, float]
"""Expected seconds by GPU model; models on which the job cannot run are missing."""


def typical_speeds(profiles: Iterable[Seconds]) -> dict[str, float]:
    """Return the seconds by model of the typical profile; the fastest model needs 1.0.

    Each profile counts by its ratios only, relative to the model that most were measured on.
    """
    compared = [seconds for seconds in profiles if len(seconds) > 1]
    counts: dict[str, int] = {}
    for seconds in compared:
        for model in seconds:
            counts[model] = counts.get(model, 0) + 1
    if not counts:
        return {}
    from statistics import median  # most daemons never get here, and it is slow to import

    common = min(counts, key=lambda model: (-counts[model], model))
    medians = {}
    for model in sorted(counts):
        ratios = [
            seconds[model] / seconds[common]
            for seconds in compared
            if model in seconds and common in seconds
        ]
        if ratios:
            medians[model] = median(ratios)
    fastest = min(medians.values())
    return {model: ratio / fastest for model, ratio in medians.items()}


def expected_seconds(
    measured: Seconds, typical: Seconds, models: Iterable[str]
) -> dict[str, float]:
    """Return the seconds on each model: measured, else in the typical ratio to what was measured.

    A model without any measurement counts as the fastest measured one, so that it is tried.
    Empty if nothing was measured.
    """
    if not measured:
        return {}
    from statistics import median

    scales = [measured[model] / typical[model] for model in measured if model in typical]
    scale = median(scales) if scales else None
    fastest = min(measured.values())
    expected = {}
    for model in models:
        if model in measured:
            expected[model] = measured[model]
        elif scale is not None and model in typical:
            expected[model] = typical[model] * scale
        else:
            expected[model] = fastest
    return expected


# -- mean completion time -------------------------------------------------------------------


class Option(Struct, frozen=True):
    """A placement that a job could have now."""

    model: str
    seconds: float
    """Seconds until the job ends there, with the restart if it would have to move."""
    is_preferred: bool = False
    """Whether the job is there already, or was to go there by the last plan."""


def opportunity_cost(typical: Seconds, requested: float, gpus: float) -> dict[str, float]:
    """Return the delay of later jobs per second and GPU held, by model.

    `requested` are the GPUs that later jobs request, `gpus` all that exist.
    """
    crowding = CROWDING_WEIGHT * min(requested / gpus, 1.0) if gpus > 0 else 0.0
    fastest = min(typical.values(), default=1.0)
    return {model: crowding * fastest / seconds for model, seconds in typical.items()}


def cost(option: Option, gpus: float, opportunity_costs: Mapping[str, float]) -> float:
    """Return the job's own time and the delay of later jobs."""
    seconds = option.seconds * (1.0 + gpus * opportunity_costs.get(option.model, 0.0))
    return seconds * MOVE_HYSTERESIS if option.is_preferred else seconds


def choose(
    options: Iterable[Option], gpus: float, opportunity_costs: Mapping[str, float]
) -> Option | None:
    """Return the cheapest option; of equal ones, the first."""
    best = min(options, key=lambda option: cost(option, gpus, opportunity_costs), default=None)
    return best if best is not None and best.seconds < inf else None


# -- makespan -------------------------------------------------------------------------------


def equilibrium_prices(demands: Iterable[Seconds], supply: Mapping[str, float]) -> dict[str, float]:
    """Return the price of each model, the highest 1.0, at which all models are equally loaded.

    A demand is GPU-seconds by model, of one job or of all jobs of a profile together.
    """
    models = [model for model, gpus in supply.items() if gpus > 0]
    indexed_demands = [
        indexed
        for seconds in demands
        if (
            indexed := [
                (index, seconds[model])
                for index, model in enumerate(models)
                if seconds.get(model, 0.0) > 0
            ]
        )
    ]
    prices = [1.0] * len(models)
    gpus = [supply[model] for model in models]
    for _ in range(MAX_PRICE_ROUNDS):
        loads = _loads(indexed_demands, prices, gpus)
        mean = sum(load * n for load, n in zip(loads, gpus, strict=True)) / max(sum(gpus), 1e-9)
        if mean <= 0.0 or max(loads) - min(loads) <= PRICE_TOLERANCE * mean:
            break
        # The price of an idle model falls step by step: at price zero all jobs would want it.
        prices = [
            price * max(load / mean, 0.05) ** PRICE_STEP
            for price, load in zip(prices, loads, strict=True)
        ]
        highest = max(prices)
        prices = [max(price / highest, MIN_PRICE) for price in prices]
    return dict(zip(models, prices, strict=True))


def _loads(
    demands: list[list[tuple[int, float]]], prices: list[float], gpus: list[float]
) -> list[float]:
    """Return the seconds of work per GPU of each model if demands are divided by price."""
    loads = [0.0] * len(prices)
    for demand in demands:
        costs = [seconds * prices[index] for index, seconds in demand]
        lowest = min(costs)
        weights = [(lowest / cost) ** PRICE_SHARPNESS for cost in costs]
        total = sum(weights)
        for (index, seconds), weight in zip(demand, weights, strict=True):
            loads[index] += seconds * weight / total / gpus[index]
    return loads


def relative_fitness(seconds: Seconds, prices: Mapping[str, float]) -> dict[str, float]:
    """Return how well each model suits a job: 1.0 where it is cheapest, 0.5 at twice that cost."""
    costs = {model: time * prices[model] for model, time in seconds.items() if model in prices}
    lowest = min(costs.values(), default=0.0)
    return {model: lowest / cost if cost > 0.0 else 1.0 for model, cost in costs.items()}


def cheapest_model(
    seconds: Seconds, prices: Mapping[str, float], current: str | None = None
) -> str | None:
    """Return the model on which a job is cheapest; the current one unless it costs much more."""
    fitness = relative_fitness(seconds, prices)
    if not fitness:
        return None
    best = max(fitness, key=lambda model: fitness[model])
    is_good_enough = current is not None and fitness.get(current, 0.0) >= MOVE_HYSTERESIS
    return current if is_good_enough else best


def least_regret(fitness_by_job: Mapping[Key, Mapping[str, float]]) -> tuple[Key, str] | None:
    """Return the job that loses least on a model with free GPUs, and the model."""
    best: tuple[Key, str] | None = None
    best_fitness = 0.0
    for key, fitness in fitness_by_job.items():
        for model, value in fitness.items():
            if value > best_fitness:
                best, best_fitness = (key, model), value
    return best
