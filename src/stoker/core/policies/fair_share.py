"""Fair share: recent GPU-seconds per user with exponential decay, and the resulting penalties."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log2

from msgspec import Struct

from stoker.core.measurement.estimator import COARSE_STEP

HALF_LIFE_SECONDS = 4 * 3600.0
"""Half-life of past usage: short, so that a burst of jobs counts within the hour. With a day, the
other users' short jobs wait for an hour behind a burst (`make bench-planner`, part `burst`)."""
MAX_BONUS, MAX_PENALTY = -2.0, 4.0
"""Bounds of a penalty in doublings of service, so that no user starves or owns the queue."""


class DecayedUsage(Struct, array_like=True):
    """GPU-seconds of ended attempts, decayed up to a point in time."""

    service: float = 0.0
    at: float = 0.0

    def decayed_to(self, at: float) -> float:
        """Return the GPU-seconds decayed to a later time."""
        return self.service * 2 ** (-max(at - self.at, 0.0) / HALF_LIFE_SECONDS)


class CurrentUsage(Struct):
    """GPUs that a user holds now, and the sum of GPUs times their start times."""

    gpus: float = 0.0
    since: float = 0.0


class FairShareUsage:
    """Usage of users in queues with fair share.

    Derived from: starts and ends of attempts; `decayed` is stored with the state.
    """

    def __init__(self, decayed: dict[str, DecayedUsage]) -> None:
        self.decayed = decayed
        """Usage of ended attempts by user."""
        self.current: dict[str, CurrentUsage] = {}
        """Usage of running attempts by user."""

    def charge_start(self, user: str, gpus: float, at: float) -> None:
        """Count GPUs that a user holds from now on."""
        usage = self.current.setdefault(user, CurrentUsage())
        usage.gpus += gpus
        usage.since += gpus * at

    def charge_end(self, user: str, gpus: float, since: float, at: float) -> None:
        """Move the usage of an ended attempt from current to decayed."""
        usage = self.current.get(user)
        if usage is None:
            return
        usage.gpus -= gpus
        usage.since -= gpus * since
        if usage.gpus < 1e-9:
            del self.current[user]
        decayed = self.decayed.get(user, DecayedUsage(0.0, at))
        self.decayed[user] = DecayedUsage(decayed.decayed_to(at) + gpus * max(at - since, 0.0), at)

    def usage_of(self, user: str, at: float) -> float:
        """Return the decayed and current GPU-seconds of a user."""
        decayed = self.decayed.get(user, DecayedUsage())
        current = self.current.get(user, CurrentUsage())
        return decayed.decayed_to(at) + max(current.gpus * at - current.since, 0.0)

    def user_penalties(
        self, users: list[str], at: float, weight_of: Callable[[str], float] = lambda _: 1.0
    ) -> dict[str, float]:
        """Return each user's penalty: doublings of its usage above its part of that of all.

        The parts of these users are as their weights; by default equal.
        """
        least = HALF_LIFE_SECONDS / 4  # so that small differences do not count
        weights = {user: weight_of(user) for user in users}
        usage_by_user = {user: self.usage_of(user, at) + least for user in users}
        average = sum(usage_by_user.values()) / sum(weights.values())
        return {
            user: min(max(_quantize(log2(usage / weights[user] / average)), MAX_BONUS), MAX_PENALTY)
            for user, usage in usage_by_user.items()
        }


def _quantize(level: float) -> float:
    return floor(level / COARSE_STEP + 0.5) * COARSE_STEP
