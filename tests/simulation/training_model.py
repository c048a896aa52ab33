"""TrainingModel: modelled epochs, memory use and reports of training processes."""

from __future__ import annotations

from msgspec import Struct

STOPS = 75
"""The exit code of a process that stopped because it was asked to."""


class TrainingModel(Struct, frozen=True, kw_only=True):
    """How a training script behaves, whatever the planner believes of it."""

    epochs: int = 5
    seconds: float = 20.0
    """An epoch on one GPU."""
    scaling: float = 0.9
    """Twice the GPUs are 2 ** this times as fast."""
    warmup: float = 3.0
    """Seconds until its library speaks up and the first epoch begins."""
    memory: tuple[int, ...] = (2000,)
    """MiB on each GPU from each epoch on, counted over all attempts; the last for the rest."""
    ignores: bool = False
    """It never looks whether it is asked to stop."""
    dies_after: int | None = None
    """So many epochs into this attempt it fails, having begun another."""
    figures: tuple[float | None, ...] = ()
    """What it reports after each epoch, counted over all attempts; the last for the rest."""
    rungs: tuple[int, ...] = ()
    """The epochs after which it is compared with other trials of its sweep."""

    def epoch(self, gpus: int) -> float:
        """Seconds that one takes."""
        return self.seconds / float(max(gpus, 1) ** self.scaling)

    def uses(self, epoch: int) -> int:
        """MiB of each of its GPUs."""
        return self.memory[min(epoch, len(self.memory) - 1)]

    def figure(self, epoch: int) -> float | None:
        """What it reports after so many epochs, if anything."""
        return self.figures[min(epoch, len(self.figures)) - 1] if self.figures and epoch else None


class LaunchInfo(Struct, frozen=True):
    """What an attempt learns from its environment."""

    gpus: tuple[str, ...] = ()
    epochs_done: int = 0


class Line(Struct, frozen=True):
    """One line of a report."""

    what: str
    """`hello`, `start`, `figure`, `memory` or `stopped`."""
    time: float
    value: int = 0
    """The epoch, or MiB."""
    seconds: float | None = None
    """What the epoch before took."""
    warmup: float | None = None
    figure: float | None = None


class TrainingRun(Struct):
    """How far a process is with its training."""

    trainee: TrainingModel
    told: LaunchInfo
    began: float
    epoch: int
    """The one that begins next."""
    spoke: bool = False
    failing: bool = False


class ReportFiles:
    """Reports and GPU memory of the training processes of one machine."""

    def __init__(self) -> None:
        self.told: dict[tuple[int, int], LaunchInfo] = {}
        self.reports: dict[tuple[int, int], list[Line]] = {}
        self.stops: set[tuple[int, int]] = set()
        """Attempts that are asked to stop."""
        self.cards: dict[str, int] = {}
        """MiB of each GPU."""
        self.uses: dict[tuple[int, int], int] = {}
        """MiB that a process really has on each of its GPUs."""
        self.short: dict[tuple[int, int], int] = {}
        """Attempts that ran out of it, and what they had until then."""

    def write(self, key: tuple[int, int], line: Line) -> None:
        """Add to a report."""
        self.reports.setdefault(key, []).append(line)

    def crowd(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        """Attempts on a GPU of this one that has too little memory for all; this one last."""
        found: dict[tuple[int, int], None] = {}
        for card in self.told[key].gpus:
            there = [each for each in self.uses if card in self.told[each].gpus]
            if sum(self.uses[each] for each in there) > self.cards.get(card, 1 << 40):
                found.update(dict.fromkeys(there))
        found.pop(key, None)
        short = any(self.uses[key] > self.cards.get(card, 1 << 40) for card in self.told[key].gpus)
        return [*found, key] if found or short else []
