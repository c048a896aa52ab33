"""The first that is content with what is there, found without looking at everybody."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import plain
from core.scenario import Scenario, node
from stoker.core import cluster
from stoker.core import events as e
from stoker.core.job import RANK_STEP
from stoker.core.plan import plan
from stoker.core.policy import order
from stoker.core.policy import shelf as shelves
from stoker.core.policy.order import in_order
from stoker.core.policy.shelf import (
    START,
    Amounts,
    Enough,
    Place,
    Shelf,
    content,
    within,
    within_any,
)
from stoker.core.request import GpuAsk, Request

# ---------------------------------------------------------------------------- the tree

SMALL = st.integers(0, 6)
AMOUNTS = st.tuples(SMALL, SMALL, SMALL)
WAYS = st.lists(AMOUNTS, max_size=3)
STEPS = st.lists(
    st.tuples(st.integers(0, 60), AMOUNTS | st.none(), WAYS, st.integers(-1, 60)), max_size=120
)


def plainly(
    things: dict[Place, Amounts], after: Place, ways: list[Amounts]
) -> tuple[Place, Amounts] | None:
    """The same question, by looking at everything."""
    for place, amounts in sorted(things.items()):
        if place > after and any(content(amounts, way) for way in ways):
            return place, amounts
    return None


@given(STEPS, st.sampled_from([1, 2, 12]))
def test_the_tree_finds_whom_a_look_at_everything_finds(
    steps: list[tuple[int, Amounts | None, list[Amounts], int]], width: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelves, "WIDTH", width)
        shelf: Shelf[Place] = Shelf()
        things: dict[Place, Amounts] = {}
        for number, amounts, ways, after in steps:
            place = (number,)
            if place in things:
                shelf.take(place, things.pop(place))
            if amounts is not None:
                shelf.put(place, amounts, place)
                things[place] = amounts
            for start in (START, (after,)):
                found = shelf.first(start, within_any(ways))
                assert (found[:2] if found else None) == plainly(things, start, ways)
        assert list(shelf) == sorted(things)
        assert bool(shelf) == bool(things)
        for place in sorted(things):
            shelf.take(place, things[place])
        assert not shelf
        with pytest.raises(KeyError):
            shelf.take((0,), (0, 0, 0))


@given(st.integers(0, 1 << 70), st.integers(0, 1 << 70))
def test_the_scale_of_amounts_goes_up(a: int, b: int):
    assert (shelves.step(a) <= shelves.step(b)) or a > b
    assert 0 <= shelves.step(a) < shelves.STEPS
    assert shelves.step(float("inf")) == shelves.STEPS - 1


def test_a_long_shelf_is_searched_by_a_few_looks() -> None:
    dice, looks = random.Random(5), 0

    def counted(enough: Enough) -> Enough:
        def look(asked: Amounts) -> bool:
            nonlocal looks
            looks += 1
            return enough(asked)

        return look

    most = {}
    for size in (100, 1000, 10_000):
        shelf: Shelf[int] = Shelf()
        for number in range(size):
            shelf.put((number,), tuple(dice.randrange(20, 1000) for _ in range(3)), number)
        counts = []
        for _ in range(50):
            there = tuple(dice.randrange(10, 200) for _ in range(3))
            looks = 0
            found = shelf.first(START, counted(within(there)))
            assert found is None or content(found[1], there)
            counts.append(looks)
        most[size] = sorted(counts)[40]
    assert most[10_000] < 1000
    assert most[10_000] < most[100] * 10


# ------------------------------------------------------------------------ the same plans

NUMBER = st.integers(1, 3)
REQUESTS = st.builds(
    lambda gpu, cpus, memory, disk, more, where: Request(
        gpus=GpuAsk(amount=gpu, **more) if gpu else None,
        cpus=cpus * 1000,
        memory=memory * 1000,
        named=(("disk", disk * 1000),) if disk else (),
        **where,
    ),
    st.sampled_from([0, 100, 250, 500, 1000, 1500, 2000, 3000]),
    st.integers(0, 5),
    st.sampled_from([0, 1, 9, 20]),
    st.sampled_from([0, 0, 0, 1, 4, 7]),
    st.sampled_from([{}, {}, {"only": ("0", "1")}, {"memory": 9000}, {"avoid": ("2",)}]),
    st.sampled_from(
        [{}] * 6 + [{"nodes": ("ant",)}, {"not_nodes": ("box",)}, {"machines": 2}, {"machines": 3}]
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


class Twins:
    """Two states that hear the same, one planned with the index and one without."""

    def __init__(self, machines: list[tuple[str, int, int]], policy: str = "") -> None:
        self.stories = (Scenario(gpus=3), Scenario(gpus=3))
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
        for story in self.stories:
            what(story)

    def plan(self) -> None:
        begun = []
        for story, recipe in zip(self.stories, (plan, plain.plan), strict=True):
            decisions = []
            for planned in recipe(story.state, story.now, story.now):
                story.tell(planned)
                decisions.append((planned.job, planned.placement))
            begun.append(decisions)
        assert begun[0] == begun[1]
        for job, _ in begun[0]:
            self.tell(lambda story, job=job: story.started(job))

    def act(self, verb: str, number: int) -> None:
        """One of the things that happen, to the job or device that the number falls on."""
        story = self.stories[0]
        running, ready = sorted(story.state.running), sorted(story.state.line.where)
        name = self.names[number % len(self.names)]
        if verb == "wait":
            self.tell(lambda story: setattr(story, "now", story.now + number))
        elif verb in {"silent", "reached", "measured"}:
            event = {
                "silent": e.NodeUnreachable(at=0, node=name, why="silent", boot=0.0),
                "reached": e.NodeReached(at=0, node=name),
                "measured": e.NodeMeasured(at=0, node=name, cpus=number * 200, memory=number * 900),
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
    st.sampled_from([0, 1, 4]),
    st.just([]) | MACHINES,
)
def test_the_index_changes_no_decision(
    steps: list[tuple[Any, ...]], few: int, machines: list[tuple[str, int, int]]
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "FEW", few)
        play(Twins(machines), steps)


@settings(max_examples=150)
@given(
    st.lists(SUBMITS | ARRAYS | EVENTS | SUBMITS, max_size=40),
    st.sampled_from([0, 1, 4]),
    MACHINES,
    st.sampled_from([0, 64]),
)
def test_only_what_has_changed_needs_a_look(
    steps: list[tuple[Any, ...]], few: int, machines: list[tuple[str, int, int]], ways: int
):
    """Where anybody may pass anybody, those who had no room are looked at where there is more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "FEW", few)
        patch.setattr(cluster, "FEW_WAYS", ways)
        play(Twins(machines, policy="skip"), steps)


