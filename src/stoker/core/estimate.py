"""From what was measured to what is to be expected: time left, speed-up, memory."""

from __future__ import annotations

from math import floor, inf, log, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import Cluster, Placement
from stoker.core.job import Job, Progress, Spec
from stoker.core.request import GPU

MOST_FAMILIES = 256
"""Kinds of jobs that are remembered; the one that was heard of longest ago goes first."""
NEWS = 0.4
"""How much a new measurement counts against what is known."""
SCALING = 0.8
"""Without a measurement, twice the GPUs are taken to be 2 ** 0.8 times as fast."""
MARGIN, LEAST_MARGIN = 0.10, 128
"""What is set aside beyond the memory that was measured: a tenth, and at least so many MiB."""
RESTART = 30.0
"""Seconds that a restart is taken to cost until one was measured."""
NO_GPU = "cpu"
OVERRUN = 0.5
"""A job that has run longer than expected is expected to run on for half the overrun. With more,
jobs whose owners all say too little take turns on GPUs and end late; with less, one that is far
over holds up others for longer (`stoker simulate --estimates`)."""
TOLERATED = 1 / 16
"""Below this share of what was expected, an overrun is not told from the cost of restarts."""
OVERRUN_STEP = 0.5
"""What is left of a job after an overrun becomes more in steps of half a doubling."""


class TimeLeft(Struct, frozen=True):
    """How long a job needs from now on, and when that becomes more although nothing is heard."""

    seconds: float
    grows_in: float = inf


class Pace(Struct, frozen=True, array_like=True):
    """How fast a kind of job is on so many GPUs of one model."""

    gpus: int
    model: str
    epoch: float
    step: float | None = None


class Family(Struct, frozen=True, omit_defaults=True):
    """What earlier runs have taught about one kind of job."""

    peak: int | None = None
    """MiB of one GPU's memory."""
    paces: tuple[Pace, ...] = ()
    warmup: float | None = None
    """Seconds from the start of an attempt to its first epoch: what a restart costs."""
    beside: dict[str, float] = {}
    """What is left of its speed when it shares a GPU, by `company`; 0.0: the two do not fit."""

    def pace(self, gpus: int, model: str) -> Pace | None:
        """What was measured there."""
        for each in self.paces:
            if each.gpus == gpus and each.model == model:
                return each
        return None

    @property
    def compared(self) -> bool:
        """Whether it was measured on several models of GPU."""
        paces = self.paces
        return len(paces) > 1 and any(each.model != paces[0].model for each in paces)


Families = dict[str, Family]

NOTHING_KNOWN = Family()
NO_PROGRESS = Progress()


class Estimate(Struct, frozen=True):
    """What is to be expected of one job."""

    family: str
    epoch_seconds: float | None = None
    step_seconds: float | None = None
    measured: bool = False
    """Whether that was measured on such GPUs, or follows from others."""
    remaining_seconds: float | None = None
    total_seconds: float | None = None
    """The whole job, as its owner said or, once it is measured, as it turns out to be."""
    grows_in: float = inf
    """Seconds after which more remains of a running job if nothing is heard of it."""
    memory: int | None = None
    """MiB on each GPU, with the margin."""
    speedups: tuple[tuple[int, float], ...] = ()
    """Numbers of GPUs, and seconds per epoch, as measured on this model."""


def family_of(job: Job, spec: Spec) -> str:
    """What a job has in common with its like: who runs it, its name, batch size and image."""
    name = f"{job.user}: {job.name}"
    if spec.training is not None and spec.training.batch_size:
        name += f", batch {spec.training.batch_size}"
    if spec.container is not None and spec.container.image:
        name += f", {spec.container.image}"
    return name


def known(families: Families, job: Job, spec: Spec) -> Family:
    """What is known of its kind, which may be nothing."""
    return families.get(family_of(job, spec), NOTHING_KNOWN)


def with_margin(memory: int) -> int:
    """What to set aside for a job that was seen to use so much."""
    return memory + max(int(memory * MARGIN), LEAST_MARGIN)


def paced(family: Family, gpus: int, model: str, epoch: float, step: float | None) -> Family:
    """The family after one more measurement of its speed."""
    before = family.pace(gpus, model)
    if before is not None:
        epoch = before.epoch + NEWS * (epoch - before.epoch)
        if step is not None and before.step is not None:
            step = before.step + NEWS * (step - before.step)
    others = tuple(each for each in family.paces if each is not before)
    return replace(family, paces=(*others, Pace(gpus, model, epoch, step or None)))


