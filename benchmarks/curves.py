"""Synthetic learning curves: what trials of a sweep would report.

Three families of errors; smaller is better. Hyperparameters determine the final value of a curve,
its speed and its noise; curves cross, because the fastest start is not the best end; some diverge.
Early values predict the end only partly: this was tuned by hand, before the rules were compared on
other seeds.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any

from stoker.sweep.sampling.samplers import points

STEPS = 81
"""Steps of a full training."""
Params = dict[str, Any]
Shape = Callable[[Params, Random], tuple[Callable[[int], float], float, float]]
"""Of hyperparameters: the curve without noise, its noise, and seconds per step."""

LR = {"distribution": "log_uniform", "min": 1e-4, "max": 1.0}


def images(params: Params, dice: Random) -> tuple[Callable[[int], float], float, float]:
    """Power laws: the best final learning rate is lower than the fastest initial one."""
    rate, decay, width = math.log10(params["lr"]), math.log10(params["decay"]), params["width"]
    batch = math.log2(params["batch"] / 64)
    off = rate + 1.7 - 0.15 * batch
    end = 0.05 + 0.03 * off**2 + 0.008 * (decay + 4) ** 2 + 0.012 * math.log2(512 / width)
    speed = 0.25 + 0.65 / (1 + math.exp(-2.5 * (off - 0.3))) + dice.uniform(-0.05, 0.05)
    seconds = 30 * (width / 128) ** 0.5 * 0.85**batch
    if off > 1.3 + dice.uniform(-0.3, 0.3):
        bad = dice.randint(1, 8)
        return lambda step: math.nan if step >= bad else 0.9, 0.01, seconds
    return lambda step: end + (0.9 - end) * (step + 1) ** -speed, 0.006, seconds


def texts(params: Params, dice: Random) -> tuple[Callable[[int], float], float, float]:
    """Exponentials: dropout slows training down and prevents late overfitting."""
    off, layers, drop = (
        math.log10(params["lr"]) + 2.5,
        int(params["layers"]),
        float(params["dropout"]),
    )
    end = 2.9 + 0.25 * off**2 + 1.5 * (drop - 0.2) ** 2 - 0.04 * layers + dice.uniform(0, 0.05)
    pace = (4 + 12 * drop + 0.3 * layers) * 10 ** (0.45 * abs(off - 0.5))
    turn, climb = 25 + 120 * drop, 0.004 * max(0.3 - drop, 0.0) * layers
    breaks = dice.randint(2, 40) if off > 1.2 and dice.random() < 0.5 else STEPS + 1

    def at(step: int) -> float:
        if step >= breaks:
            return math.nan
        return end + (7 - end) * math.exp(-step / pace) + climb * max(step - turn, 0.0)

    return at, 0.03, 12 + 5 * layers


def schedules(params: Params, dice: Random) -> tuple[Callable[[int], float], float, float]:
    """Plateaus until the rate is lowered: early values say little about late ones."""
    off, smooth = math.log10(params["lr"]) + 1.5, float(params["smoothing"])
    end = 0.2 + 0.05 * off**2 + 0.3 * (smooth - 0.1) ** 2 + dice.uniform(0, 0.04)
    plateau = end + 0.12 + 0.10 * max(off, -0.5) + dice.uniform(-0.05, 0.05)
    pace, lowered = 4 * 10 ** (-0.5 * off), params["lowered"]

    def at(step: int) -> float:
        early = plateau + (1.0 - plateau) * math.exp(-step / pace)
        if step < lowered:
            return early
        return end + (early - end) * math.exp(-(step - lowered) / 3)

    return at, 0.01, 30.0


FAMILIES: dict[str, tuple[Shape, Params]] = {
    "images": (
        images,
        {
            "lr": LR,
            "decay": {"distribution": "log_uniform", "min": 1e-6, "max": 1e-2},
            "width": {"distribution": "int_log_uniform", "min": 32, "max": 512},
            "batch": {"values": [32, 64, 128, 256]},
        },
    ),
    "texts": (
        texts,
        {
            "lr": LR,
            "dropout": {"distribution": "uniform", "min": 0.0, "max": 0.6},
            "layers": {"distribution": "int_uniform", "min": 2, "max": 12},
        },
    ),
    "schedules": (
        schedules,
        {
            "lr": LR,
            "smoothing": {"distribution": "uniform", "min": 0.0, "max": 0.5},
            "lowered": {"values": [30, 45, 60]},
        },
    ),
}


class LearningCurve:
    """One training: the reported value of each step, computed lazily."""

    def __init__(self, family: str, seed: int, params: Params) -> None:
        told = f"{family} {seed} {sorted(params.items())}".encode()
        dice = Random(blake2b(told, digest_size=8).digest())
        at, noise, self.seconds = FAMILIES[family][0](params, dice)
        self.seen: list[float] = []
        self.true: list[float] = []
        self._coming = _reports(at, noise, dice)

    def reported(self, step: int) -> float:
        """Return the reported value of a step, from 1."""
        self._look(step)
        return self.seen[step - 1]

    def really(self, step: int) -> float:
        """Return the value of a step without noise."""
        self._look(step)
        return self.true[step - 1]

    def _look(self, step: int) -> None:
        while len(self.seen) < step:
            seen, true = next(self._coming)
            self.seen.append(seen)
            self.true.append(true)


def _reports(
    at: Callable[[int], float], noise: float, dice: Random
) -> Iterator[tuple[float, float]]:
    """Yield values with autocorrelated noise."""
    drift = 0.0
    for step in range(1, STEPS + 1):
        true = at(step)
        drift = 0.6 * drift + dice.gauss(0, noise * (1 + 2 / step))
        yield true + drift, true


class TrialPool:
    """The trials of one random sweep, the same for all rules."""

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.seed = family, seed
        self.parameters = FAMILIES[family][1]
        self._made: list[tuple[Params, LearningCurve]] = []

    def __getitem__(self, number: int) -> tuple[Params, LearningCurve]:
        while len(self._made) <= number:
            more = points(self.definition, len(self._made), 64)
            self._made += [(each, self.curve(each)) for each in more]
        return self._made[number]

    @property
    def definition(self) -> dict[str, Any]:
        """Return the definition of the sweep."""
        return {
            "method": "random", "parameters": self.parameters, "samples": None, "seed": self.seed,
        }  # fmt: skip

    def curve(self, params: Params) -> LearningCurve:
        """Return the training of a point."""
        return LearningCurve(self.family, self.seed, params)


@cache
def best_value(family: str) -> float:
    """Return the best of many full trainings without noise."""
    pool = TrialPool(family, 10_000)
    ends = (pool[number][1].really(STEPS) for number in range(1000))
    return min(end for end in ends if not math.isnan(end))