def play(twins: Twins, steps: list[tuple[Any, ...]]) -> None:
    """Let it all happen, then let everything run that can."""
    for verb, *rest in steps:
        if verb == "submit":
            twins.tell(lambda story, rest=rest: story.submit(rest[0], **rest[1]))
        elif verb == "array":
            twins.tell(
                lambda story, rest=rest: story.submit(count=4, array=True, array_limit=rest[0])
            )
        elif verb == "plan":
            twins.plan()
        else:
            twins.act(verb, rest[0])
    for _ in range(200):
        twins.plan()
        running = sorted(twins.stories[0].state.running)
        if not running:
            break
        twins.act("end", len(running) // 2)
    lines = [in_order(story.state.line, story.state.jobs, 999) for story in twins.stories]
    assert lines[0] == lines[1]


def test_who_waits_behind_the_first_of_many_is_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    """A decision about a line of ten thousand different requests asks for few placements."""
    from stoker.core.policy import backfill

    story, dice, asked = Scenario(gpus=8, cpus=64), random.Random(1), 0
    for _ in range(10_000):
        cpus, memory = dice.randrange(100, 30_000), dice.randrange(10, 16_000)
        gpu = dice.randrange(50, 8000)
        story.submit(Request(gpus=GpuAsk(gpu), cpus=cpus, memory=memory))
    assert len(story.state.line.classes) > 9900
    story.plan()
    whole = backfill.place

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return whole(*args)

    monkeypatch.setattr(backfill, "place", counted)
    decisions = 100
    for _ in range(decisions):
        story.exited(dice.choice(sorted(story.state.running)))
        story.plan()
    assert asked < 40 * decisions
