"""Events of training jobs: progress, profiles, GPU memory."""

from __future__ import annotations

from msgspec import field

from stoker.core.events.base import AttemptEvent, Event
from stoker.core.model.profile import EpochTime


class TrainingBegan(AttemptEvent, frozen=True, kw_only=True):
    """The training library reported in an attempt: it accepts stop requests."""


class EpochsCounted(AttemptEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Number of epochs done and saved, in all attempts of a job together."""

    done: int
    seconds: float | None = None
    """Recent seconds per epoch."""
    step: float | None = None
    """Recent seconds per step."""
    warmup: float | None = None
    """Seconds from the start of the attempt to its first epoch."""
    metrics: dict[str, float] | None = None
    """Metrics that the script reported last, if they changed."""
    total: int | None = None
    """Total number of epochs as reported by the script, if it changed."""


class ProfileImported(
    Event, tag="KindMeasured", frozen=True, kw_only=True, omit_defaults=True
):  # fmt: skip
    """A job profile that was measured elsewhere was imported."""

    profile: str = field(name="family")
    epoch_times: tuple[EpochTime, ...] = field(default=(), name="paces")
    interference: dict[str, float] = field(default_factory=dict, name="beside")
    """Relative speed when sharing a GPU, by model and profile of the other job."""
    warmup: float | None = None


class MemoryMeasured(AttemptEvent, frozen=True, kw_only=True):
    """An attempt reached a new peak of memory use on one GPU (MiB)."""

    memory: int
