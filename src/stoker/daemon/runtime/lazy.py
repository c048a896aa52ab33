"""Lazy: an object that is built, and its modules imported, when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """Builds its value once."""

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self.value: T | None = None
        """None until `get` is called."""

    def get(self) -> T:
        """Return the value, built now if it was not before."""
        if self.value is None:
            self.value = self._build()
        return self.value
