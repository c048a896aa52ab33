"""What each user has had lately, and by how much that puts them back."""

from __future__ import annotations

from math import floor, log2

from msgspec import Struct

HALF_LIFE = 7 * 86400.0
"""Seconds after which what somebody has had counts half."""
EVERY = 300.0
"""Seconds between two looks at who has had how much."""
MOST_AHEAD, MOST_BEHIND = -2.0, 4.0
"""Nobody is put further forward or back than this, in doublings of a job's service."""
STEP = 0.5
LITTLE = 3600.0
"""GPU-seconds below which nobody tells users apart."""


class Had(Struct, array_like=True):
    """GPU-seconds that somebody had, as they count at one moment."""

    service: float = 0.0
    at: float = 0.0

    def by(self, at: float) -> float:
        """What is left of it at a later moment."""
        return self.service * 2 ** (-max(at - self.at, 0.0) / HALF_LIFE)


class Holding(Struct):
    """What somebody holds now: GPUs, and those times when each was taken."""

    gpus: float = 0.0
    since: float = 0.0

    def by(self, at: float) -> float:
        """GPU-seconds used."""
        return max(self.gpus * at - self.since, 0.0)


class Usage:
    """Who has had how much, of those for whom that counts."""

    def __init__(self, had: dict[str, Had]) -> None:
        self.had = had
        """What has come to its end; kept with the state."""
        self.holding: dict[str, Holding] = {}

    def begins(self, user: str, gpus: float, at: float) -> None:
        """Somebody holds GPUs from now on."""
        holding = self.holding.setdefault(user, Holding())
        holding.gpus += gpus
        holding.since += gpus * at

    def ends(self, user: str, gpus: float, since: float, at: float) -> None:
        """Somebody has given GPUs back that were taken then."""
        holding = self.holding.get(user)
        if holding is None:
            return
        holding.gpus -= gpus
        holding.since -= gpus * since
        if holding.gpus < 1e-9:
            del self.holding[user]
        had = self.had.get(user, Had(0.0, at))
        self.had[user] = Had(had.by(at) + gpus * max(at - since, 0.0), at)

    def of(self, user: str, at: float) -> float:
        """GPU-seconds that count at this moment."""
        had, holding = self.had.get(user), self.holding.get(user)
        return (had.by(at) if had else 0.0) + (holding.by(at) if holding else 0.0)

    def handicaps(self, users: list[str], at: float) -> dict[str, float]:
        """By how many doublings each stands back against the average of those who are here."""
        if len(users) < 2:
            return dict.fromkeys(users, 0.0)
        counts = {user: self.of(user, at) + LITTLE for user in users}
        average = sum(counts.values()) / len(counts)
        return {
            user: min(max(_step(log2(count / average)), MOST_AHEAD), MOST_BEHIND)
            for user, count in counts.items()
        }


def _step(level: float) -> float:
    return floor(level / STEP + 0.5) * STEP
