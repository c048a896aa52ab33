"""AlarmTracker: samples -> alarms that should be active, and the events that make them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from stoker.core.alarms.actions import Action, action_events
from stoker.core.alarms.checks import Finding, check_hardware, check_job, check_use
from stoker.core.alarms.samples import (
    MAX_GAP_SECONDS,
    GpuSample,
    GpuTrack,
    JobSample,
    JobTrack,
    observe_gpu,
    observe_job,
    restored_track,
)
from stoker.core.events import AlarmCleared, AlarmRaised, Event
from stoker.core.model.alarm import OVER_REQUESTED, Alarm, AlarmRules
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.core.model.resources import GPU
from stoker.core.model.units import MAX_DURATION_SECONDS, THOUSAND
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import sweep_of

GpuId = tuple[str, str]
"""Node and name of a GPU."""
MAX_USED_SHARE, MAX_MEMORY_SHARE = 0.5, 0.25
"""An attempt asked for too much if it used no more than that of its GPUs, or of their memory."""


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

    def __init__(self, rules: AlarmRules, queues: Mapping[str, AlarmRules] | None = None) -> None:
        """`queues`: the rules of queues that have others."""
        self._rules, self._queues = rules, queues or {}
        self._gpus: dict[GpuId, GpuTrack] = {}
        self._held: dict[tuple[AttemptId, GpuId], GpuTrack] = {}
        self._jobs: dict[AttemptId, JobTrack] = {}
        self._unwritten: set[str] = set()
        """Alarms that were raised and are not in the state, since the journal cannot be written."""
        self._decided: dict[AttemptId, Action] = {}
        """The last decision about each attempt, which may not be in the state for that reason."""

    def observe_gpu(self, state: State, gpu: GpuId, holder: Job | None, sample: GpuSample) -> None:
        """Take a reading of a GPU; `holder` has it for itself."""
        track = self._gpus.get(gpu)
        if track is None:
            alarm = Alarm(kind="hot", since=0, text="", node=gpu[0], gpu=gpu[1])
            track = GpuTrack(sample.at, hot=_restored(state, alarm, sample.at))
        self._gpus[gpu] = observe_gpu(track, sample)
        if holder is None:
            return
        key = (AttemptId(holder.id, holder.attempt), gpu)
        if holder.state is not JobState.RUNNING:
            self._held.pop(key, None)  # it may do nothing while it is paused
            return
        track = self._held.get(key) or _restored_track(state, holder, gpu, sample.at)
        self._held[key] = observe_gpu(track, sample)

    def observe_job(self, state: State, job: Job, sample: JobSample, is_known: bool = True) -> None:
        """Take what an attempt has reported and written, unless that cannot be known now."""
        key = AttemptId(job.id, job.attempt)
        before = self._jobs.get(key)
        sweep = sweep_of(state, job)
        if sample.objective is not None:
            value = sweep.ascending(sample.objective) if sweep is not None else None
            sample = replace(sample, objective=value)
        if before is None:
            kinds = ("hung", "log_silent", "loss_flat", "diverged")
            found = {kind: _restored(state, _alarm(kind, 0, "", job), sample.at) for kind in kinds}
            since = {kind: at for kind, at in found.items() if at is not None}
            before = restored_track(sample.at, since) if since else None
        is_paused = job.state is not JobState.RUNNING or not is_known
        self._jobs[key] = observe_job(before, sample, is_paused)

    def forget_ended(self, state: State) -> None:
        """Drop what is known of attempts that have ended."""
        running = {AttemptId(job.id, job.attempt) for job in state.running.values()}
        self._jobs = {key: track for key, track in self._jobs.items() if key in running}
        self._held = {key: track for key, track in self._held.items() if key[0] in running}
        self._decided = {key: event for key, event in self._decided.items() if key in running}

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
        confirmed = [
            replace(active[key], action=alarm.action)
            for key, alarm in wanted.items() if key in active
        ]  # fmt: skip
        return [
            *(AlarmCleared(at=wall, alarm=active[key]) for key in cleared),
            *(AlarmRaised(at=wall, alarm=wanted[key]) for key in raised),
            *self._actions(state, confirmed, wall, boot),
        ]

    def is_wanted(self, alarm: Alarm) -> bool:
        """Return whether an alarm was raised that is not in the state yet."""
        return alarm.key in self._unwritten

    def _actions(
        self, state: State, alarms: list[Alarm], wall: float, boot: float
    ) -> Iterator[Action]:
        """Yield what follows from alarms in the state, each decision once."""
        for event in action_events(state, alarms, wall, boot):
            key = AttemptId(event.job, state.jobs[event.job].attempt)
            before = self._decided.get(key)
            if type(event) is not type(before) or event.at_once != before.at_once:
                self._decided[key] = event
                yield event

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
        for (node, name), track in self._gpus.items():
            findings = check_hardware(track, boot, self._rules)
            for kind, since, text in findings if boot - track.at <= MAX_GAP_SECONDS else ():
                yield Alarm(
                    kind=kind, since=since + offset, text=text, node=node, gpu=name,
                    action=self._rules.action(kind),
                )  # fmt: skip
        for job in state.running.values():
            if job.state is JobState.RUNNING:
                rules = self.rules_of(state, job)
                for (kind, since, text), gpu in self._job_findings(job, boot, rules):
                    alarm = _alarm(kind, since + offset, text, job, gpu)
                    yield replace(alarm, action=rules.action(kind))

    def rules_of(self, state: State, job: Job) -> AlarmRules:
        """Return the rules of a job: its own, then those of its queue, then the general ones."""
        spec = state.spec(job)
        general = self._queues.get(spec.queue, self._rules)
        return AlarmRules(spec.alarms, general) if spec.alarms else general

    def _job_findings(
        self, job: Job, boot: float, rules: AlarmRules
    ) -> Iterator[tuple[Finding, GpuId | None]]:
        key = AttemptId(job.id, job.attempt)
        whole = [(gpu, self._held[key, gpu]) for gpu in whole_gpus(job) if (key, gpu) in self._held]
        fresh = [(gpu, track) for gpu, track in whole if boot - track.at <= MAX_GAP_SECONDS]
        for gpu, track in fresh:
            found = check_use(track, job.started_boot or boot, boot, rules)
            if found is not None:
                yield found, gpu
        seen = self._jobs.get(key)
        if seen is None:
            return
        known = [track for _, track in fresh if track.last and track.last.utilization is not None]
        # Without readings of all its GPUs, one that works may be missed.
        gpus = known if len(known) == len(whole_gpus(job)) else []
        for found in check_job(seen, gpus, boot, rules):
            yield found, None

    def advice(self, state: State, job: Job, wall: float) -> Alarm | None:
        """Return what an attempt that ends well asked for and did not use."""
        shortest = self.rules_of(state, job).limit(OVER_REQUESTED)
        gpus, key = whole_gpus(job), AttemptId(job.id, job.attempt)
        tracks = [self._held[key, gpu] for gpu in gpus if (key, gpu) in self._held]
        runtime = wall - job.started_at if job.started_at is not None else 0.0
        if not (shortest and gpus) or runtime < shortest:
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


def _restored(state: State, alarm: Alarm, at: float) -> float | None:
    """Return since when an active alarm has been true: for long enough, whatever the clocks say."""
    return at - MAX_DURATION_SECONDS if alarm.key in state.record.alarms else None


def _restored_track(state: State, job: Job, gpu: GpuId, at: float) -> GpuTrack:
    idle, unused = (
        _restored(state, _alarm(kind, 0, "", job, gpu), at) for kind in ("gpu_idle", "gpu_unused")
    )
    # An earlier daemon may have seen it at work.
    was_used = unused is None and bool(job.measured.busy or job.progress.peak)
    return GpuTrack(at, idle, unused, was_used=was_used)


def _alarm(kind: str, since: float, text: str, job: Job, gpu: GpuId | None = None) -> Alarm:
    node, name = gpu if gpu is not None else (None, None)
    return Alarm(
        kind=kind, since=since, text=text, job=job.id, attempt=job.attempt, node=node, gpu=name
    )
