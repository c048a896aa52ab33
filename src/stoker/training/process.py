"""The job that a training script is part of: it counts, it tells, and it stops when asked."""

from __future__ import annotations

import os
import sys
from time import perf_counter, time

from stoker.training import checkpoints
from stoker.training.files import Files
from stoker.training.stopping import Stopping
from stoker.training.surroundings import Surroundings, child_process, helper_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeVar

    from stoker.training.steps import Steps

    Batch = TypeVar("Batch")

STOPPED = 75
"""The exit code of a process that stops because it was asked to (EX_TEMPFAIL: try again later)."""
SELDOM = 1.0
"""Seconds between two lines of metrics."""


class Job:
    """One process of a training job. Nothing here blocks or raises but the stop asked for."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._around = around = Surroundings(environ)
        self.epochs_done = around.epochs_done
        """How many epochs counted when this attempt began."""
        self.restarted = around.restarted
        """Whether earlier epochs count, so that there is a checkpoint to go on from."""
        self.epoch = self.epochs_done
        """The number of the epoch that runs, or comes next; the first of all is 0."""
        self._every = around.heartbeat
        self._files = Files(around.reports) if around.reports else None
        self._stopping = Stopping(self._files, around.epochs)
        self._owner = os.getpid()
        self._look_around()
        self._open = False
        self._said_hello = False
        self._began = 0.0
        self._metrics: dict[str, float] = {}
        self._told_metrics = 0.0
        # The steps of this epoch, the clock of its first and last; then those of earlier epochs.
        self._steps = 0
        self._clock = self._started = 0.0
        self._earlier = 0
        self._earlier_seconds = 0.0
        self._due = 1
        if not child_process():
            self._hello()

    # ------------------------------------------------------------------ the loop of a script

    def epochs(self, total: int | None = None) -> Iterator[int]:
        """The epochs still to be done, by their numbers; `total` if none was asked for."""
        asked = self._around.epochs
        end = asked if asked is not None else 1 if total is None else total
        for epoch in range(self.epochs_done, end):
            self.start_epoch(epoch)
            yield epoch
            self.end_epoch()

    def steps(self, loader: Iterable[Batch]) -> Steps[Batch]:
        """The batches of a loader, each measured when the next is asked for."""
        from stoker.training.steps import Steps

        return Steps(self, loader)

    def measure(self) -> None:
        """A training step is over. The first call in an epoch only starts the clock."""
        self._steps = steps = self._steps + 1
        self._clock = perf_counter()
        if steps >= self._due:
            self._beat(steps)

    def start_epoch(self, epoch: int | None = None) -> None:
        """An epoch begins, so all before it count; here the job stops if it was asked to."""
        if self._open:
            self.end_epoch()
        if epoch is not None:
            self.epoch = epoch
        if self._speaks():
            self._look_around()
            if self._stopping.due_at(self.epoch, self._first, self._peers, self._nodes):
                self._stop()
            self._hello()
            self._say(f'{{"k":"start","e":{self.epoch},"t":{time():.3f}}}')
        self._close_steps()
        self._open = True
        self._began = perf_counter()

    def end_epoch(self) -> None:
        """An epoch is over, validation and all; it counts when the next one begins."""
        if not self._open:
            return
        seconds = perf_counter() - self._began
        steps = self._steps
        self._stopping.epoch_over(seconds, steps)
        self._flush()
        self._open = False
        self._say(
            f'{{"k":"end","e":{self.epoch},"d":{seconds:.6f},"n":{steps},'
            f'"s":{self._mean():.6g},"t":{time():.3f}}}'
        )
        self.epoch += 1

    # --------------------------------------------------------------------- what it can say

    def report(self, /, **metrics: object) -> None:
        """Figures to show: `job.report(loss=loss, accuracy=0.9)`. Once a second they are told."""
        for name, value in metrics.items():
            number = _number(value)
            if number is not None:
                self._metrics[name] = number
        if not self._told_metrics or perf_counter() - self._told_metrics >= SELDOM:
            self._flush()

    def should_stop(self) -> bool:
        """Whether this process will stop at the next start of an epoch.

        With several processes, ask after the last step of an epoch: there all get one answer.
        """
        if not self._speaks():
            return False
        after = self.epoch + 1 if self._open else self.epoch
        steps = self._steps if self._open else None
        return self._stopping.coming(after, steps, self._first, self._peers)

    # ------------------------------------------------------------------------- checkpoints

    @property
    def checkpoint_dir(self) -> str:
        """The directory for checkpoints, shared by all attempts of the job."""
        return checkpoints.make(checkpoints.directory(self._around))

    @property
    def checkpoint(self) -> str | None:
        """The newest file in there."""
        return checkpoints.newest(checkpoints.directory(self._around))

    @property
    def attached(self) -> bool:
        """Whether stoker runs this process."""
        return self._files is not None

    @property
    def quiet(self) -> bool:
        """Whether another process speaks for the job."""
        return not self._first or child_process()

    # -------------------------------------------------------------------------- measured

    @property
    def iterations(self) -> int:
        """Steps measured so far, in all epochs."""
        return self._earlier + max(0, self._steps - 1)

    @property
    def mean_iteration_duration(self) -> float:
        """Mean seconds of those."""
        seconds = self._earlier_seconds + (self._clock - self._started)
        return seconds / self.iterations if self.iterations else 0.0

    def _mean(self) -> float:
        """Mean seconds of a step in this epoch; 0: not known."""
        return (self._clock - self._started) / (self._steps - 1) if self._steps > 1 else 0.0

    def _close_steps(self) -> None:
        self._earlier_seconds += self._clock - self._started
        self._earlier = self.iterations
        self._steps = 0
        self._clock = self._started = 0.0
        self._due = 1

    def _beat(self, steps: int) -> None:
        """What measure() does once in a while."""
        if steps == 1:
            self._started = self._clock
        done = self.iterations
        if self._files is None or not self._first:
            self._due = sys.maxsize
            return
        self._due = steps + self._every - done % self._every
        if steps == 1 or done % self._every or not self._speaks():
            return
        self._files.tell_steps(
            f'{{"e":{self.epoch},"n":{steps},"s":{self._mean():.6g},"t":{time():.3f}}}'
        )
        if self._peers and self._stopping.undecided:
            self._stopping.decide_within(self.epoch, steps, self._nodes)

    # ------------------------------------------------------------------------- speaking

    def _look_around(self) -> None:
        """Who we are among our peers: a script may join them after it has made its job."""
        self._first = self._around.first
        self._peers = self._around.peers
        self._nodes = self._around.nodes

    def _speaks(self) -> bool:
        """Whether this process is a rank of the job, not a copy that loads its data."""
        if self._files is None or helper_process():
            return False
        # A forked process is a rank only if it has joined the others as one.
        return os.getpid() == self._owner or self._around.grouped

    def _say(self, line: str) -> None:
        if self._first and self._files is not None and self._speaks():
            self._files.say(line)

    def _hello(self) -> None:
        if not self._said_hello:
            self._said_hello = True
            self._say(f'{{"k":"hello","t":{time():.3f},"pid":{os.getpid()},"v":1}}')

    def _flush(self) -> None:
        """Tell the metrics that were not told yet."""
        if not self._metrics:
            return
        if not self._told_metrics:
            import atexit

            atexit.register(self._flush)
        self._told_metrics = perf_counter()
        from stoker.training.metrics import line

        # After the end of an epoch its figures still belong to it.
        epoch = self.epoch if self._open else max(0, self.epoch - 1)
        self._say(line(epoch, time(), self._metrics))
        self._metrics = {}

    def _stop(self) -> None:
        """All that was done counts; leave, to be started again."""
        self._flush()
        if self._first:
            self._say(f'{{"k":"stopped","e":{self.epoch},"t":{time():.3f}}}')
            told = f"stoker: stopping before epoch {self.epoch} as asked; it will go on later"
            try:
                print(told, file=sys.stderr, flush=True)
            except (OSError, ValueError, AttributeError):
                pass  # nobody reads stderr, or it is closed
        raise SystemExit(STOPPED)

    def __deepcopy__(self, memo: object) -> Job:
        return self  # a model that holds it may be copied; the process remains one

    def __reduce__(self) -> tuple[object, tuple[()]]:
        from stoker.training import attach

        return attach, ()


def _number(value: object) -> float | None:
    """A finite number, if this is one or holds one."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        item = getattr(value, "item", None)
        number = float(item() if callable(item) else value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - what a tensor may raise is not ours to know
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN: JSON has none
