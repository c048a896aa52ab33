"""AlarmTracker: samples -> alarms that should be active, and the events that make them so."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.alarms.samples import (
    MAX_GAP_SECONDS,
    STARTUP_SECONDS,
    GpuSample,
    GpuTrack,
    JobSample,
    JobTrack,
    hung_since,
    observe_gpu,
    observe_job,
)
from stoker.core.events import AlarmCleared, AlarmRaised, Event
from stoker.core.model.alarm import OVER_REQUESTED, Alarm, AlarmLimits, with_limits
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import GPU
from stoker.core.model.units import THOUSAND, approximate_duration
from stoker.core.state.state import State

GpuId = tuple[str, str]
"""Node and name of a GPU."""
MAX_USED_SHARE, MAX_MEMORY_SHARE = 0.5, 0.25
"""An attempt asked for too much if it used no more than that of its GPUs, or of their memory."""
PROGRAM_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Faults that a program causes, not the hardware."""


def whole_gpus(job: Job) -> list[GpuId]:
    """Return the GPUs that an attempt has for itself."""
    return [
        (part.node, take.device)
        for part in job.parts
        for take in part.allocations
        if take.type == GPU and take.amount == THOUSAND and not take.is_pooled
    ]


class AlarmTracker:
    """Keeps what is needed of the samples; the active alarms are in the state.

    Nothing else survives a restart: an active alarm stays until a sample contradicts it.
    """

    def __init__(self, limits: AlarmLimits) -> None:
        self._limits = limits
        self._gpus: dict[GpuId, GpuTrack] = {}
        self._held: dict[tuple[AttemptId, GpuId], GpuTrack] = {}
        self._jobs: dict[AttemptId, JobTrack] = {}
        self._unwritten: set[str] = set()
        """Alarms that were raised and are not in the state, since the journal cannot be written."""

    def observe_gpu(
        self, state: State, gpu: GpuId, holder: Job | None, sample: GpuSample, wall: float
    ) -> None:
        """Take a reading of a GPU; `holder` has it for itself."""
        track = self._gpus.get(gpu)
        if track is None:
            hot = self._restored(
                state, Alarm(kind="hot", since=0, text="", node=gpu[0], gpu=gpu[1]), sample.at, wall
            )
            track = GpuTrack(sample.at, hot=hot)
        self._gpus[gpu] = observe_gpu(track, sample)
        if holder is None:
            return
        key = (AttemptId(holder.id, holder.attempt), gpu)
        if holder.state is not JobState.RUNNING:
            self._held.pop(key, None)  # it may do nothing while it is paused
            return
        track = self._held.get(key) or self._restored_track(state, holder, gpu, sample.at, wall)
        self._held[key] = observe_gpu(track, sample)

    def observe_job(self, state: State, job: Job, sample: JobSample, wall: float) -> None:
        """Take what an attempt has reported and written."""
        key = AttemptId(job.id, job.attempt)
        before = self._jobs.get(key)
        if before is None:
            since = self._restored(state, _alarm("hung", 0, "", job), sample.at, wall)
            if since is not None:
                empty = JobSample(at=sample.at)
                before = JobTrack(empty, since, since, is_restored=True)
        self._jobs[key] = observe_job(before, sample, job.state is not JobState.RUNNING)

    @staticmethod
    def _restored(state: State, alarm: Alarm, at: float, wall: float) -> float | None:
        """Return since when an active alarm has been true, on the boot clock."""
        active = state.record.alarms.get(alarm.key)
        return at - max(wall - active.since, 0.0) if active is not None else None

    def _restored_track(
        self, state: State, job: Job, gpu: GpuId, at: float, wall: float
    ) -> GpuTrack:
        idle, unused = (
            self._restored(state, _alarm(kind, 0, "", job, gpu), at, wall)
            for kind in ("gpu_idle", "gpu_unused")
        )
        # An earlier daemon may have seen it at work.
        was_used = unused is None and bool(job.measured.busy or job.progress.peak)
        return GpuTrack(at, idle, unused, was_used=was_used)

    def forget_ended(self, state: State) -> None:
        """Drop what is known of attempts that have ended."""
        running = {AttemptId(job.id, job.attempt) for job in state.running.values()}
        self._jobs = {key: track for key, track in self._jobs.items() if key in running}
        self._held = {key: track for key, track in self._held.items() if key[0] in running}

    # -- alarms -------------------------------------------------------------------------

    def events(self, state: State, wall: float, boot: float) -> list[Event]:
        """Return the alarms that begin or end now."""
        active = state.record.alarms
        wanted = {alarm.key: alarm for alarm in self._alarms(state, wall - boot, boot)}
        cleared = [
            key for key in active if key not in wanted and self._is_known(state, active[key], boot)
        ]
        self._unwritten &= wanted.keys() - active.keys()
        raised = [key for key in wanted if key not in active and key not in self._unwritten]
        self._unwritten.update(raised)
        return [
            *(AlarmCleared(at=wall, alarm=active[key]) for key in cleared),
            *(AlarmRaised(at=wall, alarm=wanted[key]) for key in raised),
        ]

    def _is_known(self, state: State, alarm: Alarm, boot: float) -> bool:
        """Return whether there are recent samples that could confirm an alarm."""
        gpu = (alarm.node or "", alarm.gpu or "")
        if alarm.job is None:
            node = state.cluster.nodes.get(gpu[0])
            if node is None or (GPU, gpu[1]) not in node.by_name:
                return True  # it is gone
            track: GpuTrack | None = self._gpus.get(gpu)
        else:
            key = AttemptId(alarm.job, alarm.attempt)
            if key in self._jobs and alarm.gpu is None:
                return True
            job = state.running.get(alarm.job)
            if job is None or job.state is not JobState.RUNNING:
                return True
            track = self._held.get((key, gpu))
        return track is not None and boot - track.at <= MAX_GAP_SECONDS

    def _alarms(self, state: State, offset: float, boot: float) -> Iterator[Alarm]:
        """Yield all alarms that should be active; `offset` turns boot times into wall times."""
        for gpu, track in self._gpus.items():
            if boot - track.at <= MAX_GAP_SECONDS:
                yield from self._hardware_alarms(gpu, track, offset, boot)
        for job in state.running.values():
            if job.state is JobState.RUNNING:
                yield from self._job_alarms(state, job, offset, boot)

    def _hardware_alarms(
        self, gpu: GpuId, track: GpuTrack, offset: float, boot: float
    ) -> Iterator[Alarm]:
        limits, last = self._limits, track.last
        if last is None:
            return
        node, name = gpu
        found: list[tuple[str, float, str]] = []
        if limits.hot and track.hot is not None and boot - track.hot >= limits.hot:
            text = f"{last.temperature} °C; it slows down at {last.slowdown} °C"
            found.append(("hot", track.hot, text))
        if limits.ecc and last.ecc_errors:
            found.append(("ecc", boot, f"{last.ecc_errors} uncorrectable memory errors"))
        if limits.xid and last.xid is not None and last.xid not in PROGRAM_XIDS:
            found.append(("xid", boot, f"Xid {last.xid} reported by its driver"))
        for kind, since, text in found:
            yield Alarm(kind=kind, since=since + offset, text=text, node=node, gpu=name)

    def _job_alarms(self, state: State, job: Job, offset: float, boot: float) -> Iterator[Alarm]:
        limits = with_limits(self._limits, state.spec(job).alarms)
        key = AttemptId(job.id, job.attempt)
        whole = [(gpu, self._held[key, gpu]) for gpu in whole_gpus(job) if (key, gpu) in self._held]
        fresh = [(gpu, track) for gpu, track in whole if boot - track.at <= MAX_GAP_SECONDS]
        for gpu, track in fresh:
            found = gpu_alarm(track, job.started_boot or boot, boot, limits)
            if found is not None:
                yield _alarm(found[0], found[1] + offset, found[2], job, gpu)
        seen = self._jobs.get(key)
        if seen is None:
            return
        known = [track for _, track in fresh if track.last and track.last.utilization is not None]
        # Without readings of all its GPUs, one that works may be missed.
        gpus = known if len(known) == len(whole_gpus(job)) else []
        since = hung_since(seen, gpus, boot, limits.hung) if limits.hung else None
        if since is not None:
            yield _alarm("hung", since + offset, _hung_text(seen, gpus), job)
        if limits.nan and (seen.last.nan_metrics or seen.last.log_has_nan):
            names = ", ".join(seen.last.nan_metrics[:3]) or "the loss in its log"
            yield _alarm("nan", boot + offset, f"{names}: not a number", job)

    def advice(self, state: State, job: Job, wall: float) -> Alarm | None:
        """Return what an attempt that ends well asked for and did not use."""
        limits = with_limits(self._limits, state.spec(job).alarms)
        gpus, key = whole_gpus(job), AttemptId(job.id, job.attempt)
        tracks = [self._held[key, gpu] for gpu in gpus if (key, gpu) in self._held]
        runtime = wall - job.started_at if job.started_at is not None else 0.0
        if not (limits.over_requested and gpus) or runtime < limits.over_requested:
            return None
        if len(tracks) < len(gpus):
            return None  # not all of them were read
        used = sum(track.was_used for track in tracks)
        text = None
        if len(gpus) > 1 and 0 < used <= len(gpus) * MAX_USED_SHARE:
            text = f"it used {used} of {len(gpus)} GPUs: --gpus {used}"
        devices = (state.cluster.nodes[node].by_name[GPU, name] for node, name in gpus)
        memory = min(device.facts.memory or 0 for device in devices)
        peak = job.progress.peak
        if text is None and peak and memory and peak < memory * MAX_MEMORY_SHARE:
            text = f"it used {peak} of {memory} MiB of GPU memory: --gpu-memory lets it share"
        return _alarm(OVER_REQUESTED, wall - runtime, text, job) if text is not None else None


