"""The planner decides as the reference planner does, in every state that events can lead to.

`STOKER_REFERENCE_EXAMPLES=5000` runs the test longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.reference_planner import assert_same_decisions
from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.model.job import RANK_STEP, JobState
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import EarlySignal, Training
from stoker.core.preemption import preemptor, victim_selection

LONGER = "STOKER_REFERENCE_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("STOKER_REFERENCE_EXAMPLES", "150"))

NODES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 1, 2, 2, 2, 4]),
        st.sampled_from([2, 4, 8]),
        st.sampled_from([8_000, 32_000]),
        st.sampled_from(["a100", "a100", "a100", "v100"]),
    ),
    min_size=1,
    max_size=8,
)
"""GPUs, cores, MiB and GPU model of each node."""
REQUESTS = st.builds(
    lambda gpus, cores, memory, nodes, more: ResourceRequest(
        gpus=GpuRequest(amount=gpus, **more) if gpus else None,
        cpus=cores * 1000 if cores or gpus else 1000,
        memory=memory,
        node_count=nodes,
    ),
    st.sampled_from([0, 250, 500, 1000, 1000, 1000, 1500, 2000, 2000, 4000]),
    st.sampled_from([0, 0, 1, 2, 4]),
    st.sampled_from([0, 0, 4_000, 16_000]),
    st.sampled_from([1, 1, 1, 1, 1, 2, 3]),
    st.sampled_from([{}] * 6 + [{"model": "a100"}, {"model": "v100"}, {"required": ("0",)}]),
)
KINDS = st.sampled_from(["training"] * 4 + ["plain", "plain", "requeue", "signal", "fixed"])
"""Whether and how a job can be preempted."""
SUBMITS = st.tuples(
    st.just("submit"),
    REQUESTS,
    KINDS,
    st.fixed_dictionaries({
        "queue": st.sampled_from(["default", "default", "default", "quota", "strict"]),
        "user": st.sampled_from(["ada", "ada", "bob"]),
        "priority": st.sampled_from([0, 0, 0, 0, 1, -1]),
        "limit": st.sampled_from([None, None, None, 60, 600, 3600]),
        "count": st.sampled_from([1, 1, 2, 4]),
        "name": st.sampled_from(["short", "long"]),
        "expected": st.sampled_from([None, 60, 600, 6000, 60_000]),
        "array_limit": st.sampled_from([None, None, None, None, 1]),
    }),
)  # fmt: skip
VERBS = [
    "start", "start", "start", "end", "end", "stop", "stop", "stop", "cancel", "kill", "epochs",
    "epochs", "wait", "wait", "move", "drain", "undrain", "silent", "reached", "hold", "release",
    "end of node", "end of node",
]  # fmt: skip
EVENTS = st.tuples(st.sampled_from(VERBS), st.integers(0, 30))
POLICY = st.sampled_from(
    [
        ("fifo", {}), ("skip", {}), ("backfill", {}), ("conservative", {}), ("srsf", {}),
        ("planner", {}), ("planner", {}), ("planner", {"patience": 60.0, "overdue": 0.1}),
        ("planner", {"quantum": 300.0}), ("tiresias", {}), ("auto", {}),
    ]
)  # fmt: skip
POLICIES = st.tuples(POLICY, st.none() | POLICY)
"""Policies of all queues, and of the queue with a quota."""
QUOTAS = st.fixed_dictionaries({
    "max_running": st.sampled_from([None, 1, 3]),
    "max_gpus": st.sampled_from([None, 1000, 2500]),
})  # fmt: skip


class Comparison(Scenario):
    """A state on which the planner and the reference planner are compared after every event."""

    def __init__(self, nodes: list[tuple[int, int, int, str]]) -> None:
        super().__init__(gpus=0)
        self.tell(e.NodeJoined(at=self.now, facts=facts("n0", *nodes[0])))
        self.tell(e.NodeRemoved(at=self.now, name="box"))
        self.names = [f"n{number}" for number in range(len(nodes))]
        for name, node in zip(self.names[1:], nodes[1:], strict=True):
            self.tell(e.NodeAdded(at=self.now, name=name, address=name))
            self.tell(e.NodeJoined(at=self.now, facts=facts(name, *node)))
            self.tell(e.NodeReached(at=self.now, node=name))
        self.has_several_models = len({model for gpus, _, _, model in nodes if gpus}) > 1

    def submit_job(self, request: ResourceRequest, kind: str, fields: dict[str, Any]) -> None:
        fields = dict(fields)
        expected, limit = fields.pop("expected"), fields.get("array_limit")
        if kind == "training":
            epochs = 10 if expected else None
            fields["training"] = Training(epochs=epochs, expected=expected)
        fields["requeueable"] = kind == "requeue"
        fields["non_preemptible"] = kind == "fixed"
        fields["early_signal"] = EarlySignal(10, 30) if kind == "signal" else None
        self.submit(request, array=limit is not None, **fields)

    def act(self, verb: str, number: int) -> None:  # noqa: C901 - one case per verb
        """Apply one event to the job or node that the number selects, if there is one."""
        state = self.state
        name = self.names[number % len(self.names)]
        pending = sorted(id for id, job in state.jobs.items() if job.state is JobState.PENDING)
        configuring = self.in_state(JobState.CONFIGURING)
        running = self.in_state(JobState.RUNNING)
        match verb:
            case "wait" | "later":
                self.now += (1, 10, 60, 600, 7200)[number % 5]
            case "start" if configuring:
                for id in configuring[: number + 1]:
                    self.started(id)
                    if state.spec(self.job(id)).training is not None:
                        self.about(e.TrainingBegan, id)
            case "end" if state.running:
                self.exited(sorted(state.running)[number % len(state.running)])
            case "stop" if state.stopping:
                id = sorted(state.stopping)[number % len(state.stopping)]
                self.exited(id, code=None, signal=15, stopped=True)
            case "epochs" if running:
                id = running[number % len(running)]
                if state.spec(self.job(id)).training is not None:
                    progress = self.job(id).progress
                    done = min((progress.epochs if progress else 0) + 1, 9)
                    seconds = None if self.has_several_models else (1.0, 30.0, 900.0)[number % 3]
                    self.about(e.EpochsCounted, id, done=done, seconds=seconds)
            case "kill" if running:
                self.fact(e.JobCancelled, running[number % len(running)])
            case "cancel" if pending:
                self.fact(e.JobCancelled, pending[number % len(pending)])
            case "hold" if pending:
                self.fact(e.JobHeld, pending[number % len(pending)])
            case "release":
                for id in pending:
                    if self.job(id).held:
                        self.fact(e.JobReleased, id)
            case "move" if pending:
                id = pending[number % len(pending)]
                rank = (number // 5 + 1) * RANK_STEP - 7 * id
                self.fact(e.JobMoved, id, priority=number % 3 - 1, rank=rank)
            case "drain":
                devices = ((name, "gpu", str(number % 2)),)
                self.tell(e.DevicesDrained(at=self.now, devices=devices, reason="hot"))
            case "undrain":
                devices = ((name, "gpu", str(number % 2)),)
                self.tell(e.DevicesUndrained(at=self.now, devices=devices))
            case "silent" if name != "n0":
                self.tell(e.NodeUnreachable(at=self.now, node=name, why="silent", boot=self.boot))
            case "end of node":
                end = (None, self.now + 100, self.now + 300, self.now + 1000, self.now + 5000)
                known = state.record.nodes[name]
                ended = replace(known, ends_at=end[number // 2 % len(end)])
                self.tell(e.NodeJoined(at=self.now, facts=ended))
            case "reached" if name != "n0":
                self.tell(e.NodeReached(at=self.now, node=name))

    def in_state(self, state: JobState) -> list[int]:
        return [id for id, job in sorted(self.state.running.items()) if job.state is state]


def facts(name: str, gpus: int, cores: int, memory: int, model: str) -> NodeFacts:
    cards = [DeviceFacts(name=str(n), index=n, memory=24_000, model=model) for n in range(gpus)]
    return NodeFacts(
        name=name,
        types={
            "gpu": tuple(cards),
            "cpu": (DeviceFacts(name="cpu", capacity=cores * 1000),),
            "mem": (DeviceFacts(name="mem", capacity=memory),),
        },
    )


@pytest.fixture(autouse=True, scope="module")
def unlimited_search() -> Any:
    """Lift the budgets of one cycle: the reference planner has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemptor, "MAX_PREEMPTORS_PER_PASS", 1000)
        patch.setattr(victim_selection, "MAX_NODES_PER_PREEMPTOR", 1000)
        yield


