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
    enter_samples: int = 1
    """Number of busy samples in a row before the GPU counts as busy."""
    leave_seconds: float = 5.0
    """Seconds without foreign use before the GPU counts as free: jobs pause between epochs."""


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True):
    """Whether foreign processes use a GPU, and the reason."""

    busy: bool
    changed: bool
    foreign_processes: tuple[ForeignProcess, ...]
    """Foreign processes on it now, busy or not."""
    reason: str
    """Text for users; empty while the GPU is free."""


class ForeignUseDetector:
    """Detects foreign use of one GPU."""

    __slots__ = (
        "_busy",
        "_causes",
        "_clear_since",
        "_processes",
        "_reason",
        "_streak",
        "thresholds",
    )

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._busy = False
        self._causes: frozenset[str] = frozenset()
        self._clear_since: float | None = None
        self._processes: tuple[ForeignProcess, ...] = ()
        self._streak = 0
        self._reason = ""

    @property
    def busy(self) -> bool:
        """Whether foreign processes use the GPU, after the last sample."""
        return self._busy

    def observe(self, sample: Sample, now: float, settling: bool) -> ForeignUse:
        """Process a sample taken at monotonic time `now`.

        `settling`: an attempt runs on the GPU or ended shortly before, so that load and memory
        that no visible process explains belong to it.
        """
        causes = _causes(sample, self.thresholds, settling)
        if sample.processes_known:
            self._processes = sample.foreign_processes
        if causes:
            return self._on_busy(causes)
        self._streak = 0 if _readable(sample) else self._streak
        if not self._busy:
            return self._result(changed=False)
        return self._on_clear(sample, now)

    def _on_busy(self, causes: dict[str, str]) -> ForeignUse:
        self._streak += 1
        self._clear_since = None
        if not self._busy and self._streak < self.thresholds.enter_samples:
            return self._result(changed=False)
        changed, self._busy = not self._busy, True
        self._causes = frozenset(causes)
        self._reason = next(iter(causes.values()))
        return self._result(changed=changed)

    def _on_clear(self, sample: Sample, now: float) -> ForeignUse:
        # A sample without the values that made the GPU busy proves nothing.
        if not self._causes <= _readable(sample):
            return self._result(changed=False)
        if self._clear_since is None:
            self._clear_since = now
        if now - self._clear_since < self.thresholds.leave_seconds:
            return self._result(changed=False)
        self._busy, self._causes, self._clear_since, self._reason = False, frozenset(), None, ""
        return self._result(changed=True)

    def _result(self, *, changed: bool) -> ForeignUse:
        reason = self._reason
        if self._busy and self._clear_since is not None:
            seconds = self.thresholds.leave_seconds
            reason += f"; idle now, free after {seconds:g} s without other processes"
        return ForeignUse(
            busy=self._busy, changed=changed, foreign_processes=self._processes, reason=reason
        )


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
    visible = sum(process.memory or 0 for process in sample.foreign_processes)
    alone = not settling and not sample.ours
    if sample.memory_used is None or not sample.memory_total:
        foreign = None
    elif alone:
        foreign = max(sample.memory_used - (sample.ours_memory or 0), visible)
    else:
        foreign = visible
    if foreign is not None and sample.memory_total:
        share = foreign / sample.memory_total
        if share >= limits.memory:
            causes["memory"] = _users_text(sample, f"{share:.0%} of its memory")
    if alone and sample.utilization is not None and sample.utilization / 100 >= limits.load:
        causes["load"] = _users_text(sample, f"{sample.utilization}% load")
    return causes


def _readable(sample: Sample) -> frozenset[str]:
    """Return which of the causes this sample could have shown."""
    seen = set()
    if sample.processes_known:
        seen.add("processes")
    if sample.memory_used is not None and sample.memory_total:
        seen.add("memory")
    if sample.utilization is not None:
        seen.add("load")
    return frozenset(seen)


def _process_text(process: ForeignProcess) -> str:
    size = "" if process.memory is None else f", {process.memory} MiB"
    owner = f"{process.user}'s " if process.user else ""
    command = process.command if len(process.command) <= 60 else process.command[:57] + "..."
    return f"{owner}{command or 'process'} (pid {process.pid}{size})"


def _users_text(sample: Sample, how_much: str) -> str:
    """Name the users of a GPU of which only the total use is known."""
    users = sorted({process.user for process in sample.foreign_processes if process.user})
    return f"{', '.join(users) or 'other processes'} ({how_much})"