def company(model: str, other: str) -> str:
    """Sharing a GPU of this model with one of another family, or of its own."""
    return f"{model}: {other}"


def shared(family: Family, with_whom: str, left: float) -> Family:
    """The family after one more measurement of its speed beside another."""
    before = family.beside.get(with_whom)
    left = min(max(left, 0.0), 1.0)
    if before is not None:
        left = before + NEWS * (left - before)
    return replace(family, beside={**family.beside, with_whom: left})


def remember(families: Families, name: str, family: Family) -> list[tuple[str, Family]]:
    """Put what was learned last at the end, and forget the oldest when there are too many."""
    families.pop(name, None)
    families[name] = family
    gone = []
    while len(families) > MOST_FAMILIES:
        oldest = next(iter(families))
        gone.append((oldest, families.pop(oldest)))
    return gone


def epoch_on(family: Family, gpus: int, model: str) -> tuple[float | None, bool]:
    """Seconds per epoch on so many GPUs, and whether that was measured."""
    exact = family.pace(gpus, model)
    if exact is not None:
        return exact.epoch, True
    alike = [each for each in family.paces if each.model == model] or list(family.paces)
    near = min(alike, key=lambda each: abs(each.gpus - gpus), default=None)
    if near is None:
        return None, False
    if not near.gpus or not gpus:
        return near.epoch, False
    return near.epoch * (near.gpus / gpus) ** _scaling(near, alike), False


def _scaling(near: Pace, alike: list[Pace]) -> float:
    """How speed has grown with the number of GPUs, as far as that was measured."""
    others = [each for each in alike if each.gpus and each.gpus != near.gpus]
    other = min(others, key=lambda each: abs(each.gpus - near.gpus), default=None)
    if other is None or near.epoch <= 0 or other.epoch <= 0 or other.model != near.model:
        return SCALING
    return min(max(log(other.epoch / near.epoch) / log(near.gpus / other.gpus), 0.0), 1.0)


def hardware(cluster: Cluster, placement: Placement) -> tuple[int, str]:
    """How many GPUs an attempt has on all its machines, and of which model."""
    count, model = 0, NO_GPU
    for part in placement.parts:
        node = cluster.nodes.get(part.node)
        count += part.gpu_count
        for take in part.takes:
            key = (take.type, take.device)
            device = node.by_name.get(key) if node is not None and take.type == GPU else None
            if device is not None and device.facts.model:
                model = device.facts.model
    return count, model


