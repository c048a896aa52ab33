"""The scan of the pending queue decides as the reference planner does."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.reference_planner import assert_same_decisions
from core.scenario import Scenario, node
from stoker.core import events as e
from stoker.core.model.job import RANK_STEP
from stoker.core.model.resources import GpuRequest, ResourceRequest

NUMBER = st.integers(1, 3)
REQUESTS = st.builds(
    lambda gpu, cpus, memory, disk, more, where: ResourceRequest(
        gpus=GpuRequest(amount=gpu, **more) if gpu else None,
        cpus=cpus * 1000,
        memory=memory * 1000,
        named=(("disk", disk * 1000),) if disk else (),
        **where,
    ),
    st.sampled_from([0, 100, 250, 500, 1000, 1500, 2000, 3000]),
    st.integers(0, 5),
    st.sampled_from([0, 1, 9, 20]),
    st.sampled_from([0, 0, 0, 1, 4, 7]),
    st.sampled_from([{}, {}, {"required": ("0", "1")}, {"memory": 9000}, {"avoid": ("2",)}]),
    st.sampled_from(
        [{}] * 6
        + [{"nodes": ("ant",)}, {"not_nodes": ("box",)}, {"node_count": 2}, {"node_count": 3}]
    ),
)
QUEUES = ("default", "loose", "tight", "fifo", "own")
SUBMITS = st.tuples(
    st.just("submit"),
    REQUESTS,
    st.fixed_dictionaries({
        "queue": st.sampled_from(QUEUES),
        "priority": st.integers(-1, 1),
        "limit": st.sampled_from([None, None, 5, 60, 600]),
        "count": NUMBER,
    }),
)  # fmt: skip
ARRAYS = st.tuples(st.just("array"), st.integers(1, 2))
EVENTS = st.tuples(
    st.sampled_from(
        ["end", "plan", "wait", "cancel", "move", "drain", "undrain", "priority", "silent",
         "reached", "measured"]
    ),
    st.integers(0, 30),
)  # fmt: skip
MACHINES = st.lists(
    st.tuples(st.sampled_from(["ant", "bee", "cat"]), st.integers(0, 3), st.integers(1, 6)),
    max_size=3,
    unique_by=lambda machine: machine[0],
)
"""Name, GPUs and cores of those that there are besides this one."""


class Play:
    """One state on which the planner is compared with the reference planner."""

    def __init__(self, machines: list[tuple[str, int, int]], policy: str = "") -> None:
        self.story = Scenario(gpus=3)
        self.names = ["box", *(name for name, _, _ in machines)]
        for name, cards, cores in machines:
            added = e.NodeAdded(at=0, name=name, address=name)
            facts = node(cards, name=name, cpus=cores)
            for event in (added, e.NodeJoined(at=0, facts=facts), e.NodeReached(at=0, node=name)):
                self.tell(lambda story, event=event: story.tell(event))
        limits: list[dict[str, Any]] = [
            {"name": "tight", "max_running": 3, "max_gpus": 1500},
            {"name": "fifo", "strict": True},
            {"name": "own", "resources": (("gpu", "1", 1000), ("gpu", "2", 1000),
                                          ("disk", "a", 4000), ("disk", "b", 7000))},
        ]  # fmt: skip
        for limit in limits:
            self.tell(lambda story, limit=limit: story.tell(e.QueueDefined(at=0, **limit)))
        if policy:
            chosen = e.PolicyChosen(at=0, queue="*", name=policy)
            self.tell(lambda story: story.tell(chosen))

    def tell(self, what: Any) -> None:
        what(self.story)

    def plan(self) -> None:
        state = self.story.state
        state.pending.request_planning()
        before = set(state.running)
        assert_same_decisions(self.story)
        for job in sorted(set(state.running) - before):
            self.story.started(job)

    def act(self, verb: str, number: int) -> None:
        """One of the things that happen, to the job or device that the number falls on."""
        story = self.story
        running, ready = sorted(story.state.running), sorted(story.state.pending.class_of)
        name = self.names[number % len(self.names)]
        if verb == "wait":
            self.tell(lambda story: setattr(story, "now", story.now + number))
        elif verb in {"silent", "reached", "measured"}:
            event = {
                "silent": e.NodeUnreachable(at=0, node=name, why="silent", boot=0.0),
                "reached": e.NodeReached(at=0, node=name),
                "measured": e.NodeLoadMeasured(
                    at=0, node=name, cpus=number * 200, memory=number * 900
                ),
            }[verb]
            self.tell(lambda story: story.tell(event))
        elif verb in {"drain", "undrain"}:
            kind = e.DevicesDrained if verb == "drain" else e.DevicesUndrained
            more = {"reason": "hot"} if verb == "drain" else {}
            devices = ((name, "gpu", str(number % 3)),)
            self.tell(lambda story: story.tell(kind(at=story.now, devices=devices, **more)))
        elif verb == "end" and running:
            self.tell(lambda story: story.exited(running[number % len(running)]))
        elif verb in {"cancel", "move", "priority"} and ready:
            id = ready[number % len(ready)]
            if verb == "cancel":
                self.tell(lambda story: story.fact(e.JobCancelled, id))
            else:
                rank = (number // 5 + 1) * RANK_STEP - 7 * id
                priority = number % 3 - 1 if verb == "priority" else story.job(id).priority
                self.tell(lambda story: story.fact(e.JobMoved, id, priority=priority, rank=rank))


@settings(max_examples=150)
@given(
    st.lists(SUBMITS | ARRAYS | EVENTS | SUBMITS, max_size=40),
    st.just([]) | MACHINES,
)
def test_the_scan_changes_no_decision(
    steps: list[tuple[Any, ...]], machines: list[tuple[str, int, int]]
):
    play(Play(machines), steps)


@settings(max_examples=150)
@given(
    st.lists(SUBMITS | ARRAYS | EVENTS | SUBMITS, max_size=40),
    MACHINES,
)
def test_scanning_only_what_changed_changes_no_decision(
    steps: list[tuple[Any, ...]], machines: list[tuple[str, int, int]]
):
    """Under unrestricted backfill a class that did not fit is tested on changed nodes only."""
    play(Play(machines, policy="skip"), steps)


def play(scene: Play, steps: list[tuple[Any, ...]]) -> None:
    """Apply all steps, then end and start jobs until none runs."""
    for verb, *rest in steps:
        if verb == "submit":
            scene.tell(lambda story, rest=rest: story.submit(rest[0], **rest[1]))
        elif verb == "array":
            scene.tell(
                lambda story, rest=rest: story.submit(count=4, array=True, array_limit=rest[0])
            )
        elif verb == "plan":
            scene.plan()
        else:
            scene.act(verb, rest[0])
    for _ in range(200):
        scene.plan()
        running = sorted(scene.story.state.running)
        if not running:
            break
        scene.act("end", len(running) // 2)


def test_a_decision_among_many_classes_searches_few_placements(monkeypatch: pytest.MonkeyPatch):
    """With ten thousand classes, a decision searches for few placements."""
    from stoker.core.reservation import easy

    story, dice, asked = Scenario(gpus=8, cpus=64), random.Random(1), 0
    for _ in range(10_000):
        cpus, memory = dice.randrange(100, 30_000), dice.randrange(10, 16_000)
        gpu = dice.randrange(50, 8000)
        story.submit(ResourceRequest(gpus=GpuRequest(gpu), cpus=cpus, memory=memory))
    assert len(story.state.pending.classes) > 9900
    story.plan()
    whole = easy.find_placement

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return whole(*args)

    monkeypatch.setattr(easy, "find_placement", counted)
    decisions = 100
    for _ in range(decisions):
        story.exited(dice.choice(sorted(story.state.running)))
        story.plan()
    assert asked < 40 * decisions
