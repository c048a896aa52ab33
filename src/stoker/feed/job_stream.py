"""JobStream: which lines of a feed are submitted when, and what is done when they finish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from stoker.client.errors import StokerError
from stoker.feed.line_reader import LineReader
from stoker.wire import JsonObject


class Batch:
    """What is submitted together: many lines, or one script; and its options."""

    __slots__ = ("options", "slot", "what")

    def __init__(self, what: JsonObject, options: dict[str, object], slot: object = None) -> None:
        self.what, self.options = what, options
        self.slot = slot
        """Anything that the stream wants to find again when the batch is submitted."""


class FinishedJob:
    """The outcome of one job."""

    __slots__ = ("id", "note", "started", "state", "view")

    def __init__(
        self, id: int, state: str, started: bool, note: str | None, view: Callable[[], JsonObject]
    ) -> None:
        self.id, self.state, self.started, self.note = id, state, started, note
        self.view = view
        """Returns the whole job view."""


class JobStream(ABC):
    """Lines to be run. Its runner asks it what to submit, and reports what became of that."""

    waits_for_ends = False
    """Whether a line is submitted only when another has finished: ends are then counted first."""
    accepts_unknown_gpus = False
    """Whether GPUs are used that a running daemon does not know."""

    def __init__(self, lines: LineReader, gpu_names: Sequence[str]) -> None:
        self.lines = lines
        self.gpu_names = list(gpu_names)
        """The GPUs that the user named."""

    @abstractmethod
    def wants_input(self, pending: int) -> bool:
        """Return whether to read more input; `pending` jobs of the stream have not started."""

    @abstractmethod
    def free_slots(self, pending: int, exits: int) -> int:
        """Return how many batches may be submitted in this turn, in which `exits` jobs exited."""

    @abstractmethod
    def next_batch(self, pending: int) -> Batch | None:
        """Return the next batch, or None if there is none now."""

    @abstractmethod
    def on_submitted(self, batch: Batch, first: int, last: int) -> None:
        """Take note that a batch has become these jobs."""

    @abstractmethod
    def on_rejected(self, batch: Batch, error: StokerError) -> StokerError | None:
        """Take note that a batch was rejected; return the error if it ends the whole feed."""

    @abstractmethod
    def on_finished(self, job: FinishedJob) -> None:
        """Take note that a job has finished."""

    @abstractmethod
    def show_progress(self, running: Callable[[], int]) -> None:
        """Show what has happened."""

    @abstractmethod
    def next_update(self) -> float | None:
        """Return the seconds until `show_progress` is due even if nothing happens."""

    def on_interrupt(self) -> None:  # noqa: B027 - most streams only count cancelled jobs
        """Take note that running jobs are about to be cancelled and no batch follows."""

    @abstractmethod
    def on_drain(self) -> None:
        """Take note that no batch follows; running jobs continue."""

    @abstractmethod
    def on_stopped(self) -> None:
        """Take note that the feed ended before its input."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Print a warning, once."""

    def on_no_gpus(self) -> None:  # noqa: B027 - most streams name their GPUs
        """Take note that there is no GPU, and none was named."""

    @property
    @abstractmethod
    def exit_code(self) -> int:
        """The exit code, unless a signal ended the feed."""
