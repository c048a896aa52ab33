"""Small jobs in the gaps, and never at the cost of the one at the head."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import (
    DeviceAllocation,
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.planner.cycle import plan_events
from stoker.core.planner.planner import plan
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import reserve
from stoker.core.running.release_times import KILL_GRACE_SECONDS


def test_short_job_starts_before_the_shadow_time():
    story = Scenario(gpus=2)
    story.submit(limit=600)
    head = story.submit(gpus(2), limit=600)
    short, long = story.submit(limit=500), story.submit(limit=700)
    assert story.plan()[1:] == [short]
    assert {story.is_(head), story.is_(long)} == {"PENDING"}


def test_short_job_after_a_long_one_of_the_same_request_is_backfilled():
    story = Scenario(gpus=2)
    story.submit(limit=600)
    story.submit(gpus(2), limit=600)
    long, short = story.submit(), story.submit(limit=60)
    assert story.plan()[1:] == [short]
    assert story.is_(long) == "PENDING"


@pytest.mark.parametrize(
    ("leaves", "more"),
    [(e.JobCancelled, {}), (e.JobHeld, {}), (e.JobMoved, {"priority": -1, "rank": 0})],
)
@pytest.mark.parametrize("policy", ["fifo", "backfill"])
def test_job_behind_the_head_starts_when_the_head_leaves_the_queue(
    policy: str, leaves: type[e.Event], more: dict[str, Any]
):
    story = Scenario(gpus=2)
    story.tell(e.PolicyChosen(at=story.now, queue="*", name=policy, parameters={}))
    first = story.submit()
    head, behind = story.submit(gpus(2)), story.submit()
    assert starts(story) == [first]
    story.fact(leaves, head, **more)
    assert starts(story) == [behind]


def starts(story: Scenario) -> list[int]:
    """Who starts in one turn, if there is anything to plan at all."""
    found = []
    for fact in plan_events(story.state, story.now, story.boot):
        story.tell(fact)
        found += [fact.job] if isinstance(fact, e.AttemptPlanned) else []
    return found


def test_kill_grace_counts_against_the_shadow_time():
    story = Scenario(gpus=2)
    story.submit(limit=600)
    story.submit(gpus(2), limit=600)
    just = story.submit(limit=600)
    story.submit(limit=601)
    assert story.plan()[1:] == [just]


def test_job_beside_the_reservation_needs_no_time_limit():
    story = Scenario(gpus=3)
    story.submit(gpus(2), limit=600)
    story.submit(gpus(2), limit=600)  # the head: two of three
    beside, not_beside = story.submit(), story.submit()
    assert story.plan()[1:] == [beside]
    assert story.is_(not_beside) == "PENDING"


def test_job_avoids_reserved_devices_when_others_are_free():
    story = Scenario()
    fast = [DeviceFacts(name=str(n), index=n, model="a100") for n in range(2)]
    slow = DeviceFacts(name="2", index=2, model="t4")
    story.tell(e.NodeJoined(at=0, facts=NodeFacts(name="box", types={"gpu": (*fast, slow)})))
    story.submit(gpus(1, required=("1",)), limit=600)
    head = story.submit(gpus(2, model="a100"), limit=600)
    any_gpu = story.submit()
    story.plan()
    assert story.is_(head) == "PENDING"
    assert story.on(any_gpu) == ["2"]


def test_unlimited_jobs_do_not_use_devices_reserved_behind_an_unlimited_one():
    story = Scenario(gpus=2)
    story.submit()
    head = story.submit(gpus(2))
    unlimited, limited = story.submit(), story.submit(limit=60)
    assert story.plan()[1:] == [limited]
    assert {story.is_(head), story.is_(unlimited)} == {"PENDING"}


def test_suspended_job_has_no_known_end():
    story = Scenario(gpus=2)
    running = story.submit(limit=600)
    story.run(running)
    story.fact(e.JobPaused, running, boot=story.now)
    story.submit(gpus(2), limit=600)
    story.submit(limit=9_000)
    assert len(story.plan()) == 1


def test_job_that_cannot_fit_gets_no_reservation_but_the_next_does():
    story = Scenario(gpus=3)
    story.tell(e.DevicesDrained(at=0, devices=(("box", "gpu", "2"),), reason="fan"))
    story.submit(limit=600)
    impossible = story.submit(gpus(3))
    second = story.submit(gpus(2), limit=600)
    small = story.submit()
    assert len(story.plan()) == 1
    assert {story.is_(job) for job in (impossible, second, small)} == {"PENDING"}


def test_stream_of_small_jobs_does_not_starve_a_large_one():
    story = Scenario(gpus=4)
    running = dict.fromkeys((story.submit(limit=100) for _ in range(4)), story.now + 100)
    story.plan()
    big = story.submit(gpus(4), limit=100)
    for _ in range(60):
        story.submit(limit=100)
        story.submit(limit=30)
        story.now += 10
        for job in [job for job, end in running.items() if end <= story.now]:
            story.exited(job)
            del running[job]
        for job in story.plan():
            running[job] = story.now + (story.state.spec(story.job(job)).limit or 0)
            if job == big:
                return
    raise AssertionError("it never started")


# -- the promise --------------------------------------------------------------------------

JOBS = st.lists(
    st.tuples(
        st.sampled_from([0.3, 0.5, 1, 1.5, 2, 3]),
        st.one_of(st.integers(5, 300), st.none()),
        st.integers(0, 60),
    ),
    min_size=2,
    max_size=14,
)
"""How many GPUs, the time limit, and how much earlier than it the job ends."""


def start_of_head(jobs: list[tuple[float, int | None, int]], backfill: bool) -> float | None:
    """When the first job that has to wait starts, if everybody takes all of their time."""
    story = Scenario(gpus=3, cpus=4)
    ids = [story.submit(gpus(amount), limit=limit) for amount, limit, _ in jobs]
    ends: dict[int, float] = {}
    head: int | None = None
    for _ in range(60):
        for planned in plan(story.state, story.now, story.now):
            if not backfill and head is not None and planned.job > head:
                break  # nobody overtakes
            story.tell(planned)
            limit = story.state.spec(story.job(planned.job)).limit
            ends[planned.job] = (
                story.now + (10_000 if limit is None else limit) + KILL_GRACE_SECONDS
            )
        if head is None:
            waiting = [id for id in ids if story.is_(id) == "PENDING"]
            if not waiting:
                return None
            head = waiting[0]
            if any(story.state.spec(story.job(id)).limit is None for id in ends):
                return None  # no promise can be made behind one without a limit
        if head in ends:
            return ends[head] - (jobs[head - 1][1] or 10_000) - KILL_GRACE_SECONDS
        story.now = min(ends.values())
        for id in [id for id, end in ends.items() if end <= story.now]:
            story.exited(id)
            del ends[id]
    raise AssertionError("the head never started")


@settings(max_examples=150)
@given(JOBS)
def test_backfill_never_delays_the_head(jobs: list[tuple[float, int | None, int]]):
    without = start_of_head(jobs, backfill=False)
    with_ = start_of_head(jobs, backfill=True)
    if without is not None and with_ is not None:
        assert with_ <= without


@settings(max_examples=150)
@given(JOBS)
def test_head_starts_by_its_shadow_time_when_others_end_early(
    jobs: list[tuple[float, int | None, int]],
):
    story = Scenario(gpus=3)
    ids = [story.submit(gpus(amount), limit=limit) for amount, limit, _ in jobs]
    ends: dict[int, float] = {}
    promised: float | None = None
    head: int | None = None
    for _ in range(60):
        for job in story.plan():
            _, limit, early = jobs[job - 1]
            ends[job] = (
                story.now + (500 if limit is None else max(limit - early, 0)) + KILL_GRACE_SECONDS
            )
        if head is not None and story.is_(head) != "PENDING":
            assert promised is None or story.now <= promised
            return
        waiting = [id for id in ids if story.is_(id) == "PENDING"]
        if not waiting:
            return
        if head is None:
            head = waiting[0]
        request = story.state.spec(story.job(head)).request
        found = reserve(story.state.cluster, story.state.releases(), request)
        assert found is not None
        if found.shadow_time != float("inf"):
            assert promised is None or found.shadow_time <= promised
            promised = found.shadow_time
        story.now = min(ends.values())
        for id in [id for id, end in ends.items() if end <= story.now]:
            story.exited(id)
            del ends[id]
    raise AssertionError("the head never started")


def test_start_beside_a_reservation_is_seen_by_the_next_candidate():
    """Given devices held for a nomination on the same node, both starts get GPUs of their own."""
    cluster = Cluster()
    for facts in (node(3, name="a"), node(2, name="b")):
        cluster.add_node(facts, ())
    busy = Placement("b", (DeviceAllocation("gpu", "0", 1000), DeviceAllocation("gpu", "1", 1000)))
    cluster.allocate(busy)
    nominated = Placement("a", (DeviceAllocation("gpu", "0", 1000),))
    head = ResourceRequest(gpus=GpuRequest(2000), nodes=("b",))
    blocked = [BlockedJob((0, 1.0, 1), head, None)]
    backfill = EasyBackfill(cluster, lambda: [(1000.0, busy)], now=0.0)

    def start(limit: int | None) -> Placement:
        ledger = Overlay(cluster)
        ledger.withhold(nominated)
        placement = backfill.find_start(gpus(1), limit, ledger, blocked)
        assert placement is not None
        cluster.allocate(placement)
        return placement

    assert {*start(None).names("gpu"), *start(100).names("gpu")} == {"1", "2"}
