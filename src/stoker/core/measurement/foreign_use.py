"""Foreign use of GPUs, detected from samples; slow to report a GPU as free again."""

from __future__ import annotations

import msgspec

UNAVAILABLE = "unavailable: "
"""Begins the mark of a GPU that no foreign process uses, and that cannot be used all the same."""


def in_words(mark: str) -> str:
    """Return what a GPU's mark of foreign use means, as the end of a sentence about the GPU."""
    return f"is {mark}" if mark.startswith(UNAVAILABLE) else f"is used by {mark}"


class ForeignProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU that belongs to none of our jobs."""

    pid: int
    user: str
    command: str
    memory: int | None
    """MiB."""
    graphics: bool = False
    """Whether it draws: a desktop counts only when it takes a significant share of the GPU."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU; None where the driver reported nothing."""

    uuid: str
    memory_used: int | None
    memory_total: int | None
    """MiB, both."""
    utilization: int | None
    """Percent."""
    ours: bool
    """Whether a process of our jobs uses it."""
    ours_memory: int | None
    foreign_processes: tuple[ForeignProcess, ...]
    processes_known: bool


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When a GPU counts as used by foreign processes."""

    load: float = 0.10
    """Utilization from which on it is busy."""
    memory: float = 0.10
    """Share of its memory, from which on it is busy."""
    processes: bool = True
    """Whether a foreign compute process suffices, whatever the shares."""
    process_memory: int = 16
    """MiB from which on such a process counts."""
    leave_seconds: float = 5.0
    """Seconds without foreign use before the GPU counts as free: jobs pause between epochs."""


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True):
    """Whether foreign processes use a GPU, and the reason."""

    busy: bool
    foreign_processes: tuple[ForeignProcess, ...]
    """Foreign processes on it now, busy or not."""
    reason: str
    """Text for users; empty while the GPU is free."""


class ForeignUseDetector:
    """Detects foreign use of one GPU."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self._causes: dict[str, str] = {}
        """What makes the GPU busy; empty: it is free."""
        self._clear_since: float | None = None
        self._processes: tuple[ForeignProcess, ...] = ()

    def observe(self, sample: Sample, now: float, settling: bool) -> ForeignUse:
        """Process a sample taken at monotonic time `now`.

        `settling`: an attempt runs on the GPU or ended shortly before, so that load and memory
        that no visible process explains belong to it.
        """
        if sample.processes_known:
            self._processes = sample.foreign_processes
        causes = _causes(sample, self.thresholds, settling)
        if causes:
            self._causes, self._clear_since = causes, None
        elif self._causes.keys() <= _readable(sample):
            # Without the values that made the GPU busy, a sample proves nothing.
            self._clear_since = now if self._clear_since is None else self._clear_since
            if now - self._clear_since >= self.thresholds.leave_seconds:
                self._causes = {}
        reason = next(iter(self._causes.values()), "")
        if reason and self._clear_since is not None:
            seconds = self.thresholds.leave_seconds
            reason += f"; idle now, free after {seconds:g} s without other processes"
        return ForeignUse(busy=bool(self._causes), foreign_processes=self._processes, reason=reason)


def _causes(sample: Sample, limits: Thresholds, settling: bool) -> dict[str, str]:
    """Return what makes a GPU busy in this sample, with a text for each."""
    causes: dict[str, str] = {}
    for process in sample.foreign_processes if limits.processes else ():
        # A process of unknown memory counts: it has a context, without which it could not compute.
        if not process.graphics and (
            process.memory is None or process.memory >= limits.process_memory
        ):
            causes["processes"] = _process_text(process)
            break
    alone = not settling and not sample.ours
    if sample.memory_used is not None and sample.memory_total:
        foreign = sum(process.memory or 0 for process in sample.foreign_processes)
        if alone:
            foreign = max(sample.memory_used - (sample.ours_memory or 0), foreign)
        share = foreign / sample.memory_total
        if share >= limits.memory:
            causes["memory"] = _users_text(sample, f"{share:.0%} of its memory")
    if alone and sample.utilization is not None and sample.utilization / 100 >= limits.load:
        causes["load"] = _users_text(sample, f"{sample.utilization}% load")
    return causes


def _readable(sample: Sample) -> set[str]:
    """Return which of the causes this sample could have shown."""
    is_known = {
        "processes": sample.processes_known,
        "memory": sample.memory_used is not None and bool(sample.memory_total),
        "load": sample.utilization is not None,
    }
    return {cause for cause, known in is_known.items() if known}


def _process_text(process: ForeignProcess) -> str:
    size = "" if process.memory is None else f", {process.memory} MiB"
    owner = f"{process.user}'s " if process.user else ""
    command = process.command if len(process.command) <= 60 else process.command[:57] + "..."
    return f"{owner}{command or 'process'} (pid {process.pid}{size})"


def _users_text(sample: Sample, how_much: str) -> str:
    """Name the users of a GPU of which only the total use is known."""
    users = sorted({process.user for process in sample.foreign_processes if process.user})
    return f"{', '.join(users) or 'other processes'} ({how_much})"
