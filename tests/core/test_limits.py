"""Limits of users, groups and queues: what they keep from starting, and when they end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.scenario import Afar, Scenario, gpus
from stoker.core import events as e
from stoker.core.explain.unblock import unblocks
from stoker.core.explain.why import reason
from stoker.core.model.limits import EACH_USER, Limits, Subject
from stoker.core.model.resources import ResourceRequest
from stoker.core.state.limits import HOUR_SECONDS, WEEK_HOURS
from stoker.core.state.reranking import refresh_ranks
from stoker.core.state.timers import next_timers

ANA, BO = 1001, 1002
VISION = 501
USERS = {ANA: "ana", BO: "bo"}
SUBJECTS = {
    "ana": Subject("user", "ana", ANA),
    "each": Subject("user", EACH_USER),
    "vision": Subject("group", "vision", VISION),
    "queue": Subject("queue", "default"),
}


def limit(story: Scenario, who: str, **limits: Any) -> None:
    story.tell(e.LimitsSet(at=story.now, subject=SUBJECTS[who], limits=Limits(**limits)))


def submit(story: Scenario, uid: int, request: ResourceRequest | None = None, **more: Any) -> int:
    return story.submit(request, user=USERS[uid], uid=uid, **more)


def why(story: Scenario, job: int) -> tuple[str | None, str | None]:
    return reason(story.state, story.job(job), story.now)


def plan(story: Scenario) -> list[int]:
    """Plan as a cycle does, with the GPU-hours of now."""
    refresh_ranks(story.state, story.now)
    return story.plan()


def join_vision(story: Scenario, *users: int) -> None:
    for uid in users:
        story.tell(e.GroupsRecorded(at=story.now, uid=uid, groups=(VISION,)))


def test_a_job_over_the_gpus_of_its_user_waits_and_others_pass_it() -> None:
    story = Afar(gpus=4)
    limit(story, "ana", max_gpus=2000)
    first, second, theirs = submit(story, ANA, gpus(2)), submit(story, ANA), submit(story, BO)
    assert story.plan() == [first, theirs]
    code, text = why(story, second)
    assert code == "AssocGrpGRES"
    assert text == "user ana may use 2 GPUs at a time, and uses 2"
    story.exited(first)
    assert story.plan() == [second]


@pytest.mark.parametrize("who", ["ana", "each", "vision", "queue"])
def test_running_jobs_are_counted_per_user_group_or_queue(who: str) -> None:
    story = Afar(gpus=4)
    join_vision(story, ANA, BO)
    limit(story, who, max_running=1)
    jobs = [submit(story, uid) for uid in (ANA, ANA, BO, BO)]
    expected = {
        "ana": [jobs[0], *jobs[2:]], "each": [jobs[0], jobs[2]], "vision": jobs[:1],
        "queue": jobs[:1],
    }  # fmt: skip
    assert story.plan() == expected[who]


def test_own_limits_of_a_user_replace_those_of_each_user() -> None:
    story = Afar(gpus=4)
    limit(story, "each", max_running=1)
    limit(story, "ana", max_running=2)
    jobs = [submit(story, uid) for uid in (ANA, ANA, BO, BO)]
    assert story.plan() == jobs[:3]


def test_limits_are_live_and_removed_without_values() -> None:
    story = Afar(gpus=4)
    jobs = [submit(story, ANA) for _ in range(3)]
    limit(story, "ana", max_running=1)
    assert story.plan() == jobs[:1]
    limit(story, "ana")
    assert story.state.record.limits == {}
    assert story.plan() == jobs[1:]


def test_running_jobs_continue_under_a_new_limit() -> None:
    story = Afar(gpus=4)
    job = submit(story, ANA, gpus(3))
    story.run(job)
    limit(story, "ana", max_gpus=1000)
    assert story.is_(job) == "RUNNING"
    assert story.state.limits.use(f"user:{ANA}") == (1, 3000, 72_000)


@pytest.mark.parametrize(
    ("limits", "request_", "fields", "code"),
    [
        ({"max_job_gpus": 1000}, gpus(2), {}, "AssocMaxGRESPerJob"),
        ({"max_time": 60}, gpus(1), {"limit": 61}, "AssocMaxWallDurationPerJobLimit"),
        ({"max_time": 60}, gpus(1), {}, "AssocMaxWallDurationPerJobLimit"),
        ({"gpu_memory": 23_000}, gpus(1), {}, "AssocGrpMemLimit"),
        ({"max_gpus": 1000}, ResourceRequest(exclusive=True), {}, "AssocGrpGRES"),
    ],
)
def test_a_job_that_exceeds_a_limit_stays_pending(
    limits: dict[str, int], request_: ResourceRequest, fields: dict[str, int], code: str
) -> None:
    story = Afar(gpus=4)
    limit(story, "queue", **limits)
    job = submit(story, ANA, request_, **fields)
    assert story.plan() == []
    assert why(story, job)[0] == code


def test_gpu_hours_of_a_week_keep_jobs_from_starting_until_they_no_longer_count() -> None:
    story = Afar(gpus=4)
    limit(story, "ana", gpu_hours=4)
    used = submit(story, ANA, gpus(2))
    story.run(used)
    story.now += 2 * HOUR_SECONDS
    story.exited(used)
    start = story.now
    job, other, without = submit(story, ANA), submit(story, BO), submit(story, ANA, gpus(0))
    assert plan(story) == [other, without]
    code, text = why(story, job)
    assert code == "AssocGrpGRESMinutes"
    assert "4 GPU-hours" in (text or "")
    (unblock,) = unblocks(story.state, story.job(job), set(), story.now, story.boot, lambda _: None)
    assert "6.9 days" in unblock or "7 days" in unblock
    wall, _ = next_timers(story.state, story.boot)
    assert wall == (start // HOUR_SECONDS + 1) * HOUR_SECONDS
    story.now = start - 2 * HOUR_SECONDS + (WEEK_HOURS - 1) * HOUR_SECONDS
    assert plan(story) == []
    story.now += 2 * HOUR_SECONDS
    refresh_ranks(story.state, story.now)
    assert story.state.pending.planning_requested
    assert story.plan() == [job]


def test_gpu_hours_of_a_running_job_count() -> None:
    story = Afar(gpus=4)
    limit(story, "ana", gpu_hours=2)
    running = submit(story, ANA)
    story.run(running)
    story.now += HOUR_SECONDS
    assert plan(story) == []
    second = submit(story, ANA)
    assert plan(story) == [second]
    story.now += 2 * HOUR_SECONDS
    third = submit(story, ANA)
    assert plan(story) == []
    assert why(story, third)[0] == "AssocGrpGRESMinutes"


def test_gpu_time_is_the_same_after_a_restart() -> None:
    story = Afar(gpus=4)
    limit(story, "each", gpu_hours=100)
    limit(story, "queue", gpu_hours=100)
    for uid in (ANA, BO):
        job = submit(story, uid, gpus(1.5))
        story.run(job)
        story.now += 5000.5
        story.exited(job)
    assert story.state.limits.gpu_seconds(f"user:{ANA}", story.now) == pytest.approx(7500.75)
    assert story.state.limits.gpu_seconds("queue:default", story.now) == pytest.approx(15001.5)
    limit(story, "each")
    assert list(story.state.record.gpu_time) == ["queue:default"]


def test_the_next_end_that_suffices_is_named() -> None:
    story = Scenario(gpus=4)
    limit(story, "ana", max_gpus=3000)
    long, short = submit(story, ANA, gpus(2), limit=500), submit(story, ANA, limit=100)
    story.run(long, short)
    job = submit(story, ANA, gpus(3))
    assert story.plan() == []
    found = unblocks(story.state, story.job(job), set(), story.now, story.boot, lambda _: None)
    assert found == (f"jobs {short} and {long} end in at most 8 min",)


def test_a_limit_of_a_group_follows_its_members() -> None:
    story = Afar(gpus=4)
    limit(story, "vision", max_running=1)
    jobs = [submit(story, uid) for uid in (ANA, BO, ANA)]
    join_vision(story, ANA)
    assert story.plan() == jobs[:2]
    join_vision(story, BO)
    story.exited(jobs[0])
    assert story.plan() == []
    story.tell(e.GroupsRecorded(at=story.now, uid=BO, groups=()))
    assert story.plan() == [jobs[2]]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.sampled_from((ANA, BO)), st.sampled_from((0.0, 0.5, 1.0, 2.0)),
            st.booleans(),
        ),
        st.tuples(st.just("exit"), st.integers(0, 20)),
        st.tuples(
            st.just("limit"), st.sampled_from(sorted(SUBJECTS)),
            st.sampled_from(("max_gpus", "max_running", "gpu_hours", "gpu_memory")),
            st.integers(0, 4),
        ),
        st.tuples(st.just("groups"), st.sampled_from((ANA, BO)), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from((60.0, 3600.0, 90_000.0))),
    ),
    max_size=30,
)  # fmt: skip
UNITS = {"max_gpus": 1000, "max_running": 1, "gpu_hours": 1, "gpu_memory": 24_000}


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None)
@given(STEPS)
def test_no_start_ever_exceeds_a_limit(steps: list[tuple[Any, ...]]) -> None:
    story = Afar(gpus=4)
    given: dict[str, dict[str, int]] = {}
    for verb, *rest in steps:
        if verb == "submit":
            uid, amount, exclusive = rest
            request = ResourceRequest(exclusive=True) if exclusive else gpus(amount)
            submit(story, uid, request)
        elif verb == "exit" and story.state.running:
            running = sorted(story.state.running)
            story.exited(running[rest[0] % len(running)])
        elif verb == "limit":
            who, name, value = rest
            given.setdefault(who, {})[name] = value * UNITS[name]
            limit(story, who, **given[who])
        elif verb == "groups":
            story.tell(
                e.GroupsRecorded(at=story.now, uid=rest[0], groups=(VISION,) if rest[1] else ())
            )
        elif verb == "wait":
            story.wait(rest[0])
        before = set(story.state.running)
        plan(story)
        for job in set(story.state.running) - before:
            assert_within_limits(story, job)


def assert_within_limits(story: Afar, started: int) -> None:
    """Recount what is used of every limit of a job that has just started."""
    limits = story.state.limits
    for key, _, limit in limits.of(story.state.spec(story.job(started))):
        jobs = [
            job for job in story.state.running.values() if key in limits.keys(story.state.spec(job))
        ]
        placements = [job.placement for job in jobs if job.placement is not None]
        assert limit.max_running is None or len(jobs) <= limit.max_running
        used = sum(placement.gpu_amount for placement in placements)
        own = story.placed(started).gpu_amount
        assert limit.max_gpus is None or used <= limit.max_gpus or not own
        assert limit.gpu_memory is None or used * 24 <= limit.gpu_memory or not own
        if limit.gpu_hours is not None and own:
            assert limits.gpu_seconds(key, story.now) < limit.gpu_hours * HOUR_SECONDS
