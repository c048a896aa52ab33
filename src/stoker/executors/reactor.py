"""The port to the loop: callbacks for descriptors and timers, with asyncio's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A timer that has not fired yet."""

    def cancel(self) -> None:
        """Never call back; safe to repeat, and after it has fired."""


class Reactor(Protocol):
    """Calls back in the loop's thread."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back whenever a descriptor is readable."""

    def remove_reader(self, fd: int, /) -> None:
        """Forget a descriptor, also one of `add_writer`; safe to repeat."""

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back once, when a descriptor can be written to."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> TimerHandle:
        """Call back once, after `delay` seconds."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> None:
        """Call back once, as soon as possible; may be used by any thread."""