def job(request: ResourceRequest, kind: str = "training", **fields: Any) -> tuple[Any, ...]:
    """Return the step that submits a job."""
    common = {"name": "job", "expected": None, "array_limit": None}
    return "submit", request, kind, {**common, **fields}


def gpus(amount: float, **more: Any) -> ResourceRequest:
    return ResourceRequest(gpus=GpuRequest(amount=round(amount * 1000)), **more)


A100 = (2, 8, 32_000, "a100")
V100 = (2, 8, 32_000, "v100")
NEVER = ResourceRequest(gpus=GpuRequest(amount=1000, model="none"))
FOUND = {
    "a what-if prefers the fullest node, not the first model": (
        [(4, 8, 32_000, "v100"), (2, 8, 8_000, "a100"), (1, 8, 8_000, "v100")], "srsf", {},
        [job(gpus(4)), job(ResourceRequest(gpus=GpuRequest(amount=2000, model="v100"))),
         ("start", 18), job(gpus(1), expected=6000)],
    ),
    "a preemptor that counts on another ending job is checked again": (
        [(1, 8, 32_000, "a100"), (1, 8, 8_000, "v100"), A100, A100], "skip", {},
        [job(gpus(2), "fixed"), job(gpus(0.25), "plain", limit=600), ("start", 12), ("wait", 24),
         ("kill", 17), job(gpus(1)), job(gpus(1), limit=3600), ("stop", 11),
         job(gpus(1), priority=-1, count=2), job(gpus(1, node_count=3), count=4), ("wait", 24),
         ("start", 11), job(gpus(1), "fixed", count=4)],
    ),
    "an overdue job that a quota blocks has no reservation": (
        [(4, 4, 32_000, "a100"), (2, 4, 32_000, "a100"), (4, 8, 8_000, "a100")], "overdue",
        {"max_gpus": 1000},
        [job(gpus(1), "requeue"), job(gpus(2, memory=16_000, node_count=2), "plain", queue="quota"),
         ("wait", 29), job(gpus(2))],
    ),
    "a quota blocks a strict queue": (
        [A100], "fifo", {"max_gpus": 1000},
        [job(gpus(2), queue="quota"), job(gpus(1), queue="quota", priority=-1)],
    ),
    "a slot without an end is never given back": (
        [(2, 2, 32_000, "a100")], "conservative", {},
        [job(ResourceRequest(cpus=1000), count=4), job(gpus(1, cpus=2000), "requeue"),
         job(gpus(1), count=2)],
    ),
    "a rank that rises is noticed together with one that falls": (
        [(1, 4, 32_000, "a100")], "tiresias", {},
        [job(gpus(1), count=4), ("start", 5), ("later", 4)],
    ),
    "a job counts on the end of another one only once": (
        [(1, 2, 8_000, "a100"), (4, 8, 32_000, "a100"), (4, 2, 32_000, "v100")], "planner", {},
        [job(gpus(0.25, node_count=3), "fixed", limit=600), ("wait", 8),
         job(gpus(2), "fixed", limit=3600, count=4), ("move", 27), job(gpus(1.5), expected=60_000),
         ("start", 15), job(gpus(1), "plain", priority=-1)],
    ),
    "in strict order, only the first job has a reservation": (
        [A100, A100], "fifo", {},
        [job(gpus(1), priority=-1, count=2), job(NEVER, queue="strict"),
         job(gpus(2), "plain", queue="strict"), job(gpus(0.5, node_count=2)), ("start", 14)],
    ),
    "in strict order, a job behind a nominated one uses free nodes": (
        [(2, 2, 32_000, "a100"), (4, 4, 8_000, "a100"), (4, 8, 8_000, "a100"), A100], "skip", {},
        [job(ResourceRequest(cpus=4000, node_count=3), "signal", priority=-1), job(gpus(1)),
         job(gpus(2, cpus=2000, memory=16_000, node_count=2), queue="strict"), ("start", 10),
         job(gpus(2, cpus=4000), queue="strict"), ("kill", 7)],
    ),
    "a job that ends is counted on at once": (
        [A100], "srsf", {},
        [job(gpus(2), count=4), job(gpus(2, node_count=2), "plain", queue="strict"),
         job(gpus(0.5), "plain"), ("end", 26), job(gpus(1), "signal", priority=-1), ("start", 25),
         ("kill", 12)],
    ),
    "a victim on two nodes stops where it is enough": (
        [(2, 2, 32_000, "a100"), (4, 2, 32_000, "a100")], "quantum", {},
        [job(gpus(1, memory=4000)), job(ResourceRequest(cpus=1000, node_count=2)),
         job(ResourceRequest(cpus=1000, memory=16_000), "fixed", count=2), ("start", 8),
         job(ResourceRequest(cpus=1000, memory=16_000), "plain"), ("wait", 28)],
    ),
    "a victim on several nodes is tried on all of them": (
        [(1, 8, 8_000, "v100"), (2, 2, 8_000, "a100"), (1, 8, 8_000, "a100")], "auto", {},
        [job(gpus(1, node_count=3), expected=6000, count=2),
         job(ResourceRequest(gpus=GpuRequest(amount=500, model="v100"), cpus=2000), priority=1,
             count=4, limit=60),
         ("start", 29)],
    ),
    "a slot of a gang is on the fullest nodes": (
        [(2, 4, 8_000, "a100"), A100, (2, 4, 8_000, "v100"), (4, 4, 8_000, "v100"),
         (2, 2, 8_000, "a100")], "conservative", {"max_gpus": 2500},
        [job(ResourceRequest(gpus=GpuRequest(amount=1500, model="a100"), cpus=2000), queue="strict",
             count=2, array_limit=1, limit=3600, expected=600),
         job(gpus(1, cpus=4000, node_count=3), "requeue", queue="strict", priority=-1),
         job(ResourceRequest(gpus=GpuRequest(amount=500, model="a100"), cpus=2000, node_count=3),
             queue="quota", count=2, expected=6000),
         job(ResourceRequest(gpus=GpuRequest(amount=500, model="a100"), memory=16_000), "plain",
             count=2, priority=-1),
         job(gpus(2, cpus=4000, memory=4000, node_count=3), priority=1, limit=600)],
    ),
}  # fmt: skip
"""Nodes, policy, quotas and steps where the planner once decided differently."""
PARAMETERS = {
    "overdue": ("planner", {"patience": 60.0, "overdue": 0.1}),
    "quantum": ("planner", {"quantum": 300.0}),
}


