"""Estimates from measurements of earlier runs: remaining time, epoch time, memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from math import floor, inf, log, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Device
from stoker.core.model.job import Job
from stoker.core.model.profile import EMPTY_PROFILE, EpochTime, JobProfile, JobProfiles
from stoker.core.model.resources import GPU, DeviceAllocation, Placement
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND

EWMA_WEIGHT = 0.4
"""Weight of a new measurement in the moving average."""
REFERENCE_RATIO = 1.5
"""A reference epoch time follows the average once they differ by this factor: all jobs of the
profile are then ranked again, so it must be seldom."""
DEFAULT_SCALING_EXPONENT = 0.8
"""Exponent of speed over GPUs without a measurement: twice the GPUs, 2 ** 0.8 times as fast. Better
than 0.9 on three Pollux workloads."""
MEMORY_MARGIN, MIN_MEMORY_MARGIN_MIB = 0.10, 128
"""Reserved beyond the measured GPU memory: this share, and at least this many MiB."""
DEFAULT_RESTART_SECONDS = 30.0
"""Cost of a restart until one is measured."""
NO_GPU = "cpu"
OVERRUN = 0.5
"""Share of an overrun that a job is expected to run on. With more, jobs with too low estimates
take turns on GPUs and end late; with less, a job far over its estimate delays others for longer
(`stoker simulate --estimates`)."""
OVERRUN_TOLERANCE = 1 / 16
"""Share of the expected time below which `OVERRUN` times an overrun may be the cost of restarts."""
COARSE_STEP = 0.5
"""Doublings: step of the remaining time in overrun and of fair-share penalties, so that jobs seldom
change places."""
STAGE_BOUNDARIES = tuple(0.5**stage for stage in range(6, 0, -1))
"""Shares of a job's epochs where a new stage of training begins: most changes are early."""


class TimeLeft(Struct, frozen=True):
    """Remaining seconds of a job, and after how many seconds without a report they grow."""

    seconds: float
    grows_in: float = inf
    floor: float = 0.0
    """The seconds do not fall below this without a report."""


class Estimate(Struct, frozen=True):
    """Expected run time and GPU memory of one job."""

    family: str
    epoch_seconds: float | None = None
    step_seconds: float | None = None
    remaining_seconds: float | None = None
    total_seconds: float | None = None
    """Run time of the whole job: measured, or else declared."""
    memory: int | None = None
    """MiB on each GPU, with the margin."""
    speedups: tuple[tuple[int, float], ...] = ()
    """Number of GPUs and seconds per epoch, as measured on this model."""


def profile_key(job: Job, spec: Spec) -> str:
    """Return what jobs of one profile have in common: user, name, batch size and image."""
    name = f"{job.user}: {job.name}"
    if spec.training is not None and spec.training.batch_size:
        name += f", batch {spec.training.batch_size}"
    if spec.container is not None and spec.container.image:
        name += f", {spec.container.image}"
    return name


def profile_of(profiles: JobProfiles, job: Job, spec: Spec) -> JobProfile:
    """Return the profile of a job; the empty one if there is none."""
    return profiles.get(profile_key(job, spec), EMPTY_PROFILE)


def with_margin(memory: int) -> int:
    """Return the memory to reserve for a job with this measured use."""
    return memory + max(int(memory * MEMORY_MARGIN), MIN_MEMORY_MARGIN_MIB)


def without_margin(memory: int) -> int:
    """Return the measured use for which this much memory is reserved."""
    return max(min(int(memory / (1 + MEMORY_MARGIN)), memory - MIN_MEMORY_MARGIN_MIB), 0)


def with_epoch_time(
    profile: JobProfile, gpus: int, model: str, epoch: float, step: float | None
) -> JobProfile:
    """Return a profile with one more measured epoch time."""
    before = profile.epoch_time_at(gpus, model)
    reference = epoch
    if before is not None:
        epoch = before.epoch + EWMA_WEIGHT * (epoch - before.epoch)
        if step is not None and before.step is not None:
            step = before.step + EWMA_WEIGHT * (step - before.step)
        reference = before.reference or before.epoch
        if not reference / REFERENCE_RATIO < epoch < reference * REFERENCE_RATIO:
            reference = epoch
    others = tuple(time for time in profile.epoch_times if time is not before)
    measured = EpochTime(gpus, model, epoch, step or None, reference)
    return replace(profile, epoch_times=(*others, measured))


def colocation_key(model: str, other: str) -> str:
    """Return the key for sharing a GPU of this model with a job of another profile."""
    return f"{model}: {other}"


def with_interference(profile: JobProfile, other_key: str, speed: float) -> JobProfile:
    """Return a profile with one more measured speed beside a job of another profile."""
    before = profile.interference.get(other_key)
    speed = min(max(speed, 0.0), 1.0)
    if before is not None:
        speed = before + EWMA_WEIGHT * (speed - before)
    return replace(profile, interference={**profile.interference, other_key: speed})


