"""Replay: discrete-event simulation of a workload with the real core.

The core gets the events of real jobs: starts, measured epochs, stops and ends. Its instructions
are executed at once, except that a job stops at its next checkpoint.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from time import perf_counter

from stoker.core import events as e
from stoker.core.events.instructions import (
    RequestStop,
    StartProcess,
    TerminateAttempt,
    WithdrawStop,
)
from stoker.core.handlers import apply
from stoker.core.model.resources import GPU, NodeFacts, Placement, ResourceRequest
from stoker.core.model.spec import Spec, Training
from stoker.core.planner.cycle import run_cycle
from stoker.core.policies.policy import DurationSource
from stoker.core.policies.policy import policy as policy_named
from stoker.core.state.state import State
from stoker.core.state.timers import next_timers
from stoker.simulate.job_request import request_for
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.gpu_sharing import GpuSharing
from stoker.simulate.replay.job_profiles import JobProfiles
from stoker.simulate.replay.job_run import JobRun
from stoker.simulate.replay.recorder import RunRecorder
from stoker.simulate.replay.results import RunResult
from stoker.simulate.workload import TraceJob, Workload

SPEED_REPORTED_AFTER_SECONDS = 30.0
"""Seconds after which a job with known epochs reports its speed by its steps."""

MAX_EMPTY_CYCLES = 100
"""Cycles at one instant while planning is requested although no instruction is left."""
MIN_SPEC_HASHES = 1000
"""Spec hashes to keep before those that the core has dropped are removed."""


class Replay:
    """One workload on one cluster under one policy."""

    def __init__(
        self,
        workload: Workload,
        nodes: list[NodeFacts],
        policy: str,
        parameters: dict[str, float] | None = None,
        assumptions: ReplayAssumptions | None = None,
        max_segments: int = 0,
        state: State | None = None,
    ) -> None:
        """With `state`, continue the state of a daemon (or a copy); see `resume_job`."""
        self.workload, self.nodes, self.policy_name = workload, nodes, policy
        self.parameters, self.assumptions = parameters or {}, assumptions or ReplayAssumptions()
        rules = policy_named(policy)
        self.knows_durations = rules.durations is DurationSource.DECLARED
        """The policy knows all durations, and may preempt every job at any time."""
        has_estimates = self.assumptions.estimate_error is not None
        self.jobs_report = not (
            self.knows_durations or has_estimates or self.assumptions.time_limits_only
        )
        """Jobs report epochs."""
        self.profiles: JobProfiles | None = None
        """Speeds measured beforehand, if the policy uses them."""
        self.sharing = GpuSharing()
        """Jobs by GPU, if the policy uses profiles."""
        if (
            workload.profiled
            and rules.durations is DurationSource.MEASURED
            and not self.assumptions.time_limits_only
        ):
            self.profiles = JobProfiles(workload, nodes, self.assumptions.checkpoint_seconds)
            self.nodes = self.profiles.with_memory(nodes)
        self.has_initial_state = state is not None
        self.state = state or State()
        self.runs: dict[int, JobRun] = {}
        self.timers: list[tuple[float, int, str, int, int]] = []
        """Heap of (time, sequence number, timer name, job id, version of the run)."""
        self.timer_count = 0
        self.now = 0.0
        self.spec_hashes: dict[tuple[object, ...], str] = {}
        """Hash of the spec of jobs with equal attributes."""
        self.spec_count = 0
        self.gpus_per_node = max((len(node.types.get(GPU, ())) for node in nodes), default=0)
        self.recorder = RunRecorder(nodes, max_segments)
        self.cycle_seconds = array("d")

    # -- main loop ----------------------------------------------------------------------

    def run(self, on_progress: Callable[[int], None] = lambda done: None) -> RunResult:
        """Simulate all jobs to their end."""
        if not self.has_initial_state:
            name, parameters = self.policy_name, self.parameters
            self._apply(e.PolicyChosen(at=0.0, queue="*", name=name, parameters=parameters))
            for node in self.nodes:
                self._apply(e.NodeJoined(at=0.0, facts=node))
            if self.profiles is not None:
                for event in self.profiles.profile_events(self.assumptions.restart_seconds):
                    self._apply(event)
        jobs, timers, index = self.workload.jobs, self.timers, 0
        while index < len(jobs) or timers or (self.runs and self.state.record.reservations):
            self.now = now = self._next_event_time(
                jobs[index].submit_time if index < len(jobs) else inf
            )
            instructions: list[object] = []
            while index < len(jobs) and jobs[index].submit_time <= now:
                instructions += self._submit(index + 1, jobs[index])
                index += 1
            while timers and timers[0][0] <= now:
                _, _, timer, job, version = heappop(timers)
                instructions += self._on_timer(timer, job, version)
            instructions += self._end_nodes()
            if self.profiles is not None:
                instructions += self._report_finished_epochs()
            self._cycle(instructions)
            on_progress(self.recorder.ended_count)
        return self.recorder.result(
            policy=self.policy_name, parameters=self.parameters, workload=self.workload,
            spent=self.cycle_seconds, unfinished=len(self.runs),
        )  # fmt: skip

    def _next_event_time(self, arrival: float) -> float:
        """Return the time of the next event, given the next arrival."""
        event_timer = self.timers[0][0] if self.timers else inf
        timers = (event_timer, self._next_node_end(), *next_timers(self.state, self.now))
        return max(min(arrival, *timers), self.now)

    def resume_job(self, id: int, trace_job: TraceJob, remaining: float) -> None:
        """Continue a job of the initial state that needs these seconds more."""
        job = self.state.jobs[id]
        run = self.runs[id] = JobRun(trace_job)
        run.work_done, run.attempt = max(trace_job.duration - remaining, 0.0), job.attempt
        if job.placement is not None:
            run.placement, run.work_start = job.placement, self.now
            run.end_time = run.time_of(run.work_until_end)
            self._schedule(run.end_time, "end", id, run.version)
            self.recorder.attempt_started(id, trace_job, self.now, job.placement)

    def _cycle(self, instructions: list[object]) -> None:
        """Run cycles of the core until it returns no instruction."""
        begin = perf_counter()
        state, now = self.state, self.now
        for number in count():
            for event in run_cycle(state, now, now):
                instructions += self._apply(event)
            self.cycle_seconds.append(perf_counter() - begin)
            following: list[object] = []
            for instruction in instructions:
                following += self._execute(instruction)
            state.take_changes()
            if not following and (
                not state.pending.planning_requested or number >= MAX_EMPTY_CYCLES
            ):
                break
            instructions = following
            begin = perf_counter()
        self.recorder.cycle_ended(now, len(state.pending))

    def _apply(self, event: e.Event) -> list[object]:
        return list(apply(self.state, event))

    # -- jobs ---------------------------------------------------------------------------

    def _submit(self, id: int, trace_job: TraceJob) -> list[object]:
        request = self._request(trace_job)
        training = self._training(trace_job)
        limit = trace_job.time_limit
        non_preemptible = self._is_non_preemptible(trace_job)
        name = trace_job.name if self.profiles is not None else ""
        # Jobs of one name share a profile in the core; a job without a name has its own.
        key = (
            request, training, limit, trace_job.user, name, trace_job.queue, non_preemptible,
            self._spec_distinction(trace_job),
        )  # fmt: skip
        hash = self.spec_hashes.get(key)
        instructions: list[object] = []
        if hash is None or hash not in self.state.specs:
            hash = self.spec_hashes[key] = self._new_spec_hash()
            spec = Spec(
                kind="argv", user=trace_job.user, directory="/", shell="", environment="",
                request=request, name=name, queue=trace_job.queue or "default", limit=limit,
                training=training, non_preemptible=non_preemptible,
            )  # fmt: skip
            instructions += self._apply(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        self.runs[id] = self._new_run(trace_job)
        instructions += self._apply(
            e.JobsSubmitted(
                at=self.now, first=id, count=1, spec=hash, argv=self._argv(id, trace_job),
                priority=trace_job.priority,
            )
        )  # fmt: skip
        return instructions

    def _new_run(self, trace_job: TraceJob) -> JobRun:
        run, assumptions = JobRun(trace_job), self.assumptions
        run.work_until_end = assumptions.work_until_end(trace_job)
        run.epoch_factor = assumptions.epoch_factor(trace_job)
        run.is_silent = assumptions.is_silent(trace_job)
        return run

    def _argv(self, id: int, trace_job: TraceJob) -> tuple[str, ...]:
        """Return a command that no other job has."""
        return (f"{trace_job.name}#{id}",)

    def _new_spec_hash(self) -> str:
        """Return a new spec hash; from time to time drop those that the core has dropped."""
        live = self.state.specs
        if len(self.spec_hashes) > 2 * len(live) + MIN_SPEC_HASHES:
            self.spec_hashes = {key: name for key, name in self.spec_hashes.items() if name in live}
        self.spec_count += 1
        return str(self.spec_count)

    def _spec_distinction(self, trace_job: TraceJob) -> object:
        """Return what gives a job its own spec although its attributes are equal."""
        return None

    def _request(self, trace_job: TraceJob) -> ResourceRequest:
        memory = None
        if self.profiles is not None and self.profiles.may_share(trace_job):
            memory = self.profiles.reserved_memory
        return request_for(trace_job, self.gpus_per_node, memory)

    def _training(self, trace_job: TraceJob) -> Training | None:
        if self.assumptions.estimate_error is not None:
            return Training(expected=ceil(self.assumptions.user_estimate(trace_job)))
        if self.knows_durations:
            return Training(expected=max(ceil(self.assumptions.work_until_end(trace_job)), 1))
        if self.assumptions.time_limits_only:
            return None
        spans_nodes = trace_job.max_gpus is not None and trace_job.max_gpus > self.gpus_per_node
        return Training(
            epochs=self._epoch_count(trace_job),
            expected=trace_job.expected,
            distributed=spans_nodes,
        )

    def _epoch_count(self, trace_job: TraceJob) -> int:
        if trace_job.epochs is not None:
            return trace_job.epochs
        if self.profiles is not None and (epoch := self.profiles.epoch_work(trace_job)) is not None:
            return max(ceil(trace_job.duration / epoch - 1e-6), 1)
        return self.assumptions.epoch_count(trace_job)

    def _epoch_seconds(self, trace_job: TraceJob) -> float:
        """Return the seconds of work in an epoch."""
        if self.profiles is not None and (epoch := self.profiles.epoch_work(trace_job)) is not None:
            return epoch
        return trace_job.duration / self._epoch_count(trace_job)

    def _measured_work(self, trace_job: TraceJob) -> float:
        """Return the work after which the epoch time is known."""
        return trace_job.duration * self.assumptions.measured_after

    # -- timers -------------------------------------------------------------------------

    def _schedule(self, at: float, timer: str, job: int, version: int) -> None:
        self.timer_count += 1
        heappush(self.timers, (at, self.timer_count, timer, job, version))

    def _on_timer(self, timer: str, id: int, version: int) -> list[object]:
        run = self.runs.get(id)
        if run is None or run.version != version:
            return []
        if timer == "known":
            return self._report_epochs(id, run, self._measured_work(run.job))
        if timer == "told":
            return self._report_epochs(id, run, run.work_at(self.now))
        if timer == "epoch":
            return self._on_epoch_end(id, run)
        if timer == "stop" and run.stop_time <= self.now:
            work = run.work_at(self.now)
            instructions = self._report_epochs(id, run, work) if self.jobs_report else []
            run.work_done = work
            return instructions + self._end_attempt(id, run, stopped=True)
        if timer == "end" and run.end_time <= self.now:
            instructions = self._end_attempt(id, run)
            del self.runs[id]
            return instructions
        return []

    def _report_epochs(self, id: int, run: JobRun, work: float) -> list[object]:
        if run.is_silent:
            return []
        epoch = self._epoch_seconds(run.job)
        done = run.reported_epochs = int(work / epoch + 1e-6)
        at = self.now
        if self.profiles is not None:
            at = min(max(run.time_of(done * epoch), run.work_start), at)
        seconds = epoch / run.rate * run.epoch_factor
        return self._apply(
            e.EpochsCounted(at=at, job=id, attempt=run.attempt, done=done, seconds=seconds)
        )

    def _on_epoch_end(self, id: int, run: JobRun) -> list[object]:
        """Report the end of an epoch and update the rate of a job with varying epoch speeds."""
        trace_job, epoch = run.job, self._epoch_seconds(run.job)
        done = round(run.work_at(self.now) / epoch)
        on_progress = self.jobs_report and not trace_job.non_preemptible
        instructions = self._report_epochs(id, run, done * epoch) if on_progress else []
        run.work_done, run.work_start = done * epoch, self.now
        run.rate = self._rate(trace_job, run)
        run.end_time = run.time_of(run.work_until_end)
        self._schedule(run.end_time, "end", id, run.version)
        self._schedule_epoch_end(id, run)
        return instructions

    def _schedule_epoch_end(self, id: int, run: JobRun) -> None:
        """Set a timer for the end of the current epoch, when the rate may change."""
        epoch = self._epoch_seconds(run.job)
        next_end = (int(run.work_done / epoch + 1e-6) + 1) * epoch
        if next_end < run.work_until_end - 1e-6 * epoch:
            self._schedule(run.time_of(next_end), "epoch", id, run.version)

    def _report_finished_epochs(self) -> list[object]:
        """Report all finished epochs; only at other events, because nothing acts on them before."""
        instructions: list[object] = []
        for id, run in self.runs.items():
            if run.placement is not None and run.work_start < self.now < run.end_time:
                work = run.work_at(self.now)
                if int(work / self._epoch_seconds(run.job) + 1e-6) > run.reported_epochs:
                    instructions += self._report_epochs(id, run, work)
        return instructions

    def _end_attempt(self, id: int, run: JobRun, stopped: bool = False) -> list[object]:
        stop = self.state.jobs[id].progress.stop if stopped else None
        self._release(id, run, not stopped, stop is not None and stop.resize_to is not None)
        fails = not stopped and run.work_until_end < run.job.duration
        return self._apply(
            e.ProcessExited(
                at=self.now, job=id, attempt=run.attempt, code=int(fails), stopped=stopped
            )
        )

    def _release(self, id: int, run: JobRun, ended: bool, resized: bool = False) -> None:
        """Record the end of an attempt, and perhaps of the job."""
        run.version += 1
        placement, run.placement = run.placement, None
        self.recorder.attempt_ended(id, run.job, self.now, placement, ended, resized)
        if self.profiles is not None and placement is not None:
            for sharer in self.sharing.leave(id, placement):
                self._update_rate(sharer)

    # -- nodes that end -----------------------------------------------------------------

    def _next_node_end(self) -> float:
        return min(self.state.cluster.node_ends.values(), default=inf)

    def _end_nodes(self) -> list[object]:
        """Remove the nodes that end now, with the attempts on them."""
        ends = self.state.cluster.node_ends
        instructions: list[object] = []
        for name in [name for name, end in ends.items() if end <= self.now]:
            for id, run in list(self.runs.items()):
                if run.placement is not None and run.placement.on(name) is not None:
                    instructions += self._lose_attempt(id, run, f"{name} has ended")
            removed = e.NodeRemoved(at=self.now, name=name, why="it has ended")
            instructions += self._apply(removed)
        return instructions

    def _lose_attempt(self, id: int, run: JobRun, why: str) -> list[object]:
        """End an attempt with its node: a job that saves its work repeats the current epoch."""
        epoch = 0.0 if self._is_non_preemptible(run.job) else self._epoch_seconds(run.job)
        run.work_done = int(run.work_at(self.now) / epoch + 1e-6) * epoch if epoch else 0.0
        instructions = self._apply(
            e.AttemptLost(at=self.now, job=id, attempt=run.attempt, why=why, preempted=True)
        )
        has_ended = self.state.jobs[id].finished
        self._release(id, run, has_ended)
        if has_ended:
            del self.runs[id]
        return instructions

    def _is_non_preemptible(self, trace_job: TraceJob) -> bool:
        return trace_job.non_preemptible or self.assumptions.non_preemptible

    # -- instructions -------------------------------------------------------------------

    def _execute(self, instruction: object) -> list[object]:
        match instruction:
            case StartProcess():
                return self._start(instruction)
            case RequestStop():
                self._request_stop(instruction.job)
            case WithdrawStop():
                run = self.runs[instruction.job]
                run.stop_time = inf
            case TerminateAttempt():
                run = self.runs[instruction.job]
                run.work_done = run.work_at(self.now)
                return self._end_attempt(instruction.job, run, stopped=True)
        return []

    def _start(self, instruction: StartProcess) -> list[object]:
        id, trace_job = instruction.job, self.runs[instruction.job].job
        run = self.runs[id]
        run.attempt, run.placement = instruction.attempt, instruction.placement
        run.version += 1
        run.stop_time = inf
        run.work_start = self.now + (
            self.assumptions.restart_seconds
            if instruction.attempt or trace_job.first_start_costs
            else 0.0
        )
        run.rate = self._rate(trace_job, run)
        run.end_time = run.time_of(run.work_until_end)
        self._schedule(run.end_time, "end", id, run.version)
        if trace_job.epochs is not None:
            self._schedule_epoch_end(id, run)
        if self.profiles is not None:
            for sharer in self.sharing.join(id, instruction.placement):
                self._update_rate(sharer)
        self.recorder.attempt_started(id, trace_job, self.now, instruction.placement)
        instructions = self._apply(
            e.ProcessStarted(at=self.now, job=id, attempt=instruction.attempt, pid=1, boot=self.now)
        )
        if self._is_non_preemptible(trace_job):
            return instructions
        instructions += self._apply(
            e.TrainingBegan(at=self.now, job=id, attempt=instruction.attempt)
        )
        if self.jobs_report:
            known = self._measured_work(trace_job)
            if trace_job.epochs is not None:
                self._schedule(
                    run.work_start + SPEED_REPORTED_AFTER_SECONDS, "told", id, run.version
                )
            elif self.profiles is None and run.work_done < known:
                self._schedule(run.time_of(known), "known", id, run.version)
        return instructions

    def _rate(self, trace_job: TraceJob, run: JobRun) -> float:
        if trace_job.speed is None or run.placement is None:
            return 1.0
        parts = run.placement.parts
        gpus = sum(len(part.names(GPU)) for part in parts)
        return trace_job.speed.rate(
            run.work_done / trace_job.duration, gpus, len(parts), self._gpu_model(parts[0])
        )

    def _update_rate(self, id: int) -> None:
        """Recompute the rate of a job after jobs joined or left its GPUs."""
        run = self.runs[id]
        assert run.placement is not None
        trace_job, model = run.job, self._gpu_model(run.placement)
        run.work_done = run.work_at(self.now)
        run.work_start = max(self.now, run.work_start)
        run.rate = self._rate(trace_job, run)
        for other in self.sharing.neighbours(id, run.placement):
            speed = self.runs[other].job.speed
            if trace_job.speed is not None and speed is not None:
                run.rate *= trace_job.speed.interference(speed, model)
        stop_requested = run.stop_time < inf
        run.version += 1
        run.end_time = run.time_of(run.work_until_end)
        self._schedule(run.end_time, "end", id, run.version)
        if stop_requested:
            self._request_stop(id)

    def _gpu_model(self, part: Placement) -> str:
        node = self.state.cluster.nodes[part.node]
        for name in part.names(GPU):
            return node.by_name[GPU, name].facts.model or ""
        return ""

    def _request_stop(self, id: int) -> None:
        """Let a job stop at its next checkpoint, unless it ends before."""
        run = self.runs[id]
        stops_immediately = self.knows_durations or run.job.stops_immediately
        if stops_immediately or not self.assumptions.checkpoint_seconds:
            run.stop_time = self.now
        else:
            epoch = self._epoch_seconds(run.job)
            checkpoint = ceil(run.work_at(self.now) / epoch - 1e-6) * epoch
            run.stop_time = max(run.time_of(checkpoint), self.now)
        if run.stop_time < run.end_time:
            self._schedule(run.stop_time, "stop", id, run.version)


def replay(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    parameters: dict[str, float] | None = None,
    assumptions: ReplayAssumptions | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
    max_segments: int = 0,
) -> RunResult:
    """Replay a workload under a policy."""
    return Replay(workload, nodes, policy, parameters, assumptions, max_segments).run(on_progress)
