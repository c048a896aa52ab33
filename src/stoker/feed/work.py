"""What both ways to feed have in common: the work, which says what goes out and hears of ends."""

from __future__ import annotations

from stoker.feed.lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stoker.client.errors import StokerError


class Lot:
    """What is submitted together: many lines, or one script; and what it asks for."""

    __slots__ = ("options", "slot", "what")

    def __init__(
        self, what: dict[str, Any], options: dict[str, object], slot: object = None
    ) -> None:
        self.what, self.options = what, options
        self.slot = slot
        """Whatever the work wants to remember of it."""


class End:
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


class Work:
    """Lines to be run. The driver asks it what to submit, and tells it what became of that."""

    waits_for_ends = False
    """Whether a line goes out only when another has ended: the driver then looks at ends first."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def hungry(self, waiting: int) -> bool:
        """Whether more input should be read; `waiting` of our jobs have not started."""
        raise NotImplementedError

    def openings(self, waiting: int, news: int) -> int:
        """How many lots may go out in this turn, in which `news` have come."""
        raise NotImplementedError

    def next(self, waiting: int) -> Lot | None:
        """The next lot, or None when there is none to be had now."""
        raise NotImplementedError

    def submitted(self, lot: Lot, first: int, last: int) -> None:
        """The lot has become these jobs."""
        raise NotImplementedError

    def refused(self, lot: Lot, error: StokerError) -> StokerError | None:
        """The lot has not become jobs; return an error that ends everything."""
        return error

    def ended(self, end: End) -> None:
        """One of the jobs is over."""
        raise NotImplementedError

    def turned(self, running: Callable[[], int]) -> None:
        """Something may have happened: show it."""
        raise NotImplementedError

    def due(self) -> float | None:
        """Seconds until `turned` should be called again, whatever happens."""
        raise NotImplementedError

    def draining(self) -> None:
        """No more lots will be asked for; what runs goes on."""
        raise NotImplementedError

    def stopped(self) -> None:
        """It was ended before the input was."""
        raise NotImplementedError

    def warn(self, text: str) -> None:
        """Say something once."""
        raise NotImplementedError

    @property
    def code(self) -> int:
        """The exit code."""
        raise NotImplementedError
