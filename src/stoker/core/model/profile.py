"""Job profiles: what earlier runs of a kind of job have measured."""

from __future__ import annotations

from msgspec import Struct, field


class EpochTime(Struct, frozen=True, array_like=True):
    """Measured seconds per epoch and step for a number of GPUs of one model."""

    gpus: int
    model: str
    epoch: float
    step: float | None = None


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
        for epoch_time in self.epoch_times:
            if epoch_time.gpus == gpus and epoch_time.model == model:
                return epoch_time
        return None

    @property
    def has_several_models(self) -> bool:
        """Whether epochs were measured on several GPU models."""
        times = self.epoch_times
        return len(times) > 1 and any(time.model != times[0].model for time in times)


JobProfiles = dict[str, JobProfile]


EMPTY_PROFILE = JobProfile()
