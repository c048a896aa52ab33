"""Job profiles: what earlier runs of a kind of job have measured."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace


class EpochTime(Struct, frozen=True, array_like=True):
    """Measured seconds per epoch and step for a number of GPUs of one model."""

    gpus: int
    model: str
    epoch: float
    """Moving average."""
    step: float | None = None
    reference: float | None = None
    """Epoch time for ranks and timers of jobs without a measurement of their own; None: `epoch`."""


class JobProfile(Struct, frozen=True, omit_defaults=True):
    """What earlier runs of a kind of job have measured."""

    peak: int | None = None
    """Most memory used on one GPU, in MiB."""
    epoch_times: tuple[EpochTime, ...] = field(default=(), name="paces")
    warmup: float | None = None
    """Seconds from the start of an attempt to its first epoch: the cost of a restart."""
    interference: dict[str, float] = field(default_factory=dict, name="beside")
    """Relative speed when sharing a GPU, by `colocation_key`; 0.0: the two do not fit together."""

    def epoch_time_at(self, gpus: int, model: str) -> EpochTime | None:
        """Return the measurement for this number of GPUs and model, if there is one."""
        same = (time for time in self.epoch_times if time.gpus == gpus and time.model == model)
        return next(same, None)

    @property
    def for_ranking(self) -> JobProfile:
        """The profile with reference epoch times, which seldom change."""
        times = (replace(time, epoch=time.reference or time.epoch) for time in self.epoch_times)
        return replace(self, epoch_times=tuple(times))

    def ranks_alike(self, other: JobProfile) -> bool:
        """Whether jobs have the same ranks and timers by this profile and by another."""
        return _references(self) == _references(other)

    @property
    def has_several_models(self) -> bool:
        """Whether epochs were measured on several GPU models."""
        times = self.epoch_times
        return len(times) > 1 and any(time.model != times[0].model for time in times)


def _references(profile: JobProfile) -> set[tuple[int, str, float]]:
    times = profile.epoch_times
    return {(time.gpus, time.model, time.reference or time.epoch) for time in times}


JobProfiles = dict[str, JobProfile]


EMPTY_PROFILE = JobProfile()
