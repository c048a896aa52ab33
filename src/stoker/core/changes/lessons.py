"""What training jobs teach about their kind, and what an attempt leaves to the next one."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import estimate
from stoker.core import events as e
from stoker.core.admission import admit
from stoker.core.job import Job, Progress, Spec, Stop
from stoker.core.policy.allot import stage
from stoker.core.request import GPU
from stoker.core.state import State

MOST_PACES = 24
"""So many measurements of one job are kept: at different stages, on different numbers of GPUs."""


def learn(state: State, job: Job, event: e.EpochsCounted) -> None:
    """How fast it goes, and what it needs when it is under way."""
    if on_gone_devices(state, job):
        return
    spec, progress = state.spec(job), job.progress
    name = estimate.family_of(job, spec)
    family = before = state.rest.families.get(name, estimate.NOTHING_KNOWN)
    if event.seconds is not None and job.placement is not None:
        gpus, model = estimate.hardware(state.cluster, job.placement)
        alone = family.pace(gpus, model)
        others = neighbours(state, job) if progress is not None and progress.shared else []
        if others and alone is not None:  # how fast it is beside them says nothing of it alone
            seconds = alone.epoch
            family = _beside(state, family, model, others, event.seconds, alone)
        else:
            seconds = event.seconds
            family = estimate.paced(family, gpus, model, seconds, event.step)
        if progress is not None:
            paces = _own_paces(job, progress, spec, gpus, model, seconds)
            job.progress = replace(progress, pace=(gpus, model, seconds), paces=paces)
            progress = job.progress
    if event.warmup is not None:
        family = replace(family, warmup=event.warmup)
    if progress is not None and progress.peak is not None and progress.epochs > progress.since:
        peak = _at_most_all(state, job, progress.peak)
        family = replace(family, peak=max(family.peak or 0, peak))
    if family != before:
        _remember(state, name, family, event.at)
    if family.paces and not before.paces:  # how long its like take is known from now on
        for id in list(state.line.kin.get((job.user, job.name), ())):
            admit(state, state.jobs[id], event.at)


def _own_paces(
    job: Job, progress: Progress, spec: Spec, gpus: int, model: str, seconds: float
) -> tuple[tuple[int, int, float], ...]:
    """How fast an elastic job was lately, at each stage of its training; on one model of GPU."""
    ask, epochs = spec.request.gpus, estimate.epochs_of(job, spec)
    if ask is None or ask.most is None or not epochs:
        return ()
    key = (stage(progress.epochs / epochs), gpus)
    alike = progress.pace is None or progress.pace[1] == model
    others = [each for each in progress.paces if alike and each[:2] != key]
    return (*others[1 - MOST_PACES :], (*key, seconds))


def _beside(
    state: State, family: estimate.Family, model: str, others: list[Job], seconds: float,
    alone: estimate.Pace,
) -> estimate.Family:  # fmt: skip
    """What the company of another costs it; of several, nobody knows which of them it is."""
    if len(others) > 1 or seconds <= 0:
        return family
    other = estimate.family_of(others[0], state.spec(others[0]))
    return estimate.shared(family, estimate.company(model, other), alone.epoch / seconds)


def told(state: State, event: e.KindMeasured) -> None:
    """What was measured elsewhere counts like what was measured here."""
    family = state.rest.families.get(event.family, estimate.NOTHING_KNOWN)
    for pace in event.paces:
        family = estimate.paced(family, pace.gpus, pace.model, pace.epoch, pace.step)
    for with_whom, left in event.beside.items():
        family = estimate.shared(family, with_whom, left)
    if event.warmup is not None:
        family = replace(family, warmup=event.warmup)
    _remember(state, event.family, family, event.at)


def on_gone_devices(state: State, job: Job) -> bool:
    """Whether its machine no longer says what the devices are that it still holds."""
    for part in job.placement.parts if job.placement is not None else ():
        devices = state.cluster.nodes[part.node].by_name
        for take in part.takes:
            if devices[take.type, take.device].gone:
                return True
    return False


def _at_most_all(state: State, job: Job, memory: int) -> int:
    """What it used, but with the margin no more than its GPU has: it did find room there."""
    for part in job.placement.parts if job.placement is not None else ():
        for name in part.names(GPU):
            total = state.cluster.nodes[part.node].by_name[GPU, name].facts.memory
            if total:
                fits = min(int(total / (1 + estimate.MARGIN)), total - estimate.LEAST_MARGIN)
                memory = min(memory, max(fits, 0))
    return memory


def _remember(state: State, name: str, family: estimate.Family, at: float) -> None:
    """Keep what was learned; who waits for memory may need less of it now, or more."""
    before = state.rest.families.get(name, estimate.NOTHING_KNOWN)
    gone = estimate.remember(state.rest.families, name, family)
    state.rest_changed = True
    if state.telling or family.beside or family.compared:
        state.telling = None
    changed = {each for each, what in gone if what.peak is not None}
    if before.peak != family.peak:
        changed.add(name)
    if not changed:
        return
    for id in list(state.line.where):
        waiting = state.jobs[id]
        spec = state.spec(waiting)
        ask = spec.request.gpus
        if ask is not None and ask.beside and estimate.family_of(waiting, spec) in changed:
            admit(state, waiting, at)


def used(state: State, job: Job, memory: int, at: float) -> None:
    """It was seen to use so much of a GPU's memory.

    What an attempt uses before its first epoch is over is not yet all that it needs.
    """
    if on_gone_devices(state, job):
        return
    progress, name = job.progress, estimate.family_of(job, state.spec(job))
    family = state.rest.families.get(name)
    settled = progress is not None and progress.epochs > progress.since
    if family is not None and (settled or family.peak is not None):
        peak = max(family.peak or 0, _at_most_all(state, job, memory))
        if peak != family.peak:
            _remember(state, name, replace(family, peak=peak), at)


def learned_need(state: State, job: Job, memory: int, at: float) -> None:
    """A job ran out of memory: all of its kind need more than was thought."""
    name = estimate.family_of(job, state.spec(job))
    family = state.rest.families.get(name, estimate.NOTHING_KNOWN)
    peak = int(memory / (1 + estimate.MARGIN))
    if peak > (family.peak or 0):
        _remember(state, name, replace(family, peak=peak), at)


def ended(state: State, job: Job, at: float, preempted: bool) -> None:
    """An attempt is over: what it has taught is kept, what it was asked is not."""
    progress = job.progress
    if progress is None:
        return
    if progress.peak and progress.epochs > progress.since:
        _needed(state, job, progress.peak, at)
    ran = max(at - job.started_at - job.slack, 0.0) if job.started_at is not None else 0.0
    stop = progress.stop
    job.progress = replace(
        progress,
        listening=False,
        stop=None,
        since=progress.epochs,
        ran=progress.ran + ran,
        counted_at=None,
        grew=False,
        shared=False,
        peak=None if preempted else progress.peak,
        preemptions=progress.preemptions + (stop is not None and preempted and not _grows(stop)),
        gpus=stop.gpus if preempted and stop is not None and stop.gpus else progress.gpus,
    )


def _needed(state: State, job: Job, memory: int, at: float) -> None:
    """If it needed less memory than its like, what was known is forgotten by halves."""
    name = estimate.family_of(job, state.spec(job))
    family = state.rest.families.get(name)
    if family is not None and family.peak is not None and 0 < memory < family.peak:
        _remember(state, name, replace(family, peak=(family.peak + memory) // 2), at)


def work_lost(job: Job) -> None:
    """What this attempt has saved is out of reach: only what was there when it began counts."""
    if job.progress is not None:
        job.progress = replace(job.progress, epochs=job.progress.since)


def _grows(stop: Stop) -> bool:
    """Whether it was stopped for its own good, to have more GPUs."""
    return stop.gpus is not None and stop.by is None


def neighbours(state: State, job: Job) -> list[Job]:
    """Those who share a GPU with it."""
    mine = _gpus(job)
    return [
        other
        for other in state.running.values()
        if other is not job and not mine.isdisjoint(_gpus(other))
    ]


def _gpus(job: Job) -> set[tuple[str, str]]:
    parts = job.placement.parts if job.placement is not None else ()
    return {(part.node, name) for part in parts for name in part.names(GPU)}


def moved_in(state: State, job: Job) -> None:
    """It shares its GPUs with others from now on, and they with it."""
    others = neighbours(state, job)
    for each in (job, *others) if others else ():
        if each.progress is None or not each.progress.shared:
            each.progress = replace(each.progress or Progress(), shared=True)
            state.touched.add(each.id)