def epoch_seconds_on(profile: JobProfile, gpus: int, model: str) -> tuple[float | None, bool]:
    """Return the seconds per epoch on a number of GPUs, and whether they were measured."""
    exact = profile.epoch_time_at(gpus, model)
    if exact is not None:
        return exact.epoch, True
    same_model = [time for time in profile.epoch_times if time.model == model]
    times = same_model or list(profile.epoch_times)
    near = min(times, key=lambda time: abs(time.gpus - gpus), default=None)
    if near is None:
        return None, False
    if not near.gpus or not gpus:
        return near.epoch, False
    return near.epoch * (near.gpus / gpus) ** _scaling(near, times), False


def _scaling(near: EpochTime, times: list[EpochTime]) -> float:
    """Return the exponent by which speed grows with the number of GPUs, if measured."""
    others = [time for time in times if time.gpus and time.gpus != near.gpus]
    other = min(others, key=lambda time: abs(time.gpus - near.gpus), default=None)
    if other is None or near.epoch <= 0 or other.epoch <= 0 or other.model != near.model:
        return DEFAULT_SCALING_EXPONENT
    return min(max(log(other.epoch / near.epoch) / log(near.gpus / other.gpus), 0.0), 1.0)


def allocated_gpus(
    cluster: Cluster, placement: Placement
) -> Iterator[tuple[DeviceAllocation, Device | None]]:
    """Yield the GPUs of a placement on all nodes, and their devices as far as nodes have them."""
    for part in placement.parts:
        node = cluster.nodes.get(part.node)
        for take in part.allocations:
            if take.type == GPU:
                yield take, node.by_name.get((GPU, take.device)) if node is not None else None


ESTIMATE_SLACK = 1.2
"""Factor on an estimated remaining time, so that it is seldom exceeded."""


def held_since(cluster: Cluster, job: Job) -> float | None:
    """Return since when the GPU time of the current attempt of a job counts."""
    node = cluster.nodes.get(job.placement.node) if job.placement is not None else None
    if node is not None and node.delegated:
        return job.started_at
    return job.allocated_at or job.started_at


def gpu_share(cluster: Cluster, placement: Placement) -> float:
    """Return how many GPUs a placement holds; of a GPU shared by memory, its part of the memory."""
    total = 0.0
    for take, device in allocated_gpus(cluster, placement):
        memory = device.facts.memory if device is not None else None
        if take.is_shared:
            total += min(take.memory / memory, 1.0) if memory else 1.0
        else:
            total += take.amount / THOUSAND
    return total


def hardware(cluster: Cluster, placement: Placement) -> tuple[int, str]:
    """Return the number of GPUs of a placement on all nodes, and their model."""
    model = NO_GPU
    for _, device in allocated_gpus(cluster, placement):
        if device is not None and device.facts.model:
            model = device.facts.model
    return sum(part.gpu_count for part in placement.parts), model


