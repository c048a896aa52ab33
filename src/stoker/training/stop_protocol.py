"""When a job that was asked to stop does so: at the same epoch in all its processes.

A process alone stops at the first start of an epoch that finds the request. Several processes
share every step, but see a file at different moments. So the first of them names an epoch, at a
moment when none of the others can have reached it, and all stop before that one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.training.files import Files

RELAY = 20.0
"""Seconds that stoker may need to tell the processes on other machines."""
MARGIN = 64
"""Steps before the end of an epoch: a gradient collected over several steps is shared late."""


class StopProtocol:
    """What one process knows about the stop of its job."""

    def __init__(self, files: Files | None, total: int | None) -> None:
        self._files = files
        self.total = total
        self._named: int | None = None
        self._steps: int | None = None
        """How many steps an epoch has, as far as we know: the fewest seen."""
        self._seconds: float | None = None
        """How long an epoch takes: the shortest seen."""

    @property
    def undecided(self) -> bool:
        """Whether no epoch was named yet."""
        return self._named is None

    def epoch_over(self, seconds: float, steps: int) -> None:
        """Learn how long an epoch is."""
        self._steps = steps if self._steps is None else min(steps, self._steps)
        self._seconds = seconds if self._seconds is None else min(seconds, self._seconds)

    def ends_at(self, total: int) -> None:
        """So many epochs are trained in all, unless another number was asked for."""
        if self.total is None:
            self.total = total

    def due_at(self, epoch: int, first: bool, peers: bool, nodes: int, begun: bool) -> bool:
        """Whether to stop before this epoch; if not, the first process names one that comes.

        Not before the attempt has `begun`: one that makes room each time before its first epoch
        would never be done. With peers that goes without saying, as the named epoch is to come.
        """
        if self._files is None:
            return False
        named = self._named_epoch()
        if named is not None and epoch >= named:
            return True
        if not first or not self._files.asked():
            return False
        if not peers:
            return begun
        if named is None:
            self._name(epoch, nodes)
        return False

    def decide_within(self, epoch: int, steps: int, nodes: int) -> None:
        """Name an epoch from within one, if the others are sure to need us for more steps of it."""
        if self._files is None or not self._files.asked():
            return
        if self._named_epoch() is not None:
            return
        known = self._steps
        if nodes > 1 or (known is not None and steps < known - 1 - min(known // 4, MARGIN)):
            self._name(epoch, nodes)

    def coming(self, epoch: int, steps: int | None, first: bool, peers: bool, begun: bool) -> bool:
        """Whether this process will stop before this epoch, which comes next.

        `steps` of the current epoch were done; None: all. Before its last steps the processes
        may not see the same, so that they are all told no.
        """
        if self._files is None or (self.total is not None and epoch >= self.total):
            return False
        if not peers:
            return (first and begun and self._files.asked()) or self._reached(epoch)
        if steps is not None and steps < (self._steps or 0) - 1:
            return False
        return self._reached(epoch)

    def _reached(self, epoch: int) -> bool:
        named = self._named_epoch()
        return named is not None and epoch >= named

    def _named_epoch(self) -> int | None:
        if self._named is None and self._files is not None:
            self._named = self._files.stop_at()
        return self._named

    def _name(self, epoch: int, nodes: int) -> None:
        if self._files is None:
            return
        ahead = 1
        if nodes > 1:
            if self._seconds is None:
                return  # nobody can say yet how many epochs the others run on meanwhile
            ahead += -int(-RELAY // max(self._seconds, 1e-3))
        named = epoch + ahead
        if self.total is not None and named >= self.total:
            return  # it is done before
        if self._files.name_stop(named):
            from time import time

            self._named = named
            self._files.say(f'{{"k":"stop_at","e":{named},"t":{time():.3f}}}')