def test_a_drained_device_requests_planning():
    """What was nominated there may be nominated elsewhere, and other jobs may start."""
    scenario = Comparison([A100])
    scenario.state.pending.take_planning_request()
    scenario.act("drain", 0)
    assert scenario.state.pending.planning_requested


@pytest.mark.parametrize("name", FOUND)
def test_the_planner_decides_as_the_reference_planner_where_it_once_did_not(name: str):
    nodes, policy, quotas, steps = FOUND[name]
    play(nodes, (PARAMETERS.get(policy, (policy, {})), None), quotas, steps)


@settings(max_examples=EXAMPLES, derandomize=not LONGER, suppress_health_check=list(HealthCheck))
@given(NODES, POLICIES, QUOTAS, st.lists(SUBMITS | SUBMITS | EVENTS | EVENTS | EVENTS, max_size=40))
def test_the_planner_decides_as_the_reference_planner(
    nodes: list[tuple[int, int, int, str]],
    policies: tuple[Any, Any],
    quotas: dict[str, int | None],
    steps: list[tuple[Any, ...]],
):
    play(nodes, policies, quotas, steps)


def play(
    nodes: list[tuple[int, int, int, str]],
    policies: tuple[Any, Any],
    quotas: dict[str, Any],
    steps: list[tuple[Any, ...]],
) -> None:
    """Apply all steps, and compare the decisions after each of them."""
    scenario = Comparison(nodes)
    scenario.tell(e.QueueDefined(at=0, name="quota", **quotas))
    scenario.tell(e.QueueDefined(at=0, name="strict", strict=True))
    for queue, policy in zip(("*", "quota"), policies, strict=True):
        if policy is not None:
            name, parameters = policy
            scenario.tell(e.PolicyChosen(at=0, queue=queue, name=name, parameters=parameters))
    for verb, *rest in steps:
        if verb == "submit":
            scenario.submit_job(*rest)
        else:
            scenario.act(verb, rest[0])
        if verb in ("start", "epochs", "wait"):
            # Known gap: under `planner`, a latest end that moves does not request planning,
            # although a job with a time limit may have a reservation that moves with it.
            scenario.state.pending.request_planning()
        assert_same_decisions(scenario)
