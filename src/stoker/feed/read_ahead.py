"""The work of `stoker feed`: some lines always wait in the queue, so that no device does."""

from __future__ import annotations

from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.line_reader import Lines
from stoker.feed.submit_environment import DRAINING, NO_GPU

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stoker.client.errors import StokerError
    from stoker.feed.progress import Progress

READ_AHEAD = 256
"""Lines that wait in the queue beyond those that run: enough to never starve a device."""


class ReadAheadStream(JobStream):
    """Submits lines a little ahead of the devices, and counts how they end."""

    def __init__(
        self, lines: Lines, named: Sequence[str], progress: Progress, options: dict[str, object]
    ) -> None:
        super().__init__(lines, named)
        self.progress, self.options = progress, options

    def hungry(self, waiting: int) -> bool:
        """While there is room for more in the queue and in memory."""
        return waiting < READ_AHEAD and not self.lines.full(READ_AHEAD)

    def openings(self, waiting: int, news: int) -> int:
        """One lot at a time, and not for a handful of lines while others wait."""
        return int(self.lines.at_hand and waiting < READ_AHEAD // 2)

    def next(self, waiting: int) -> Batch | None:
        """As many lines as keep the devices busy, and no more."""
        taken = self.lines.take(READ_AHEAD - waiting)
        self.progress.leave_out(self.lines.excuses())
        return Batch({"lines": taken}, self.options) if taken else None

    def submitted(self, lot: Batch, first: int, last: int) -> None:
        """Remember which jobs are ours."""
        self.progress.submitted(first, last)

    def refused(self, lot: Batch, error: StokerError) -> StokerError:
        """All lines ask for the same, so the next would be refused as well."""
        return error

    def ended(self, end: FinishedJob) -> None:
        """Count it."""
        self.progress.ended(end.state, end.started, end.view)

    def turned(self, running: Callable[[], int]) -> None:
        """Draw the moving line."""
        self.progress.leave_out(self.lines.excuses())
        if self.progress.tty:
            self.progress.running = running()
            self.progress.draw()

    def due(self) -> float | None:
        """When the moving line may move."""
        return self.progress.due()

    def draining(self) -> None:
        """Say so."""
        self.progress.say(DRAINING)

    def stopped(self) -> None:
        """Count what was not run."""
        self.progress.stopped(self.lines.waiting)

    def warn(self, text: str) -> None:
        """Say it above the moving line."""
        self.progress.warn(text)

    def without_gpus(self) -> None:
        """The lines run on the cores."""
        if self.options.pop("gpus", None):
            self.progress.warn(NO_GPU)

    @property
    def code(self) -> int:
        """0 when every line that was read succeeded."""
        return self.progress.code
