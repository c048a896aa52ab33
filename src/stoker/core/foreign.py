"""Which GPUs strangers use: a verdict per GPU, from samples, slow to call a GPU free again."""

from __future__ import annotations

import msgspec

UNAVAILABLE = "unavailable: "
"""Begins the mark of a GPU that no foreign process uses, and that cannot be used all the same."""


def in_words(mark: str) -> str:
    """Return what a GPU's mark of foreign use means, as the end of a sentence about the GPU."""
    return f"is {mark}" if mark.startswith(UNAVAILABLE) else f"is used by {mark}"


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU that is not ours."""

    pid: int
    user: str
    command: str
    memory: int | None
    """MiB."""
    graphics: bool = False
    """It draws: a desktop is no reason to leave a GPU alone until it takes a real share of it."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one GPU; None where the driver did not say."""

    uuid: str
    memory_used: int | None
    memory_total: int | None
    """MiB, both."""
    utilization: int | None
    """Percent."""
    ours: bool
    """A process of ours is on it."""
    ours_memory: int | None
    strangers: tuple[Stranger, ...]
    processes_known: bool


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When a GPU counts as used by others."""

    load: float = 0.10
    """Share of its time, from which on it is busy."""
    memory: float = 0.10
    """Share of its memory, from which on it is busy."""
    processes: bool = True
    """Whether a stranger who computes is enough, whatever the shares."""
    process_memory: int = 16
    """Only one with at least this many MiB counts."""
    enter_samples: int = 1
    """So many samples in a row must say busy before we believe it."""
    leave_seconds: float = 5.0
    """It must stay clear for so long before we call it free: jobs pause between epochs."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether others use a GPU, and how we know."""

    busy: bool
    changed: bool
    strangers: tuple[Stranger, ...]
    """The processes of others on it now, busy or not."""
    why: str
    """For a person; empty while the GPU is free."""


class Watch:
    """What we know about strangers on one GPU."""

    __slots__ = ("_busy", "_causes", "_clear_since", "_strangers", "_streak", "_why", "thresholds")

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._busy = False
        self._causes: frozenset[str] = frozenset()
        self._clear_since: float | None = None
        self._strangers: tuple[Stranger, ...] = ()
        self._streak = 0
        self._why = ""

    @property
    def busy(self) -> bool:
        """Tell what the last verdict was."""
        return self._busy

    def observe(self, sample: Sample, now: float, settling: bool) -> Verdict:
        """Take in a sample at monotonic time `now`.

        `settling`: an attempt of ours runs here or ended moments ago, so that load and memory
        which no visible process explains are ours.
        """
        causes = _causes(sample, self.thresholds, settling)
        if sample.processes_known:
            self._strangers = sample.strangers
        if causes:
            return self._seen_busy(causes)
        self._streak = 0 if _readable(sample) else self._streak
        if not self._busy:
            return self._verdict(changed=False)
        return self._seen_clear(sample, now)

    def _seen_busy(self, causes: dict[str, str]) -> Verdict:
        self._streak += 1
        self._clear_since = None
        if not self._busy and self._streak < self.thresholds.enter_samples:
            return self._verdict(changed=False)
        changed, self._busy = not self._busy, True
        self._causes = frozenset(causes)
        self._why = next(iter(causes.values()))
        return self._verdict(changed=changed)

    def _seen_clear(self, sample: Sample, now: float) -> Verdict:
        # A look that could not see what made the GPU busy proves nothing either way.
        if not self._causes <= _readable(sample):
            return self._verdict(changed=False)
        if self._clear_since is None:
            self._clear_since = now
        if now - self._clear_since < self.thresholds.leave_seconds:
            return self._verdict(changed=False)
        self._busy, self._causes, self._clear_since, self._why = False, frozenset(), None, ""
        return self._verdict(changed=True)

    def _verdict(self, *, changed: bool) -> Verdict:
        why = self._why
        if self._busy and self._clear_since is not None:
            seconds = self.thresholds.leave_seconds
            why += f"; idle now, free after {seconds:g} s without other processes"
        return Verdict(busy=self._busy, changed=changed, strangers=self._strangers, why=why)


def _causes(sample: Sample, limits: Thresholds, settling: bool) -> dict[str, str]:
    """Return what makes a GPU busy in this sample, each with its sentence."""
    found: dict[str, str] = {}
    for stranger in sample.strangers if limits.processes else ():
        # Unknown memory is a context all the same: nobody computes without one.
        if not stranger.graphics and (
            stranger.memory is None or stranger.memory >= limits.process_memory
        ):
            found["processes"] = _process(stranger)
            break
    visible = sum(stranger.memory or 0 for stranger in sample.strangers)
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
            found["memory"] = _others(sample, f"{share:.0%} of its memory")
    if alone and sample.utilization is not None and sample.utilization / 100 >= limits.load:
        found["load"] = _others(sample, f"{sample.utilization}% load")
    return found


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


def _process(stranger: Stranger) -> str:
    size = "" if stranger.memory is None else f", {stranger.memory} MiB"
    owner = f"{stranger.user}'s " if stranger.user else ""
    command = stranger.command if len(stranger.command) <= 60 else stranger.command[:57] + "..."
    return f"{owner}{command or 'process'} (pid {stranger.pid}{size})"


def _others(sample: Sample, how_much: str) -> str:
    """Name the users of a GPU of which only the total use is known."""
    users = sorted({stranger.user for stranger in sample.strangers if stranger.user})
    return f"{', '.join(users) or 'other processes'} ({how_much})"
