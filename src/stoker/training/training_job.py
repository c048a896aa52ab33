"""Job: counts epochs and steps, writes the report, and stops on request."""

from __future__ import annotations

import os
import sys
from time import perf_counter, time

from stoker.training.reports.earlier_reports import EarlierReports, program_id, read
from stoker.training.reports.files import Files
from stoker.training.reports.metrics import format_lines
from stoker.training.runtime import checkpoints
from stoker.training.runtime.attempt_fence import AttemptFence
from stoker.training.runtime.environment import Environment, child_process, helper_process
from stoker.training.runtime.step_timer import StepTimer
from stoker.training.runtime.stop_protocol import StopProtocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeVar

    from stoker.training.runtime.timed_loader import TimedLoader

    Batch = TypeVar("Batch")

STOPPED_EXIT_CODE = 75
"""Exit code of a process that stops on request (EX_TEMPFAIL: try again later)."""
MAX_EPOCHS = 10**9
"""A larger number of epochs means "until the loop is left"."""
ROLE_CHECK_SECONDS = 1.0
"""Minimum time between two checks whether this process reports for the job."""
FENCE_CHECK_SECONDS = 1.0
"""Minimum time between two checks within an epoch whether this attempt is the newest."""


class Job(StepTimer):
    """One process of a training job. Nothing here blocks or raises, except for a requested stop."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._environment = environment = Environment(environ)
        self.epochs_done = environment.epochs_done
        """Epochs that were counted when this attempt, or this process of it, started."""
        self.restarted = environment.restarted
        """Whether earlier epochs are counted, so that there is a checkpoint to resume from."""
        self._heartbeat = environment.heartbeat
        self._files = Files(environment.reports) if environment.reports else None
        self._stop_protocol = StopProtocol(self._files, environment.epochs)
        self._creator_pid = os.getpid()
        self._rank = environment.rank
        self._update_role()
        self._earlier_reports = self._read_earlier_reports()
        self._stopped = self._earlier_reports.stopped is not None
        self.apart = self._earlier_reports.apart
        """Whether this is another training than the one that stoker counts and may stop."""
        self.epoch = self.epochs_done
        """The number of the current or next epoch; the first is 0."""
        self._in_epoch = False
        self._loop_ended = False
        """Whether a loop over epochs has ended."""
        self._epochs_started = 0
        self._has_trained = False
        """Whether an epoch has ended."""
        self._hello_pid = 0
        """The process that has written hello: a forked one is another."""
        self._epoch_started_at = 0.0
        self._role_checked_at = self._fence_checked_at = 0.0
        # Before the script loads a checkpoint: from now on, no older attempt replaces it.
        directory = checkpoints.directory(environment)
        attempt = max(0, environment.number("STOKER_ATTEMPT") or 0)
        self._fence = AttemptFence(os.path.basename(directory), attempt)
        self.protect(directory)
        if not child_process():
            self._write_hello()

    # ------------------------------------------------------------------ the loop over epochs

    def epochs(self, total: int | None = None) -> Iterator[int]:
        """Yield the numbers of the remaining epochs; `total` unless the job requests another."""
        self.begin_loop()
        given = _to_epochs(total)
        requested = self._environment.epochs
        end = requested if requested is not None else 1 if given is None else given
        self._stop_protocol.set_total(end)
        for epoch in range(self.epochs_done, end):
            self.start_epoch(epoch)
            try:
                yield epoch
            except GeneratorExit:
                # The script has left the loop or failed; if it exits with 0, this epoch is counted.
                self.end_epoch()
                self._loop_ended = True
                raise
            self.end_epoch()
        self._loop_ended = True

    def begin_loop(self) -> None:
        """Begin a loop over epochs; any after the first is that of another training."""
        if self._loop_ended:
            self.apart = True
            self.epochs_done, self.restarted = 0, False
        elif self._epochs_started and self.epoch > self.epochs_done:
            self.apart = True  # an error ended the first loop, and this one starts over

    def steps(self, loader: Iterable[Batch]) -> TimedLoader[Batch]:
        """Return the batches of a loader, each measured when the next is requested."""
        from stoker.training.runtime.timed_loader import TimedLoader

        return TimedLoader(self, loader)

    def start_epoch(self, epoch: int | None = None) -> None:
        """Begin an epoch: all before it are counted. The job stops here if that is requested."""
        if self._stopped and self._is_rank():
            self._exit_again()
        self.check_current()
        given = _to_epochs(epoch)
        if given is not None and self._epochs_started and given < self.epoch:
            self.apart = True  # epochs start over: another fit, another fold
        if self._in_epoch and given == self.epoch:
            self._in_epoch = False  # an error ended it, and it is repeated
        elif self._in_epoch:
            self.end_epoch()
        self.epoch = self.epoch if given is None else given
        requested = self._environment.epochs
        if requested is not None and self.epoch >= requested:
            self.apart = True
        if self._is_counted():
            self._update_role()
            has_trained = self._has_trained or self._earlier_reports.ended
            if self._stop_protocol.must_stop(
                self.epoch, self._first, self._peers, self._nodes, has_trained
            ):
                self._stop()
            self._write_hello()
            total = self._stop_protocol.total
            # A huge number means "until the loop is left" and says nothing about the duration.
            total_field = f',"n":{total}' if total is not None and total <= MAX_EPOCHS else ""
            self._write(f'{{"k":"start","e":{self.epoch}{total_field},"t":{time():.3f}}}')
        self._epochs_started += 1
        self._close_steps()
        self._in_epoch = True
        self._epoch_started_at = perf_counter()

    def end_epoch(self) -> None:
        """End an epoch, including validation; it is counted when the next one begins."""
        if not self._in_epoch:
            return
        seconds = perf_counter() - self._epoch_started_at
        steps = self._steps
        self._stop_protocol.on_epoch_end(seconds, steps)
        self._in_epoch = False
        self._has_trained = True
        self._write(
            f'{{"k":"end","e":{self.epoch},"d":{seconds:.6f},"n":{steps},'
            f'"s":{self._mean():.6g},"t":{time():.3f}}}'
        )
        self.epoch += 1

    # --------------------------------------------------------------------- reports

    def report(
        self, metrics: Mapping[str, object] | None = None, /, step: object = None, **more: object
    ) -> None:
        """Record metrics: `job.report(loss=loss, step=step)`, or a mapping of names to values.

        Every call appends a line to the report at once and does nothing else.
        """
        if self._files is None:
            return
        at = time()
        if not ROLE_CHECK_SECONDS > at - self._role_checked_at >= 0:
            self._role_checked_at = at
            self._update_role()
            self._write_hello()
        if not self._first or not self._is_counted():
            return
        values = _merge(metrics, more)
        # Metrics reported after the end of an epoch belong to that epoch.
        epoch = self.epoch if self._in_epoch else max(0, self.epoch - 1)
        for line in format_lines(epoch, at, step, values):
            self._files.append_line(line)

    def should_stop(self) -> bool:
        """Return True if this process will stop at the next start of an epoch.

        With several processes, call it after the last step of an epoch: there all agree.
        """
        if not self._is_counted():
            return False
        next_epoch = self.epoch + 1 if self._in_epoch else self.epoch
        steps = self._steps if self._in_epoch else None
        has_trained = self._in_epoch or self._has_trained or self._earlier_reports.ended
        return self._stop_protocol.will_stop(
            next_epoch, steps, self._first, self._peers, has_trained
        )

    def on_script_exit(self) -> None:
        """Report the end of the training if the script ends without an error."""
        failed = hasattr(sys, "last_type") or self._in_epoch or self._stopped
        trained = self._loop_ended or (self._epochs_started and self._hello_pid == os.getpid())
        if failed or not trained or self._earlier_reports.apart or not self._is_rank():
            return
        self._write_hello()
        if self._first and self._files is not None:
            self._files.append_line(f'{{"k":"done","e":{self.epoch},"t":{time():.3f}}}')

    # ------------------------------------------------------------------------- checkpoints

    @property
    def checkpoint_dir(self) -> str:
        """The directory for checkpoints, shared by all attempts of the job; created if missing.

        An attempt that a newer one has replaced stops here, instead of saving.
        """
        directory = checkpoints.make(checkpoints.directory(self._environment))
        self.protect(directory)
        self.check_current()
        return directory

    def protect(self, directory: str) -> None:
        """Let no older attempt of this job save to a directory any more, if it exists."""
        if self._is_rank():
            self._fence.mark(directory)

    def check_current(self) -> None:
        """Exit if a newer attempt of this job has started; call it before every save."""
        newer = self._fence.newer_attempt() if self._is_rank() else None
        if newer is not None:
            self._stopped = True
            self._print(f"attempt {newer} of this job has started; this one stops without saving")
            raise SystemExit(STOPPED_EXIT_CODE)

    @property
    def checkpoint(self) -> str | None:
        """The newest file in that directory that looks like a checkpoint, None without one."""
        return checkpoints.newest(checkpoints.directory(self._environment))

    @property
    def attached(self) -> bool:
        """Return True if stoker runs this process."""
        return self._files is not None

    @property
    def has_started(self) -> bool:
        """Return True if this process has started an epoch; then no checkpoint is loaded."""
        return self._epochs_started > 0

    @property
    def is_silent(self) -> bool:
        """Return True if another process reports for the job."""
        return not self._first or child_process()

    def _beat(self, steps: int) -> None:
        """Write the `steps` file once per heartbeat."""
        super()._beat(steps)
        if self._files is None or not self._first:
            return
        at = self._last_step_at
        if at - self._fence_checked_at >= FENCE_CHECK_SECONDS:
            self._fence_checked_at = at
            self.check_current()  # the script may save without asking for the directory again
        done = self.iterations
        self._due = steps + self._heartbeat - done % self._heartbeat
        if steps == 1 or done % self._heartbeat or not self._is_counted():
            return
        self._files.write_steps(
            f'{{"e":{self.epoch},"n":{steps},"s":{self._mean():.6g},"t":{time():.3f}}}'
        )
        if self._peers and self._stop_protocol.is_undecided:
            self._stop_protocol.decide_within_epoch(self.epoch, steps, self._nodes)

    # ------------------------------------------------------------------------- the report

    def _update_role(self) -> None:
        """Read rank and peers: a script may join a process group after it created its job."""
        self._first = self._environment.first
        self._peers = self._environment.peers
        self._nodes = self._environment.nodes

    def _read_earlier_reports(self) -> EarlierReports:
        """Find out whether an earlier process of this attempt has trained, and continue it."""
        if self._files is None:
            return EarlierReports()
        child = child_process()
        earlier = read(f"{self._files.directory}/report")
        if self._nodes > 1:
            # The processes on other nodes cannot read it, and all must start alike.
            earlier.reporters.clear()
        earlier.evaluate(program_id(child), alone=self._first and not self._peers and not child)
        if earlier.apart:
            self.epochs_done, self.restarted = 0, False
        elif earlier.counted:
            self.epochs_done = max(self.epochs_done, earlier.counted)
            self.restarted = self.epochs_done > 0
        return earlier

    def _is_rank(self) -> bool:
        """Return True if this process is a rank of the job, not a worker that loads data."""
        if self._files is None or helper_process():
            return False
        if os.getpid() == self._creator_pid:
            return True
        # A forked process is a rank only if it joined a process group or got another rank.
        return self._environment.in_process_group or self._environment.rank not in (
            None,
            self._rank,
        )

    def _is_counted(self) -> bool:
        """Return True if this process is part of the training that stoker counts."""
        return not self.apart and self._is_rank()

    def _write(self, line: str) -> None:
        if self._first and self._files is not None and self._is_counted():
            self._files.append_line(line)

    def _write_hello(self) -> None:
        pid = os.getpid()
        if self._hello_pid == pid or self._files is None or not self._is_rank():
            return
        self._hello_pid = pid
        if self._first and not self._stopped:
            program = program_id(child_process())
            self._files.append_line(
                f'{{"k":"hello","t":{time():.3f},"pid":{pid},"v":1,"w":"{program}"}}'
            )

    def _stop(self) -> None:
        """Report the stop and exit; the job is started again later."""
        self._write(f'{{"k":"stopped","e":{self.epoch},"t":{time():.3f}}}')
        self._stopped = True
        self._print(f"stopping before epoch {self.epoch} as requested; the job resumes later")
        raise SystemExit(STOPPED_EXIT_CODE)

    def _exit_again(self) -> None:
        """Exit: the attempt has stopped before, in this process or in an earlier one."""
        stopped = self._earlier_reports.stopped
        if stopped is not None:
            self._print(f"stopped before epoch {stopped} as requested; the job resumes later")
        raise SystemExit(STOPPED_EXIT_CODE)

    def _print(self, text: str) -> None:
        if not self._first:
            return
        try:
            print(f"stoker: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            pass  # stderr is closed

    def __deepcopy__(self, memo: object) -> Job:
        return self  # a model that refers to it may be copied

    def __reduce__(self) -> tuple[object, tuple[()]]:
        from stoker.training import attach

        return attach, ()


def _merge(metrics: object, more: dict[str, object]) -> dict[str, object]:
    """Return all metrics of one report by name; ignore `metrics` if it is not a mapping."""
    if metrics is None:
        return more
    try:
        return {**dict(metrics), **more}  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - the training continues in any case
        return more


def _to_epochs(value: object) -> int | None:
    """Return a number of epochs, None if the value is not one."""
    try:
        epochs = int(value)  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - a value of the script may raise anything
        return None
    return epochs if epochs >= 0 else None
