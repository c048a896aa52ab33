"""HistoryReplay: replay the recorded jobs; QueueReplay: continue the pending and running ones."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers import apply
from stoker.core.model.resources import NodeFacts, ResourceRequest
from stoker.core.model.spec import Training
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.policies.policy import DEFAULT_POLICY, NAMES
from stoker.core.state.state import State
from stoker.simulate.progress import ProgressLine
from stoker.simulate.replay.job_run import JobRun
from stoker.simulate.replay.replay import Replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.whatif.cluster_model import ClusterModel, RecordedJob, dependency_of
from stoker.simulate.workload import TraceJob, Workload

MAX_SEGMENTS = 20_000


class Forecast(Struct, kw_only=True):
    """Predicted start and end in seconds from now; None: never."""

    start: float | None
    end: float | None


def empty_state(cluster: ClusterModel) -> State:
    """Return the state of a cluster without jobs."""
    state = State()
    for queue, (name, parameters) in cluster.policies.items():
        apply(state, e.PolicyChosen(at=0.0, queue=queue, name=name, parameters=parameters))
    for defined in cluster.queues:
        apply(state, defined)
    for node in cluster.nodes:
        apply(state, e.NodeJoined(at=0.0, facts=node))
    return state


def feasible_requests(
    cluster: ClusterModel, requests: Iterable[ResourceRequest]
) -> set[ResourceRequest]:
    """Return the requests that the nodes could satisfy if they were idle."""
    nodes = list(empty_state(cluster).cluster.nodes.values())
    return {
        request
        for request in set(requests)
        if sum(infeasibility_reason(node, request) is None for node in nodes) >= request.node_count
    }


class HistoryReplay(Replay):
    """Replay of jobs with their recorded requests, in the queues of the cluster."""

    def __init__(
        self, title: str, jobs: list[RecordedJob], cluster: ClusterModel, max_segments: int = 0
    ) -> None:
        trace_jobs: list[TraceJob] = list(jobs)
        super().__init__(
            Workload(title=title, jobs=trace_jobs),
            cluster.nodes,
            main_policy(cluster),
            max_segments=max_segments,
            state=empty_state(cluster),
        )
        self.replay_ids: dict[int, int] = {}
        """Id in the replay, by job id."""
        self.dependency: str | None = None

    def _submit(self, id: int, trace_job: TraceJob) -> list[object]:
        assert isinstance(trace_job, RecordedJob)
        self.replay_ids[trace_job.id], self.dependency = id, trace_job.dependency
        return super()._submit(id, trace_job)

    def _spec_distinction(self, trace_job: TraceJob) -> object:
        assert isinstance(trace_job, RecordedJob)
        return trace_job.id if trace_job.dependency else None

    def _training(self, trace_job: TraceJob) -> Training | None:
        assert isinstance(trace_job, RecordedJob)
        training, expected = super()._training(trace_job), self._expected_seconds(trace_job)
        if training is None or training.expected is not None or expected is None:
            return training
        return replace(training, expected=ceil(expected))

    def _expected_seconds(self, job: RecordedJob) -> float | None:
        """Return the duration as known at submission."""
        return job.stated_seconds

    def _request(self, trace_job: TraceJob) -> ResourceRequest:
        assert isinstance(trace_job, RecordedJob)
        return trace_job.request

    def _apply(self, event: e.Event) -> list[object]:
        if isinstance(event, e.SpecRecorded) and self.dependency:
            unfinished = {job: id for job, id in self.replay_ids.items() if id in self.runs}
            dependency = dependency_of(self.dependency, unfinished)
            event = replace(event, spec=replace(event.spec, dependency=dependency))
        return super()._apply(event)


def main_policy(cluster: ClusterModel) -> str:
    """Return the policy of the default queue; a replay needs one name."""
    name = cluster.policies.get("default", cluster.policies.get("*", ("", {})))[0]
    return name if name in NAMES else DEFAULT_POLICY.name


def replay_history(
    jobs: list[RecordedJob],
    cluster: ClusterModel,
    label: str,
    with_segments: bool,
    progress: ProgressLine,
) -> RunResult:
    """Replay all jobs on an idle cluster whose nodes stay."""
    progress.start_run(f"replay, {label}")
    first = jobs[0].submit_time
    shifted = [replace(job, submit_time=job.submit_time - first, placement=None) for job in jobs]
    cluster = replace(cluster, nodes=[replace(node, ends_at=None) for node in cluster.nodes])
    run = HistoryReplay(label, shifted, cluster, MAX_SEGMENTS if with_segments else 0).run(
        progress.update
    )
    progress.end_run(len(jobs))
    return replace(run, policy=label, parameters={})


class QueueReplay(HistoryReplay):
    """Continue running and pending jobs; no further jobs are submitted."""

    def __init__(self, jobs: list[RecordedJob], cluster: ClusterModel) -> None:
        super().__init__("today", [], cluster)
        for event in cluster.restrictions:
            apply(self.state, event)
        devices = {(node.name, type, device.name)
                for node in cluster.nodes for type, devices_of_type in node.types.items()
                for device in devices_of_type}  # fmt: skip
        for id, job in enumerate(sorted(jobs, key=lambda recorded: recorded.id), 1):
            self.now = min(job.submit_time, 0.0)
            self._submit(id, job)
        by_id = {job.id: job for job in jobs}
        for job_id, id in self.replay_ids.items():
            self._resume(id, by_id[job_id], devices)
        self.now = 0.0
        self.state.rank_timers.postpone_all(0.0)
        self._schedule(0.0, "look", 0, 0)

    def _expected_seconds(self, job: RecordedJob) -> float | None:
        return job.measured_seconds if job.measured_seconds is not None else job.stated_seconds

    def _resume(self, id: int, job: RecordedJob, devices: set[tuple[str, str, str]]) -> None:
        """Resume a job on its devices; without them it is pending again."""
        self.now = 0.0
        placement, run = job.placement, self.runs[id]
        if placement is None or any(
            (part.node, take.type, take.device) not in devices
            for part in placement.parts
            for take in part.allocations
        ):
            run.work_done = 0.0 if job.non_preemptible else job.duration - job.remaining
            return
        attempt, started = self.state.jobs[id].attempt, min(job.started_at or 0.0, 0.0)
        self._apply(
            e.AttemptPlanned(at=started, job=id, attempt=attempt, placement=placement, boot=started)
        )
        self._apply(e.ProcessStarted(at=started, job=id, attempt=attempt, pid=1, boot=started))
        self.resume_job(id, job, job.remaining)
        if not job.non_preemptible:
            self._resume_training(id, job, self.runs[id])

    def _resume_training(self, id: int, job: RecordedJob, run: JobRun) -> None:
        self._apply(e.TrainingBegan(at=0.0, job=id, attempt=run.attempt))
        measured = job.duration * self.assumptions.measured_after
        if run.work_done >= measured:
            self._report_epochs(id, run, run.work_done)
        else:
            self._schedule(run.time_of(measured), "known", id, run.version)

    def forecast(self) -> dict[int, Forecast]:
        """Return the predicted start and end, by job id."""
        ended = {result.job + 1: result for result in self.run().results}
        forecasts = {}
        for job_id, id in self.replay_ids.items():
            result = ended.get(id)
            forecasts[job_id] = Forecast(
                start=result.start_time if result else None, end=result.end_time if result else None
            )
        return forecasts


def add_nodes(
    nodes: list[NodeFacts], more: list[NodeFacts], models: list[NodeFacts]
) -> list[NodeFacts]:
    """Return the nodes and `more`, with missing facts copied from the largest of `models`."""
    largest = max(models, key=lambda node: sum(map(len, node.types.values())), default=None)
    names = {node.name for node in nodes}
    nodes = list(nodes)
    for number, node in enumerate(more, 1):
        name = f"new{number}"
        while name in names:
            name += "_"
        types = {**(largest.types if largest is not None else {}), **node.types}
        if "gpu" in node.types and largest is not None and "gpu" in largest.types:
            model = largest.types["gpu"][0]
            types["gpu"] = tuple(
                card if card.model or card.memory
                else replace(card, model=model.model, memory=model.memory)
                for card in node.types["gpu"]
            )  # fmt: skip
        nodes.append(NodeFacts(name, types))
    return nodes