def likely_hardware(cluster: Cluster, job: Job, spec: Spec, family: Family) -> tuple[int, str]:
    """What a job has, or else is likely to get."""
    if job.placement is not None:
        return hardware(cluster, job.placement)
    ask = spec.request.gpus
    gpus = -(-ask.amount // 1000) if ask is not None else 0
    if job.progress is not None and job.progress.gpus:
        gpus = job.progress.gpus
    models = (make.model for make in cluster.makes.values() if make.model)
    return gpus, next(models, NO_GPU) if gpus else NO_GPU


def epochs_of(job: Job, spec: Spec) -> int | None:
    """How many epochs a job trains: as was asked for, or else as its script says."""
    if spec.training is not None and spec.training.epochs is not None:
        return spec.training.epochs
    return job.progress.total if job.progress is not None else None


def time_left(expected: float, had: float) -> TimeLeft:
    """Return what is left of something that was expected to take so long and has had that much.

    Less with every second, until the expected time is over; from then on more, as the overrun.
    """
    unit = max(expected * TOLERATED, 1.0)
    more = OVERRUN * (had - expected)
    if more < unit:
        return TimeLeft(max(expected - had, 0.0), (unit - more) / OVERRUN)
    step = floor(log2(more / unit) / OVERRUN_STEP + 1e-9)
    following = unit * 2 ** ((step + 1) * OVERRUN_STEP)
    return TimeLeft(unit * 2 ** (step * OVERRUN_STEP), (following - more) / OVERRUN)


def estimate(families: Families, cluster: Cluster, job: Job, spec: Spec, at: float) -> Estimate:
    """What is to be expected of a job now."""
    name = family_of(job, spec)
    family = families.get(name, NOTHING_KNOWN)
    progress = job.progress or NO_PROGRESS
    gpus, model = likely_hardware(cluster, job, spec, family)
    epoch, measured = epoch_on(family, gpus, model)
    pace = family.pace(gpus, model)
    training = spec.training
    epochs = epochs_of(job, spec)
    expected = training.expected if training is not None else None
    remaining, total, grows_in = None, None, inf
    if epoch is not None and epochs is not None:
        remaining = max(epochs - progress.epochs, 0) * epoch
        since = progress.counted_at
        if job.placement is not None and since is not None and remaining:
            current = time_left(epoch, max(at - since, 0.0))
            remaining, grows_in = remaining - epoch + current.seconds, current.grows_in
        total = epochs * epoch
    elif expected is not None:
        left = time_left(expected, attained(job, at))
        remaining, grows_in = left.seconds, left.grows_in if job.placement is not None else inf
    return Estimate(
        family=name,
        epoch_seconds=epoch,
        step_seconds=pace.step if pace is not None else None,
        measured=measured,
        remaining_seconds=remaining,
        total_seconds=total if total is not None else expected,
        grows_in=grows_in,
        memory=with_margin(family.peak) if family.peak is not None else None,
        speedups=tuple(
            sorted([(each.gpus, each.epoch) for each in family.paces if each.model == model])
        ),
    )


def epoch_seconds(cluster: Cluster, job: Job, spec: Spec, family: Family) -> float | None:
    """Seconds per epoch where a job is, or else is likely to be."""
    if not family.paces:
        return None
    return epoch_on(family, *likely_hardware(cluster, job, spec, family))[0]


def remaining(
    families: Families, cluster: Cluster, job: Job, spec: Spec, at: float
) -> float | None:
    """Seconds that a job needs from now on: as it was measured itself, or its like were."""
    found = time_to_go(families, cluster, job, spec, at)
    return found.seconds if found is not None else None


def time_to_go(
    families: Families, cluster: Cluster, job: Job, spec: Spec, at: float
) -> TimeLeft | None:
    """The same, and when an overrun makes it more."""
    progress, training, epochs = job.progress, spec.training, epochs_of(job, spec)
    if progress is None or progress.pace is None or epochs is None:
        if not known(families, job, spec).paces and (training is None or training.expected is None):
            return None
        found = estimate(families, cluster, job, spec, at)
        seconds = found.remaining_seconds
        return TimeLeft(seconds, found.grows_in) if seconds is not None else None
    epoch = _own_epoch(families, cluster, job, spec, progress.pace)
    left = max(epochs - progress.epochs, 0) * epoch
    if job.placement is None or progress.counted_at is None:
        return TimeLeft(left)
    # What has passed since the last report counts as work, as long as the job may still be going.
    going = time_left(left, max(at - progress.counted_at, 0.0))
    return TimeLeft(max(going.seconds, min(epoch, left)), going.grows_in)


def _own_epoch(
    families: Families, cluster: Cluster, job: Job, spec: Spec, pace: tuple[int, str, float]
) -> float:
    """Seconds per epoch where it runs now, if it was measured somewhere else."""
    if job.placement is None:
        return pace[2]
    family = known(families, job, spec)
    if family.compared and (here := hardware(cluster, job.placement)) != pace[:2]:
        return epoch_on(family, *here)[0] or pace[2]
    return pace[2]


def at_best(families: Families, cluster: Cluster, job: Job, spec: Spec) -> float:
    """How long a job takes on the fastest model that will do, as a share of what `remaining` says.

    Only models on which its like were measured are thought of; 1.0 where that is but one.
    """
    family = known(families, job, spec)
    if not family.compared:
        return 1.0
    if job.placement is None and job.progress is not None and job.progress.pace is not None:
        gpus, model, _ = job.progress.pace
    else:
        gpus, model = likely_hardware(cluster, job, spec, family)
    here = epoch_on(family, gpus, model)[0]
    kinds = spec.request.gpus.kinds if spec.request.gpus is not None else ()
    models = {each.model for each in family.paces}
    fitting = [each for each in models if not kinds or any(kind in each.lower() for kind in kinds)]
    paces = [pace for each in fitting if (pace := epoch_on(family, gpus, each)[0])]
    return min(paces) / here if here and paces else 1.0


def attained(job: Job, at: float) -> float:
    """Seconds that a job has run, in all its attempts."""
    ran = job.progress.ran if job.progress is not None else 0.0
    if job.placement is not None and job.started_at is not None:
        ran += max(at - job.started_at - job.slack, 0.0)
    return ran


def restart_cost(family: Family) -> float:
    """Seconds that are lost when a job is stopped and goes on later."""
    return family.warmup if family.warmup is not None else RESTART
