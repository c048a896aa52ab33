"""Prices of GPU models: what counts is where a job is fast compared with other jobs (after Gavel).

Every model has a price per GPU-second, such that all models are equally loaded when every job goes
where it is cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PRICE_SHARPNESS = 12.0
"""Preference for the cheaper model: one that costs 10 % more gets a third of the load."""
PRICE_ROUNDS = 20
"""Price corrections per plan: most converge in ten."""


def equilibrium_prices(
    demands: Iterable[Mapping[str, float]], supply: Mapping[str, float]
) -> dict[str, float]:
    """Return the price of each model, the highest 1.0, at which all models are equally loaded.

    A demand is GPU-seconds by model, of one job or of all jobs of a profile together; `supply` is
    the number of GPUs by model.
    """
    possible = (
        {model: seconds for model, seconds in demand.items() if seconds > 0 and model in supply}
        for demand in demands
    )
    demands = list(filter(None, possible))
    prices = dict.fromkeys(supply, 1.0)
    for _ in range(PRICE_ROUNDS if demands else 0):
        loads = _loads(demands, prices, supply)
        mean = sum(loads[model] * gpus for model, gpus in supply.items()) / sum(supply.values())
        # The price of an idle model falls step by step: at price zero all jobs would want it. Loads
        # react with PRICE_SHARPNESS, and must not overshoot.
        prices = {
            model: price * max(loads[model] / mean, 0.05) ** (1 / PRICE_SHARPNESS)
            for model, price in prices.items()
        }
        highest = max(prices.values())
        prices = {model: price / highest for model, price in prices.items()}
    return prices


def _loads(
    demands: Iterable[Mapping[str, float]], prices: Mapping[str, float], supply: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of work per GPU of each model if demands are divided by price."""
    loads = dict.fromkeys(prices, 0.0)
    for demand in demands:
        lowest = min(seconds * prices[model] for model, seconds in demand.items())
        weights = {
            model: (lowest / (seconds * prices[model])) ** PRICE_SHARPNESS
            for model, seconds in demand.items()
        }
        total = sum(weights.values())
        for model, seconds in demand.items():
            loads[model] += seconds * weights[model] / total / supply[model]
    return loads
