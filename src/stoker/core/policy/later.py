"""What is free once all have stopped who were asked to: a ledger that is kept between cycles.

Somebody stops at its next checkpoint, which may be far, and meanwhile much happens elsewhere. So
only those machines are worked out anew on which something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stoker.core.cluster import Cluster, Node, Placement, Shadow
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy.bars import Bars
from stoker.core.policy.victims import Victims

Held = Mapping[int, Placement]
"""Placements by whose they are."""


class Later(Shadow):
    """The true ledger, but for machines where somebody stops or something is kept."""

    def __init__(self, beneath: Cluster, victims: Victims, can_stop: Callable[[int], bool]) -> None:
        super().__init__(beneath)
        self.bars = Bars(self, victims, can_stop)
        self.changes = 0
        """How often something has changed here."""
        self._touched: dict[str, None] = {}
        """Machines of which it is not sure that all was entered here for good."""
        self._since: dict[str, int] = {}
        """Which change of each machine was the last that is counted here."""
        self._entered: tuple[Held, Held] = ({}, {})

    def changed(self, name: str) -> None:
        """A node stands otherwise than before."""
        super().changed(name)
        self.changes += 1
        self._touched[name] = None

    def own(self, name: str) -> Node:
        """The node of this name, to be changed."""
        node = super().own(name)
        if name not in self._since:
            self._since[name] = self.true.nodes[name].since
        return node

    def doubt(self) -> None:
        """All that is here depends on all else: the next time it is worked out anew."""
        self._touched.update(dict.fromkeys(self.nodes))

    def forget(self, stopping: Held, kept: Held) -> set[str]:
        """Leave out, and say, where other things are true than were entered."""
        true = self.true.nodes
        stale = set(self._touched)
        for name, since in self._since.items():
            if name not in true or true[name].since != since:
                stale.add(name)
        for before, now in zip(self._entered, (stopping, kept), strict=True):
            for each in _differing(before, now):
                stale.update(part.node for part in each.parts)
        self.changes += len(stale)
        for name in stale:
            self._since.pop(name, None)
            if self.nodes.pop(name, None) is not None:
                self._stale[name] = None
                self.shifted.pop(name, None)
        return stale

    def is_entered(self, stopping: Held, kept: Held, anew: Iterable[str]) -> None:
        """From now on, what else is written here is not for good."""
        self._entered = (stopping, dict(kept))
        self._touched.clear()
        for name in anew:
            if name not in self.nodes:
                self.bars.drop(name)


def _differing(before: Held, now: Held) -> list[Placement]:
    """What only one of them has."""
    gone = [each for id, each in before.items() if now.get(id) is not each]
    return gone + [each for id, each in now.items() if before.get(id) is not each]


def can_be_asked(job: Job) -> bool:
    """Whether nobody has asked it to stop, and it runs."""
    if job.state is not JobState.RUNNING or job.placement is None:
        return False
    return job.progress is None or job.progress.stop is None


def is_stopping(job: Job) -> bool:
    """Whether what it holds is free before long. One that is paused does not come to its end."""
    if job.state is JobState.COMPLETING:
        return True
    stop = job.progress.stop if job.progress is not None else None
    return stop is not None and not stop.ignored and job.state is JobState.RUNNING