def likely_hardware(cluster: Cluster, job: Job, spec: Spec) -> tuple[int, str]:
    """Return the number and model of the GPUs that a job has, or is likely to get."""
    if job.placement is not None:
        return hardware(cluster, job.placement)
    request = spec.request.gpus
    gpus = job.progress.gpus or (-(-request.amount // 1000) if request is not None else 0)
    models = [facts.model for facts in cluster.gpu_models.values() if facts.model]
    acceptable = acceptable_models(models if gpus else (), spec.request.gpu_models)
    return gpus, next(acceptable, NO_GPU)


def acceptable_models(models: Iterable[str], kinds: Collection[str]) -> Iterator[str]:
    """Yield the models that a request accepts; without kinds, all."""
    return (name for name in models if not kinds or any(kind in name.lower() for kind in kinds))


def epochs_of(job: Job, spec: Spec) -> int | None:
    """Return the number of epochs of a job: requested, or else reported by its script."""
    if spec.training is not None and spec.training.epochs is not None:
        return spec.training.epochs
    return job.progress.total


def time_left(expected: float, elapsed: float) -> TimeLeft:
    """Return the remaining time after `elapsed` of the expected seconds.

    It falls with every second until the expected time is over, and then grows with the overrun.
    """
    unit = max(expected * OVERRUN_TOLERANCE, 1.0)
    overrun = OVERRUN * (elapsed - expected)
    if overrun < unit:
        return TimeLeft(max(expected - elapsed, 0.0), (unit - overrun) / OVERRUN)
    step = floor(log2(overrun / unit) / COARSE_STEP + 1e-9)
    following = unit * 2 ** ((step + 1) * COARSE_STEP)
    seconds = unit * 2 ** (step * COARSE_STEP)
    return TimeLeft(seconds, (following - overrun) / OVERRUN, floor=seconds)


def estimate(profiles: JobProfiles, cluster: Cluster, job: Job, spec: Spec, now: float) -> Estimate:
    """Return the estimate of a job now."""
    name = profile_key(job, spec)
    profile = profiles.get(name, EMPTY_PROFILE)
    gpus, model = likely_hardware(cluster, job, spec)
    epoch, _ = epoch_seconds_on(profile, gpus, model)
    exact = profile.epoch_time_at(gpus, model)
    epochs = epochs_of(job, spec)
    left = _remaining_by_profile(profile, cluster, job, spec, now)
    times = [(time.gpus, time.epoch) for time in profile.epoch_times if time.model == model]
    return Estimate(
        family=name, epoch_seconds=epoch, step_seconds=exact.step if exact is not None else None,
        remaining_seconds=left.seconds if left is not None else None,
        total_seconds=epochs * epoch if epoch is not None and epochs is not None else spec.expected,
        memory=with_margin(profile.peak) if profile.peak is not None else None,
        speedups=tuple(sorted(times)),
    )  # fmt: skip


def _remaining_by_profile(
    profile: JobProfile, cluster: Cluster, job: Job, spec: Spec, now: float
) -> TimeLeft | None:
    """Return the remaining time of a job by the epochs of its profile, or as declared."""
    progress, epochs = job.progress, epochs_of(job, spec)
    epoch, _ = epoch_seconds_on(profile, *likely_hardware(cluster, job, spec))
    if epoch is not None and epochs is not None:
        remaining, since = max(epochs - progress.epochs, 0) * epoch, progress.epoch_started_at
        if job.placement is None or since is None or not remaining:
            return TimeLeft(remaining)
        current = time_left(epoch, max(now - since, 0.0))
        return TimeLeft(remaining - epoch + current.seconds, current.grows_in)
    if spec.expected is None:
        return None
    left = time_left(spec.expected, attained(job, now))
    return TimeLeft(left.seconds, left.grows_in if job.placement is not None else inf)


def epoch_seconds(cluster: Cluster, job: Job, spec: Spec, profile: JobProfile) -> float | None:
    """Return the reference seconds per epoch where a job runs, or is likely to run."""
    gpus, model = likely_hardware(cluster, job, spec)
    return epoch_seconds_on(profile.for_ranking, gpus, model)[0]


def remaining(
    profiles: JobProfiles, cluster: Cluster, job: Job, spec: Spec, now: float
) -> float | None:
    """Return the remaining seconds of a job, as measured for itself or its profile."""
    left = expected_time_left(profiles, cluster, job, spec, now)
    return left.seconds if left is not None else None


def expected_time_left(
    profiles: JobProfiles, cluster: Cluster, job: Job, spec: Spec, now: float
) -> TimeLeft | None:
    """Return the remaining time of a job, and when an overrun makes it grow."""
    progress, epochs = job.progress, epochs_of(job, spec)
    if progress.epoch_time is None or epochs is None:
        profile = profile_of(profiles, job, spec)
        if not profile.epoch_times and spec.expected is None:
            return None
        return _remaining_by_profile(profile.for_ranking, cluster, job, spec, now)
    gpus, model, epoch = progress.epoch_time
    if job.placement is not None:  # it may have been measured elsewhere
        profile, current = profile_of(profiles, job, spec), hardware(cluster, job.placement)
        if profile.has_several_models and current != (gpus, model):
            epoch = epoch_seconds_on(profile.for_ranking, *current)[0] or epoch
    seconds = max(epochs - progress.epochs, 0) * epoch
    if job.placement is None or progress.epoch_started_at is None:
        return TimeLeft(seconds)
    # The time since the last report counts as work while the job may still be within its estimate.
    left = time_left(seconds, max(now - progress.epoch_started_at, 0.0))
    floor = max(left.floor, min(epoch, seconds))
    return TimeLeft(max(left.seconds, floor), left.grows_in, floor)


def best_model_ratio(profiles: JobProfiles, cluster: Cluster, job: Job, spec: Spec) -> float:
    """Return the time of a job on the fastest acceptable model, as a share of `remaining`.

    Only models with a measured epoch time in its profile count; 1.0 if that is only one.
    """
    profile = profile_of(profiles, job, spec)
    if not profile.has_several_models:
        return 1.0
    if job.placement is None and job.progress.epoch_time is not None:
        gpus, model, _ = job.progress.epoch_time
    else:
        gpus, model = likely_hardware(cluster, job, spec)
    profile = profile.for_ranking
    current = epoch_seconds_on(profile, gpus, model)[0]
    measured = {time.model for time in profile.epoch_times}
    models = acceptable_models(measured, spec.request.gpu_models)
    times = [time for name in models if (time := epoch_seconds_on(profile, gpus, name)[0])]
    return min(times) / current if current and times else 1.0


def attained(job: Job, now: float) -> float:
    """Return the seconds that a job has run, in all its attempts."""
    ran = job.progress.previous_runtime
    if job.placement is not None and job.started_at is not None:
        ran += max(now - job.started_at - job.slack, 0.0)
    return ran


def restart_cost(profile: JobProfile) -> float:
    """Return the seconds that are lost when a job is preempted and resumed."""
    return profile.warmup if profile.warmup is not None else DEFAULT_RESTART_SECONDS


def training_stage(done: float) -> int:
    """Return the stage of training after this share of the epochs."""
    return bisect_right(STAGE_BOUNDARIES, done)
