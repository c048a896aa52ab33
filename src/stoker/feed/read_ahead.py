"""ReadAheadStream: `stoker feed` keeps some lines pending, so that no device is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.client.errors import StokerError
from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.line_reader import LineReader
from stoker.feed.progress import Progress
from stoker.feed.submit_environment import DRAINING, NO_GPU

READ_AHEAD = 256
"""Lines that wait in the queue beyond those that run: enough to never starve a device."""


class ReadAheadStream(JobStream):
    """Submits lines a little ahead of the devices, and counts their outcomes."""

    def __init__(
        self,
        lines: LineReader,
        gpu_names: Sequence[str],
        progress: Progress,
        options: dict[str, object],
    ) -> None:
        super().__init__(lines, gpu_names)
        self.progress, self.options = progress, options

    def wants_input(self, pending: int) -> bool:
        """Read on while few lines are pending and in memory."""
        return pending < READ_AHEAD and not self.lines.is_full(READ_AHEAD)

    def free_slots(self, pending: int, exits: int) -> int:
        """Submit one batch at a time, when half of the pending lines have started."""
        return int(self.lines.may_take and pending < READ_AHEAD // 2)

    def next_batch(self, pending: int) -> Batch | None:
        """Return as many lines as fill the read-ahead."""
        taken = self.lines.take(READ_AHEAD - pending)
        self.progress.skip(self.lines.take_skipped())
        return Batch({"lines": taken}, self.options) if taken else None

    def on_submitted(self, batch: Batch, first: int, last: int) -> None:
        """Remember the ids."""
        self.progress.submitted(first, last)

    def on_rejected(self, batch: Batch, error: StokerError) -> StokerError:
        """End the feed: all lines have the same options, so the next would be rejected too."""
        return error

    def on_finished(self, job: FinishedJob) -> None:
        """Count the outcome."""
        self.progress.ended(job.state, job.started, job.view)

    def show_progress(self, running: Callable[[], int]) -> None:
        """Draw the progress line."""
        self.progress.skip(self.lines.take_skipped())
        if self.progress.tty:
            self.progress.running = running()
            self.progress.draw()

    def next_update(self) -> float | None:
        """Return when the progress line may be drawn again."""
        return self.progress.due()

    def on_drain(self) -> None:
        """Print that no more lines are started."""
        self.progress.say(DRAINING)

    def on_stopped(self) -> None:
        """Count the lines that were not run."""
        self.progress.stopped(self.lines.buffered)

    def warn(self, text: str) -> None:
        """Print it above the progress line."""
        self.progress.warn(text)

    def on_no_gpus(self) -> None:
        """Run the lines on cores instead."""
        if self.options.pop("gpus", None):
            self.progress.warn(NO_GPU)

    @property
    def exit_code(self) -> int:
        """0 when every line that was read succeeded."""
        return self.progress.code
