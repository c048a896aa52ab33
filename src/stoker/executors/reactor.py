"""The port to the loop: callbacks for descriptors and timers, with asyncio's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RETRY_SECONDS = 1.0
"""Delay of the next try after the callback of a timer failed."""


class TimerHandle(Protocol):
    """A call in the future."""

    @property
    def due(self) -> float:
        """Its time on the reactor's clock."""

    def cancel(self) -> None:
        """Never call back; safe to repeat, and after it has fired."""


class Reactor(Protocol):
    """Calls back in the loop's thread."""

    def time(self) -> float:
        """Return the time of the timers' clock, in seconds."""

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


class Timer:
    """One callback at the earliest of all requested times; it returns the seconds to the next."""

    def __init__(self, reactor: Reactor, callback: Callable[[], float | None]) -> None:
        self._reactor, self._callback = reactor, callback
        self._handle: TimerHandle | None = None
        self.__qualname__ = callback.__qualname__
        """Names the callback in reports of internal errors."""

    @property
    def is_set(self) -> bool:
        """Whether a call is due at some time."""
        return self._handle is not None

    def request(self, seconds: float) -> None:
        """Call back within this time."""
        if self._handle is not None:
            if self._handle.due <= self._reactor.time() + seconds:
                return
            self._handle.cancel()
        self._handle = self._reactor.call_later(seconds, self)

    def cancel(self) -> None:
        """Forget all requests."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def __call__(self) -> None:
        """Call back now; if that fails, again after a pause."""
        self.cancel()
        try:
            seconds = self._callback()
        except Exception:
            self.request(RETRY_SECONDS)
            raise
        if seconds is not None:
            self.request(seconds)
