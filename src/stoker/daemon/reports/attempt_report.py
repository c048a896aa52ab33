"""One training attempt that speaks: what it has said, what was told of it, and its notes."""

from __future__ import annotations

import contextlib
import logging
import os
from math import inf
from typing import Protocol

from msgspec import Struct, field

from stoker.daemon.reports.format import TrainingReport, read_on

Key = tuple[int, int]

logger = logging.getLogger(__name__)


class Messengers(Protocol):
    """Who reaches attempts on other machines."""

    def ask_to_stop(self, key: Key, why: str) -> None:
        """Ask the first part of an attempt to stop at its next safe point."""

    def name_stop(self, key: Key, part: int, epoch: int) -> None:
        """Tell another part before which epoch all of them stop."""


class AttemptReport(Struct):
    """An attempt that has said something, and what has become of that."""

    key: Key
    path: str | None
    """Its directory; None when it is on another machine."""
    report: TrainingReport = field(default_factory=TrainingReport)
    beside: str | None = None
    """For one on another machine: where the figures are that were found in its output here."""
    aside: TrainingReport = field(default_factory=TrainingReport)
    """What stands there."""
    read_at: float = -inf
    began: bool = False
    """Whether we have told that it trains."""
    told: int = 0
    """How many epochs we have told."""
    figures: dict[str, float] | None = None
    """The metrics that we have told last."""
    named: int | None = None
    """The epoch that was told to its other parts."""
    due: float | None = None
    """When it must be over, having said that it stops; infinity once that was told."""

    def read(self) -> bool:
        """Take a piece of what is in files here; whether there is more."""
        if self.path is not None:
            return bool(read_on(f"{self.path}/report", self.report))
        if self.beside is not None:
            return bool(read_on(f"{self.beside}/report", self.aside))
        return False


def leave_word(path: str, name: str, text: str, label: str) -> None:
    """Write a file into an attempt's directory, whole or not at all."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        fd = os.open(f"{path}/{name}.new", flags | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)
        os.rename(f"{path}/{name}.new", f"{path}/{name}")
    except OSError as error:
        logger.warning("cannot write %s/%s for job %s: %s", path, name, label, error)


def take_back(path: str) -> None:
    """Take back the wish to stop, unless its processes have agreed by now where they do."""
    if not os.path.lexists(f"{path}/stop_at"):
        with contextlib.suppress(OSError):
            os.unlink(f"{path}/stop")