def gpu_alarm(
    track: GpuTrack, started: float, boot: float, limits: AlarmLimits
) -> tuple[str, float, str] | None:
    """Return kind, begin and text of the alarm of a GPU that an attempt has for itself."""
    if limits.gpu_unused and track.unused is not None and boot - track.unused >= limits.gpu_unused:
        return "gpu_unused", track.unused, "no process of the job has used it"
    if limits.gpu_idle and track.idle is not None:
        begin = max(track.idle, started + STARTUP_SECONDS)
        if boot - begin >= limits.gpu_idle:
            memory = track.last.memory if track.last is not None else None
            held = f"; {memory} MiB of its memory are in use" if memory else ""
            return "gpu_idle", track.idle, f"nothing runs on it{held}"
    return None


def _hung_text(track: JobTrack, gpus: list[GpuTrack]) -> str:
    usual = ""
    if track.intervals:
        usual = f", where one came every {approximate_duration(max(track.intervals))}"
    load = f"; GPU at {'100' if gpus[0].is_full else '0'} %" if gpus else ""
    return f"no report of progress{usual}{load}"


def _alarm(kind: str, since: float, text: str, job: Job, gpu: GpuId | None = None) -> Alarm:
    node, name = gpu if gpu is not None else (None, None)
    return Alarm(
        kind=kind, since=since, text=text, job=job.id, attempt=job.attempt, node=node, gpu=name
    )
