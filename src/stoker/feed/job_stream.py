"""The work of a feed: it says which lines go out, and hears how they end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stoker.feed.line_reader import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stoker.client.errors import StokerError


class Batch:
    """What is submitted together: many lines, or one script; and what it asks for."""

    __slots__ = ("options", "slot", "what")

    def __init__(
        self, what: dict[str, Any], options: dict[str, object], slot: object = None
    ) -> None:
        self.what, self.options = what, options
        self.slot = slot
        """Whatever the work wants to remember of it."""


class FinishedJob:
    """How a job of ours ended."""

    __slots__ = ("id", "note", "started", "state", "view")

    def __init__(
        self,
        id: int,
        state: str,
        started: bool,
        note: str | None,
        view: Callable[[], dict[str, Any]],
    ) -> None:
        self.id, self.state, self.started, self.note = id, state, started, note
        self.view = view
        """The whole job, for whoever wants to look closely."""


class JobStream(ABC):
    """Lines to be run. A driver asks it what to submit, and tells it what became of that."""

    waits_for_ends = False
    """Whether a line goes out only when another has ended: the driver then looks at ends first."""
    trusts_names = False
    """Whether devices that a running daemon does not know are used all the same."""

    def __init__(self, lines: Lines, named: Sequence[str]) -> None:
        self.lines = lines
        self.named = list(named)
        """The devices that the person named."""

    @abstractmethod
    def hungry(self, waiting: int) -> bool:
        """Whether more input should be read; `waiting` of our jobs have not started."""

    @abstractmethod
    def openings(self, waiting: int, news: int) -> int:
        """How many lots may go out in this turn, in which `news` have come."""

    @abstractmethod
    def next(self, waiting: int) -> Batch | None:
        """The next lot, or None when there is none to be had now."""

    @abstractmethod
    def submitted(self, lot: Batch, first: int, last: int) -> None:
        """The lot has become these jobs."""

    @abstractmethod
    def refused(self, lot: Batch, error: StokerError) -> StokerError | None:
        """The lot has not become jobs; return the error if it is the end of everything."""

    @abstractmethod
    def ended(self, end: FinishedJob) -> None:
        """One of the jobs is over."""

    @abstractmethod
    def turned(self, running: Callable[[], int]) -> None:
        """Something may have happened: show it."""

    @abstractmethod
    def due(self) -> float | None:
        """Seconds until `turned` should be called again, even if nothing happens."""

    def interrupted(self) -> None:  # noqa: B027 - most only count what is cancelled
        """What runs is about to be cancelled, and no more lots will be asked for."""

    @abstractmethod
    def draining(self) -> None:
        """No more lots will be asked for; what runs goes on."""

    @abstractmethod
    def stopped(self) -> None:
        """It was ended before the input was."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Say something once."""

    def without_gpus(self) -> None:  # noqa: B027 - most name their devices
        """There is no GPU here, and none was named."""

    @property
    @abstractmethod
    def code(self) -> int:
        """The exit code, if no signal decides it."""
