"""Events of training jobs: progress, profiles, GPU memory."""

from __future__ import annotations

from stoker.core.events.base import Event
from stoker.core.model.profile import EpochTime


class TrainingBegan(Event, frozen=True, kw_only=True):
    """The training library reported in an attempt: it accepts stop requests."""

    job: int
    attempt: int


class EpochsCounted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Number of epochs done and saved, in all attempts of a job together."""

    job: int
    attempt: int
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


_PROFILE_IMPORTED_STORED = {"profile": "family", "epoch_times": "paces", "interference": "beside"}
"""Names of fields as they are stored."""


class ProfileImported(
    Event, tag="KindMeasured", frozen=True, kw_only=True, omit_defaults=True,
    rename=_PROFILE_IMPORTED_STORED,
):  # fmt: skip
    """A job profile that was measured elsewhere was imported."""

    profile: str
    epoch_times: tuple[EpochTime, ...] = ()
    interference: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it
    """Relative speed when sharing a GPU, by model and profile of the other job."""
    warmup: float | None = None


class MemoryMeasured(Event, frozen=True, kw_only=True):
    """An attempt reached a new peak of memory use on one GPU (MiB)."""

    job: int
    attempt: int
    memory: int
