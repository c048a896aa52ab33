"""StopProtocol: all processes of a job stop before the same epoch.

A single process stops at the first start of an epoch after the request. Several processes share
every step, but read files at different times. So the first one announces an epoch that none of
the others can have reached yet, and all stop before that one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.training.reports.files import Files

RELAY_SECONDS = 20.0
"""Maximum time that stoker needs to forward the epoch to processes on other nodes."""
MARGIN_STEPS = 64
"""Steps before the end of an epoch: with gradient accumulation, ranks synchronize late."""


class StopProtocol:
    """Decides in one process before which epoch it stops."""

    def __init__(self, files: Files | None, total: int | None) -> None:
        self._files = files
        self.total = total
        self._stop_epoch: int | None = None
        self._steps: int | None = None
        """Steps of an epoch: the minimum so far."""
        self._seconds: float | None = None
        """Seconds of an epoch: the minimum so far."""

    @property
    def is_undecided(self) -> bool:
        """Return True if no stop epoch was announced yet."""
        return self._stop_epoch is None

    def on_epoch_end(self, seconds: float, steps: int) -> None:
        """Record the length of an epoch."""
        self._steps = steps if self._steps is None else min(steps, self._steps)
        self._seconds = seconds if self._seconds is None else min(seconds, self._seconds)

    def set_total(self, total: int) -> None:
        """Set the number of epochs, unless the job requests another."""
        if self.total is None:
            self.total = total

    def must_stop(
        self, epoch: int, first: bool, peers: bool, nodes: int, has_trained: bool
    ) -> bool:
        """Return True to stop before this epoch; else the first process may announce a later one.

        An attempt stops only after it `has_trained` an epoch, or it might never make progress.
        With peers this is always so, as the announced epoch is a later one.
        """
        if self._files is None:
            return False
        stop_epoch = self._read_stop_epoch()
        if stop_epoch is not None and epoch >= stop_epoch:
            return True
        if not first or not self._files.is_stop_requested():
            return False
        if not peers:
            return has_trained
        if stop_epoch is None:
            self._announce(epoch, nodes)
        return False

    def decide_within_epoch(self, epoch: int, steps: int, nodes: int) -> None:
        """Announce a stop epoch within an epoch, if the peers cannot end this one without us."""
        if self._files is None or not self._files.is_stop_requested():
            return
        if self._read_stop_epoch() is not None:
            return
        total = self._steps
        if nodes > 1 or (total is not None and steps < total - 1 - min(total // 4, MARGIN_STEPS)):
            self._announce(epoch, nodes)

    def will_stop(
        self, epoch: int, steps: int | None, first: bool, peers: bool, has_trained: bool
    ) -> bool:
        """Return True if this process will stop before this epoch, which is the next one.

        `steps` of the current epoch are done; None: all. Before its last steps the processes
        may read different files, so all of them return False.
        """
        if self._files is None or (self.total is not None and epoch >= self.total):
            return False
        if not peers:
            requested = first and has_trained and self._files.is_stop_requested()
            return requested or self._is_reached(epoch)
        if steps is not None and steps < (self._steps or 0) - 1:
            return False
        return self._is_reached(epoch)

    def _is_reached(self, epoch: int) -> bool:
        stop_epoch = self._read_stop_epoch()
        return stop_epoch is not None and epoch >= stop_epoch

    def _read_stop_epoch(self) -> int | None:
        if self._stop_epoch is None and self._files is not None:
            self._stop_epoch = self._files.read_stop_epoch()
        return self._stop_epoch

    def _announce(self, epoch: int, nodes: int) -> None:
        if self._files is None:
            return
        ahead = 1
        if nodes > 1:
            if self._seconds is None:
                return  # unknown how many epochs the others do meanwhile
            ahead += -int(-RELAY_SECONDS // max(self._seconds, 1e-3))
        stop_epoch = epoch + ahead
        if self.total is not None and stop_epoch >= self.total:
            return  # the training ends before
        if self._files.write_stop_epoch(stop_epoch):
            from time import time

            self._stop_epoch = stop_epoch
            self._files.append_line(f'{{"k":"stop_at","e":{stop_epoch},"t":{time():.3f}}}')
