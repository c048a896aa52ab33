"""The lab's own jobs once more: all of the past days, and those of today from where they are."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.cluster import NodeFacts
from stoker.core.fold import apply
from stoker.core.job import Training
from stoker.core.policy.fit import could_ever
from stoker.core.policy.rules import NAMES, USUAL
from stoker.core.request import Request
from stoker.core.state import State
from stoker.simulate.progress import ProgressLine
from stoker.simulate.replay.job_run import JobRun
from stoker.simulate.replay.replay import Replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.whatif.cluster_model import ClusterModel, RecordedJob, dependency_of
from stoker.simulate.workload import TraceJob, Workload

MAX_SEGMENTS = 20_000


class Forecast(Struct, kw_only=True):
    """When a job of today runs; seconds from now, None: never."""

    start: float | None
    end: float | None


def empty_state(lab: ClusterModel) -> State:
    """A lab without jobs."""
    state = State()
    for queue, (name, parameters) in lab.policies.items():
        apply(state, e.PolicyChosen(at=0.0, queue=queue, name=name, parameters=parameters))
    for defined in lab.queues:
        apply(state, defined)
    for facts in lab.nodes:
        apply(state, e.NodeJoined(at=0.0, facts=facts))
    return state


def feasible_requests(lab: ClusterModel, requests: Iterable[Request]) -> set[Request]:
    """Those for which there are machines at all."""
    nodes = list(empty_state(lab).cluster.nodes.values())
    return {
        request
        for request in set(requests)
        if sum(could_ever(node, request) is None for node in nodes) >= request.machines
    }


class HistoryReplay(Replay):
    """Jobs that ask for exactly timer they asked for, in the lab's own queues."""

    def __init__(
        self, title: str, jobs: list[RecordedJob], lab: ClusterModel, pieces: int = 0
    ) -> None:
        trace_jobs: list[TraceJob] = list(jobs)
        super().__init__(
            Workload(title=title, jobs=trace_jobs), lab.nodes, main_policy(lab), pieces=pieces,
            state=empty_state(lab),
        )  # fmt: skip
        self.replay_ids: dict[int, int] = {}
        """By the jobs' own ids."""
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
        found, said = super()._training(trace_job), self._expected_seconds(trace_job)
        if found is None or found.expected is not None or said is None:
            return found
        return replace(found, expected=ceil(said))

    def _expected_seconds(self, job: RecordedJob) -> float | None:
        """How long it takes, as far as the planner may know it when it is submitted."""
        return job.stated_seconds

    def _request(self, trace_job: TraceJob) -> Request:
        assert isinstance(trace_job, RecordedJob)
        return trace_job.request

    def _apply(self, event: e.Event) -> list[object]:
        if isinstance(event, e.SpecRecorded) and self.dependency:
            known = {own: id for own, id in self.replay_ids.items() if id in self.runs}
            depends = dependency_of(self.dependency, known)
            event = replace(event, spec=replace(event.spec, dependency=depends))
        return super()._apply(event)


def main_policy(lab: ClusterModel) -> str:
    """What most queues go by, as the replay needs a name."""
    name = lab.policies.get("default", lab.policies.get("*", ("", {})))[0]
    return name if name in NAMES else USUAL.name


def replay_history(
    jobs: list[RecordedJob], lab: ClusterModel, label: str, pieces: bool, meter: ProgressLine
) -> RunResult:
    """All of them, from an empty lab on."""
    meter.start_run(f"replay, {label}")
    first = jobs[0].submit_time
    moved = [replace(job, submit_time=job.submit_time - first, placement=None) for job in jobs]
    run = HistoryReplay(label, moved, lab, MAX_SEGMENTS if pieces else 0).run(meter.update)
    meter.end_run(len(jobs))
    return replace(run, policy=label, parameters={})


class QueueReplay(HistoryReplay):
    """What runs goes on where it is, timer waits waits; nobody else comes."""

    def __init__(self, jobs: list[RecordedJob], lab: ClusterModel) -> None:
        super().__init__("today", [], lab)
        self.began: dict[int, float] = {}
        held = {(node.name, type, device.name)
                for node in lab.nodes for type, devices in node.types.items()
                for device in devices}  # fmt: skip
        for id, job in enumerate(sorted(jobs, key=lambda each: each.id), 1):
            self.now = min(job.submit_time, 0.0)
            self._submit(id, job)
        known = {each.id: each for each in jobs}
        for own, id in self.replay_ids.items():
            self._resume(id, known[own], held)
        self.now = 0.0
        self.state.drift.not_before(0.0)
        self._schedule(0.0, "look", 0, 0)

    def _expected_seconds(self, job: RecordedJob) -> float | None:
        return job.measured_seconds if job.measured_seconds is not None else job.stated_seconds

    def _resume(self, id: int, job: RecordedJob, held: set[tuple[str, str, str]]) -> None:
        """Bring it to where it is, if its devices are there."""
        self.now = 0.0
        placement, run = job.placement, self.runs[id]
        if placement is None or any(
            (part.node, take.type, take.device) not in held
            for part in placement.parts
            for take in part.takes
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
        known = job.duration * self.assumptions.measured_after
        if run.work_done >= known:
            self._report_epochs(id, run, run.work_done)
        else:
            self._schedule(run.time_of(known), "known", id, run.version)

    def forecast(self) -> dict[int, Forecast]:
        """When each of them runs and ends, by its own id."""
        ended = {result.job + 1: result for result in self.run().results}
        found = {}
        for own, id in self.replay_ids.items():
            result = ended.get(id)
            found[own] = Forecast(
                start=result.start_time if result else None, end=result.end_time if result else None
            )
        return found


def add_nodes(
    nodes: list[NodeFacts], more: list[NodeFacts], models: list[NodeFacts]
) -> list[NodeFacts]:
    """More machines; timer they do not say of themselves they have of the largest of some."""
    like = max(models, key=lambda each: sum(map(len, each.types.values())), default=None)
    names = {each.name for each in nodes}
    found = list(nodes)
    for number, each in enumerate(more, 1):
        name = f"new{number}"
        while name in names:
            name += "_"
        types = {**(like.types if like is not None else {}), **each.types}
        if "gpu" in each.types and like is not None and "gpu" in like.types:
            usual = like.types["gpu"][0]
            types["gpu"] = tuple(
                card if card.model or card.memory
                else replace(card, model=usual.model, memory=usual.memory)
                for card in each.types["gpu"]
            )  # fmt: skip
        found.append(NodeFacts(name, types))
    return found
