"""AlarmMonitor: collects samples of running jobs, and publishes alarms as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from stoker.core.alarms.samples import GpuSample, JobSample
from stoker.core.alarms.tracker import AlarmTracker, whole_gpus
from stoker.core.events import AlarmRaised, Event, ProcessExited
from stoker.core.model.alarm import AlarmRules
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import GPU
from stoker.core.state.state import State
from stoker.daemon.alarms.evidence import EvidenceCollector
from stoker.daemon.alarms.log_scanner import LogScanner
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.views.placement import open_logs
from stoker.engine import Instant
from stoker.executors.reactor import Reactor, Timer
from stoker.probes.gpu_reading import GpuUse

CHECK_SECONDS = 10.0
"""How often reports and logs of a job are looked at."""
JOBS_PER_TURN, PAUSE_SECONDS = 50, 0.2
"""Jobs that are looked at in one turn of the daemon: about 5 ms."""
MIN_CONTEXT_MIB = 64
"""No process computes on a GPU with less."""


class AlarmMonitor:
    """Feeds the tracker from readings of GPUs, reports and logs."""

    def __init__(
        self, rules: AlarmRules, node: str, logs: str, reactor: Reactor,
        sample: Callable[[int], JobSample | None], memory: Callable[[int], Mapping[str, int]],
        queues: Mapping[str, AlarmRules] | None = None,
        clock: Callable[[], Instant] = system_clock,
    ) -> None:  # fmt: skip
        """`sample` returns what a job has reported, `memory` its MiB by GPU.

        `queues`: the rules of queues that have others.
        """
        self._tracker = AlarmTracker(rules, queues)
        self._node, self._logs, self._clock = node, logs, clock
        self._sample, self._memory = sample, memory
        self._timer = Timer(reactor, lambda: None)
        """Wakes the loop, so that `collect` is called."""
        self._evidence = EvidenceCollector(reactor, lambda: self._timer.request(0.0))
        self._scanners: dict[AttemptId, LogScanner] = {}
        self._to_check: list[int] = []
        # Until then the reports are read that an earlier daemon has read before.
        self._next_check = clock().boot + CHECK_SECONDS
        self._has_reading = False

    def on_reading(self, state: State, node: str, uses: Mapping[str, GpuUse]) -> None:
        """Take a reading of the GPUs of a node."""
        now, self._has_reading = self._clock(), True
        holders = {
            gpu[1]: job
            for job in state.running.values()
            if job.placement is not None and job.placement.on(node) is not None
            for gpu in whole_gpus(job)
            if gpu[0] == node
        }
        for device in state.cluster.nodes[node].types.get(GPU, ()):
            use = uses.get(device.facts.uuid or "")
            if use is None:
                continue
            job, slowdown = holders.get(device.name), use.slowdown
            sample = GpuSample(
                at=now.boot,
                utilization=use.utilization,
                has_process=self._has_process(job, node, device.name, use) if job else None,
                memory=use.memory_used,
                temperature=use.temperature,
                slowdown=None if device.facts.mig else slowdown,
                is_slowed=use.is_slowed,
                ecc_errors=use.ecc_errors,
                xid=use.xid,
            )
            self._tracker.observe_gpu(state, (node, device.name), job, sample)

    def _has_process(self, job: Job, node: str, gpu: str, use: GpuUse) -> bool | None:
        memory = self._memory(job.id)
        if gpu in memory or f"{node}/{gpu}" in memory:
            return True
        # Processes in another pid namespace are not listed, but use memory.
        is_empty = use.processes_known and not use.processes
        return False if is_empty and (use.memory_used or 0) < MIN_CONTEXT_MIB else None

    def collect(self, state: State) -> list[Event]:
        """Look at running jobs when it is time; return the alarms that begin or end."""
        events = [event for event in self._collect(state) if not self._is_held_back(event, state)]
        ready = self._evidence.take()
        return events + [event for event in ready if self._tracker.is_wanted(event.alarm)]

    def _is_held_back(self, event: Event, state: State) -> bool:
        """Return whether an alarm is raised later, with what its processes are doing."""
        if not isinstance(event, AlarmRaised) or event.alarm.kind != "hung":
            return False
        job = state.running.get(event.alarm.job or 0)
        if job is None or not job.pid or {part.node for part in job.parts} != {self._node}:
            return False
        if state.spec(job).uid is not None:  # its processes belong to another user
            return False
        return self._evidence.collect(event, job.pid)

    def _collect(self, state: State) -> list[Event]:
        now = self._clock()
        has_reading, self._has_reading = self._has_reading, False
        if not state.running:
            # Alarms about GPUs: these are read while a client looks at them.
            is_due = has_reading and bool(state.record.alarms)
            return self._tracker.events(state, now.wall, now.boot) if is_due else []
        if now.boot < self._next_check:
            self._has_reading = has_reading
            self._timer.request(self._next_check - now.boot)
            return []
        if not self._to_check:
            self._to_check = list(state.running)
            self._tracker.forget_ended(state)
            running = {AttemptId(job.id, job.attempt) for job in state.running.values()}
            self._scanners = {k: v for k, v in self._scanners.items() if k in running}
        batch = self._to_check[:JOBS_PER_TURN]
        self._to_check = self._to_check[JOBS_PER_TURN:]
        for id in batch:
            if (job := state.running.get(id)) is not None:
                self._check(state, job, now)
        pause = PAUSE_SECONDS if self._to_check else CHECK_SECONDS
        self._next_check = now.boot + pause
        self._timer.request(pause)
        return self._tracker.events(state, now.wall, now.boot)

    def _check(self, state: State, job: Job, now: Instant) -> None:
        sample = self._sample(job.id) or JobSample(at=now.boot)
        scanner = self._scanners.setdefault(AttemptId(job.id, job.attempt), LogScanner())
        spec, paths = state.spec(job), dict[str, None]()
        for rank, part in enumerate(job.parts):
            paths |= dict.fromkeys(open_logs(job, spec, part.node, self._logs, rank))
        size = scanner.read(*paths)
        sample = replace(sample, at=now.boot, log_size=size, log_has_nan=scanner.has_nan)
        # What a node does not send while it cannot be reached is not missing.
        is_known = not any(part.node in state.record.unreachable for part in job.parts)
        self._tracker.observe_job(state, job, sample, is_known)

    def before_ends(self, events: list[Event], state: State) -> list[Event]:
        """Return events with the advice on attempts that end well, before their ends."""
        result: list[Event] = []
        for event in events:
            if isinstance(event, ProcessExited) and event.code == 0 and event.part is None:
                job = state.running.get(event.job)
                if job is not None and job.attempt == event.attempt:
                    alarm = self._tracker.advice(state, job, event.at)
                    result += [AlarmRaised(at=event.at, alarm=alarm)] if alarm else []
            result.append(event)
        return result
