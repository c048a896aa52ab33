"""The job that a training script is part of: it counts, it tells, and it stops when asked."""

from __future__ import annotations

import os
import sys
from time import perf_counter, time

from stoker.training import checkpoints
from stoker.training.coerce import whole
from stoker.training.earlier_reports import EarlierReports, program, read
from stoker.training.environment import Environment, child_process, helper_process
from stoker.training.files import Files
from stoker.training.metrics import lines
from stoker.training.step_timer import StepTimer
from stoker.training.stop_protocol import StopProtocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeVar

    from stoker.training.timed_loader import TimedLoader

    Batch = TypeVar("Batch")

STOPPED = 75
"""The exit code of a process that stops because it was asked to (EX_TEMPFAIL: try again later)."""
MOST_EPOCHS = 10**9
"""More than so many are not meant as a number."""
SELDOM = 1.0
"""Seconds between two looks at who speaks for the job, however often it reports."""


class Job(StepTimer):
    """One process of a training job. Nothing here blocks or raises but the stop asked for."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._around = around = Environment(environ)
        self.epochs_done = around.epochs_done
        """How many epochs counted when this attempt, or this process of it, began."""
        self.restarted = around.restarted
        """Whether earlier epochs count, so that there is a checkpoint to go on from."""
        self._every = around.heartbeat
        self._files = Files(around.reports) if around.reports else None
        self._stopping = StopProtocol(self._files, around.epochs)
        self._owner = os.getpid()
        self._rank = around.rank
        self._look_around()
        self._past = self._look_back()
        self._stopped = self._past.stopped is not None
        self.apart = self._past.apart
        """Whether this is another training than the one that stoker counts and may stop."""
        self.epoch = self.epochs_done
        """The number of the epoch that runs, or comes next; the first of all is 0."""
        self._open = False
        self._over = False
        """Whether a loop over epochs has come to its end."""
        self._begun = 0
        self._trained = False
        """Whether one has come to its end."""
        self._greeted = 0
        """The process that has said hello: a forked one is another."""
        self._began = 0.0
        self._looked = 0.0
        if not child_process():
            self._hello()

    # ------------------------------------------------------------------ the loop of a script

    def epochs(self, total: int | None = None) -> Iterator[int]:
        """The epochs still to be done, by their numbers; `total` if none was asked for."""
        self.enter_loop()
        given = whole(total)
        asked = self._around.epochs
        end = asked if asked is not None else 1 if given is None else given
        self._stopping.ends_at(end)
        for epoch in range(self.epochs_done, end):
            self.start_epoch(epoch)
            try:
                yield epoch
            except GeneratorExit:
                # The script has had enough, or failed; if it ends well, this epoch counts.
                self.end_epoch()
                self._over = True
                raise
            self.end_epoch()
        self._over = True

    def enter_loop(self) -> None:
        """A loop over epochs begins: after the first one, that of another training."""
        if self._over:
            self.apart = True
            self.epochs_done, self.restarted = 0, False
        elif self._begun and self.epoch > self.epochs_done:
            self.apart = True  # an error ended the first one, and this one begins where that did

    def steps(self, loader: Iterable[Batch]) -> TimedLoader[Batch]:
        """The batches of a loader, each measured when the next is asked for."""
        from stoker.training.timed_loader import TimedLoader

        return TimedLoader(self, loader)

    def start_epoch(self, epoch: int | None = None) -> None:
        """An epoch begins, so all before it count; here the job stops if it was asked to."""
        if self._stopped and self._takes_part():
            self._leave()
        given = whole(epoch)
        if given is not None and self._begun and given < self.epoch:
            self.apart = True  # they begin anew: another fit, another fold
        if self._open and given == self.epoch:
            self._open = False  # an error ended it, and it is tried again
        elif self._open:
            self.end_epoch()
        self.epoch = self.epoch if given is None else given
        asked = self._around.epochs
        if asked is not None and self.epoch >= asked:
            self.apart = True
        if self._speaks():
            self._look_around()
            begun = self._trained or self._past.ended
            if self._stopping.due_at(self.epoch, self._first, self._peers, self._nodes, begun):
                self._stop()
            self._hello()
            total = self._stopping.total
            # "Until I break out of it" is a number, too, but says nothing of how long it takes.
            of = f',"n":{total}' if total is not None and total <= MOST_EPOCHS else ""
            self._say(f'{{"k":"start","e":{self.epoch}{of},"t":{time():.3f}}}')
        self._begun += 1
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
        self._open = False
        self._trained = True
        self._say(
            f'{{"k":"end","e":{self.epoch},"d":{seconds:.6f},"n":{steps},'
            f'"s":{self._mean():.6g},"t":{time():.3f}}}'
        )
        self.epoch += 1

    # --------------------------------------------------------------------- what it can say

    def report(
        self, metrics: Mapping[str, object] | None = None, /, step: object = None, **more: object
    ) -> None:
        """Figures to keep: `job.report(loss=loss, step=step)`, or a mapping of names to figures.

        Every call is a line of the job's record, written at once; nothing else is done then.
        """
        if self._files is None:
            return
        at = time()
        if not SELDOM > at - self._looked >= 0:
            self._looked = at
            self._look_around()
            self._hello()
        if not self._first or not self._speaks():
            return
        figures = _together(metrics, more)
        # After the end of an epoch its figures still belong to it.
        epoch = self.epoch if self._open else max(0, self.epoch - 1)
        for line in lines(epoch, at, step, figures):
            self._files.say(line)

    def should_stop(self) -> bool:
        """Whether this process will stop at the next start of an epoch.

        With several processes, ask after the last step of an epoch: there all get one answer.
        """
        if not self._speaks():
            return False
        after = self.epoch + 1 if self._open else self.epoch
        steps = self._steps if self._open else None
        begun = self._open or self._trained or self._past.ended
        return self._stopping.coming(after, steps, self._first, self._peers, begun)

    def script_over(self) -> None:
        """At the end of the process: if it is a good one, the training is over, too."""
        failed = hasattr(sys, "last_type") or self._open or self._stopped
        trained = self._over or (self._begun and self._greeted == os.getpid())
        if failed or not trained or self._past.apart or not self._takes_part():
            return
        self._hello()
        if self._first and self._files is not None:
            self._files.say(f'{{"k":"done","e":{self.epoch},"t":{time():.3f}}}')

    # ------------------------------------------------------------------------- checkpoints

    @property
    def checkpoint_dir(self) -> str:
        """The directory for checkpoints, shared by all attempts of the job."""
        return checkpoints.make(checkpoints.directory(self._around))

    @property
    def checkpoint(self) -> str | None:
        """The newest file in there that looks like one."""
        return checkpoints.newest(checkpoints.directory(self._around))

    @property
    def attached(self) -> bool:
        """Whether stoker runs this process."""
        return self._files is not None

    @property
    def underway(self) -> bool:
        """Whether this process has begun to train; a checkpoint is for the first to begin."""
        return self._begun > 0

    @property
    def quiet(self) -> bool:
        """Whether another process speaks for the job."""
        return not self._first or child_process()

    def _beat(self, steps: int) -> None:
        """What measure() does once in a while."""
        super()._beat(steps)
        if self._files is None or not self._first:
            return
        done = self.iterations
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

    def _look_back(self) -> EarlierReports:
        """Whether an earlier process of this attempt has trained, and what that means for us."""
        if self._files is None:
            return EarlierReports()
        child = child_process()
        past = read(f"{self._files.directory}/report")
        if self._nodes > 1:
            # The processes on other machines cannot read it, and all must begin alike.
            past.speakers.clear()
        past.judge(program(child), alone=self._first and not self._peers and not child)
        if past.apart:
            self.epochs_done, self.restarted = 0, False
        elif past.counted:
            self.epochs_done = max(self.epochs_done, past.counted)
            self.restarted = self.epochs_done > 0
        return past

    def _takes_part(self) -> bool:
        """Whether this process is a rank of the job, not a copy that loads its data."""
        if self._files is None or helper_process():
            return False
        if os.getpid() == self._owner:
            return True
        # A forked process is a rank only if it has joined the others as one, or was called one.
        return self._around.grouped or self._around.rank not in (None, self._rank)

    def _speaks(self) -> bool:
        """Whether it is part of the training that stoker counts."""
        return not self.apart and self._takes_part()

    def _say(self, line: str) -> None:
        if self._first and self._files is not None and self._speaks():
            self._files.say(line)

    def _hello(self) -> None:
        pid = os.getpid()
        if self._greeted == pid or self._files is None or not self._takes_part():
            return
        self._greeted = pid
        if self._first and not self._stopped:
            who = program(child_process())
            self._files.say(f'{{"k":"hello","t":{time():.3f},"pid":{pid},"v":1,"w":"{who}"}}')

    def _stop(self) -> None:
        """All that was done counts; leave, to be started again."""
        self._say(f'{{"k":"stopped","e":{self.epoch},"t":{time():.3f}}}')
        self._stopped = True
        self._explain(f"stopping before epoch {self.epoch} as requested; the job resumes later")
        raise SystemExit(STOPPED)

    def _leave(self) -> None:
        """It was stopped before: in this process, which went on all the same, or in another."""
        stopped = self._past.stopped
        if stopped is not None:
            self._explain(f"stopped before epoch {stopped} as requested; the job resumes later")
        raise SystemExit(STOPPED)

    def _explain(self, text: str) -> None:
        if not self._first:
            return
        try:
            print(f"stoker: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            pass  # nobody reads stderr, or it is closed

    def __deepcopy__(self, memo: object) -> Job:
        return self  # a model that holds it may be copied; the process remains one

    def __reduce__(self) -> tuple[object, tuple[()]]:
        from stoker.training import attach

        return attach, ()


def _together(metrics: object, more: dict[str, object]) -> dict[str, object]:
    """All figures of one report, by name; what is no mapping is none."""
    if metrics is None:
        return more
    try:
        return {**dict(metrics), **more}  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - whatever it is, the training goes on
        return more
