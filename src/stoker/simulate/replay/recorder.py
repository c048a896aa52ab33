"""RunRecorder: records ends, GPU use, queue length and placements during a replay."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.model.resources import GPU, NodeFacts, Placement
from stoker.simulate.replay.results import JobResult, RunCost, RunResult, Segment
from stoker.simulate.workload import TraceJob, Workload

MAX_POINTS = 4000
"""Points of a series; above, every other point is dropped."""


class StepSeries:
    """A step function over time in bounded memory."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.min_spacing = 0.0
        """Minimum seconds between two points."""
        self.skipped_point: tuple[float, float] | None = None

    def append(self, at: float, value: float) -> None:
        """Set the value from a time on."""
        if self.points and at - self.points[-1][0] < self.min_spacing:
            self.skipped_point = (at, value)
            return
        self.skipped_point = None
        if self.points and self.points[-1][0] == at:
            self.points[-1] = (at, value)
            return
        self.points.append((at, value))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.min_spacing = (self.points[-1][0] - self.points[0][0]) / (MAX_POINTS / 2)

    def all_points(self) -> list[tuple[float, float]]:
        """Return all points, including the last value."""
        return [*self.points, self.skipped_point] if self.skipped_point is not None else self.points


class RunRecorder:
    """Records one run."""

    def __init__(self, nodes: list[NodeFacts], max_segments: int) -> None:
        self.node_index = {node.name: number for number, node in enumerate(nodes)}
        self.gpus = sum(len(node.types.get(GPU, ())) for node in nodes)
        self.gpu_index = {
            (node.name, card.name): at
            for node in nodes
            for at, card in enumerate(node.types.get(GPU, ()))
        } if max_segments else {}  # fmt: skip
        self.max_segments = max_segments
        self.results: list[JobResult] = []
        self.unfinished: dict[int, JobResult] = {}
        self.attempt_start: dict[int, float] = {}
        self.segments: list[Segment] = []
        self.gpus_held = 0.0
        self.sharers: dict[tuple[str, str], int] = {}
        """Number of jobs on each shared GPU, by (node, GPU)."""
        self.gpu_use, self.pending = StepSeries(), StepSeries()
        self.ended_count = 0

    def attempt_started(self, id: int, job: TraceJob, at: float, placement: Placement) -> None:
        """Record the start of an attempt."""
        if id not in self.unfinished:
            self.unfinished[id] = JobResult(
                job=id - 1,
                submit_time=job.submit_time,
                gpus=job.gpus,
                start_time=at,
                end_time=at,
                run_time=0.0,
                gpu_seconds=0.0,
                user=job.user,
                queue=job.queue,
            )
        self.attempt_start[id] = at
        self.gpus_held += placement.gpu_amount / 1000 - self._update_sharers(placement, +1)

    def attempt_ended(
        self, id: int, job: TraceJob, at: float, placement: Placement | None, ended: bool,
        resized: bool = False,
    ) -> None:  # fmt: skip
        """Record the end of an attempt, and perhaps of the job."""
        result, since = self.unfinished[id], self.attempt_start.pop(id)
        gpus = placement.gpu_amount / 1000 if placement is not None else 0.0
        result.run_time += at - since
        result.gpu_seconds += (at - since) * gpus
        self.gpus_held -= gpus
        if placement is not None:
            self.gpus_held += self._update_sharers(placement, -1)
        if placement is not None and len(self.segments) < self.max_segments:
            self._add_segments(id, since, at, placement)
        if ended:
            result.end_time = at
            self.results.append(self.unfinished.pop(id))
            self.ended_count += 1
        elif resized:
            result.resizes += 1
        else:
            result.preemptions += 1

    def _update_sharers(self, placement: Placement, step: int) -> int:
        """Count a placement in or out; return how many of its GPUs other jobs hold as well."""
        shared_gpus = 0
        for part in placement.parts:
            for take in part.allocations:
                if take.is_shared:
                    gpu = (part.node, take.device)
                    count = self.sharers.get(gpu, 0)
                    self.sharers[gpu] = count + step
                    shared_gpus += min(count, count + step) > 0
        return shared_gpus

    def _add_segments(self, id: int, begin: float, end: float, placement: Placement) -> None:
        for part in placement.parts:
            takes = [take for take in part.allocations if take.type == GPU]
            if takes:
                first = min(self.gpu_index[part.node, take.device] for take in takes)
                gpus = sum(1.0 if take.is_shared else take.amount / 1000 for take in takes)
                self.segments.append(
                    Segment(id - 1, self.node_index[part.node], first, gpus, begin, end)
                )

    def cycle_ended(self, at: float, pending: int) -> None:
        """Record GPU use and queue length after a cycle."""
        self.gpu_use.append(at, self.gpus_held)
        self.pending.append(at, pending)

    def result(
        self,
        policy: str,
        parameters: dict[str, float],
        workload: Workload,
        spent: Sequence[float],
        unfinished: int,
    ) -> RunResult:
        """Return the result of the run."""
        spent = sorted(spent)
        cost = RunCost(
            events=len(spent),
            seconds=sum(spent),
            median=spent[len(spent) // 2] if spent else 0.0,
            p99=spent[int(len(spent) * 0.99)] if spent else 0.0,
        )
        return RunResult(
            policy=policy,
            parameters=parameters,
            workload=workload.title,
            gpus=self.gpus,
            node_names=list(self.node_index),
            results=sorted(self.results, key=lambda job_result: job_result.job),
            unfinished=unfinished,
            gpus_in_use=self.gpu_use.all_points(),
            pending_jobs=[(at, int(value)) for at, value in self.pending.all_points()],
            segments=self.segments,
            cost=cost,
            notes=workload.notes,
        )
