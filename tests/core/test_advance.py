"""Advance reservations: what may start beside them, and what stops at their begin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.scenario import Afar, Scenario, gpus
from core.test_training import listens, training
from stoker.core import events as e
from stoker.core.explain.unblock import unblocks
from stoker.core.explain.why import reason
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.job import JobState
from stoker.core.model.limits import Subject
from stoker.core.model.resources import ResourceRequest
from stoker.core.state.timers import next_timers

HOUR = 3600.0
NIGHT = Subject("queue", "night")


def reserve(
    story: Scenario, *devices: str, name: str = "r1", after: float = HOUR, hours: float = 2.0,
    nodes: tuple[str, ...] = (), subjects: tuple[Subject, ...] = (NIGHT,),
) -> None:  # fmt: skip
    begin = story.now + after
    reservation = AdvanceReservation(
        name, begin, begin + hours * HOUR, gpus=devices, nodes=nodes, subjects=subjects
    )
    story.tell(e.ReservationMade(at=story.now, reservation=reservation))


def policy(story: Scenario, name: str) -> None:
    story.tell(e.PolicyChosen(at=story.now, queue="*", name=name))


def test_a_job_starts_only_if_it_ends_before_the_begin() -> None:
    story = Afar(gpus=1)
    reserve(story, "box/0")
    unlimited, long = story.submit(), story.submit(limit=3600)
    short = story.submit(limit=3000)
    assert story.plan() == [short]
    story.exited(short)
    assert story.plan() == []
    for job in (unlimited, long):
        assert story.is_(job) == "PENDING"


@pytest.mark.parametrize("name", ["backfill", "conservative", "planner", "srsf"])
def test_its_jobs_start_there_although_others_are_before_them(name: str) -> None:
    story = Afar(gpus=2)
    policy(story, name)
    others = [story.submit(gpus(2), limit=600), story.submit(limit=600)]
    reserve(story, "box/0", after=0.0)
    own = [story.submit(queue="night") for _ in range(2)]
    started = story.plan()
    assert own[0] in started
    assert story.on(own[0]) == ["0"]
    assert story.is_(others[0]) == "PENDING"
    assert own[1] not in started


def test_other_gpus_are_used_as_before() -> None:
    story = Afar(gpus=2)
    reserve(story, "box/0")
    job, second = story.submit(), story.submit()
    assert story.plan() == [job]
    assert story.on(job) == ["1"]
    code, text = reason(story.state, story.job(second), story.now)
    assert code == "Reservation"
    assert text == "box/0 reserved for queue night (r1) in 60 min, and the job has no time limit"
    found = unblocks(story.state, story.job(second), {"gpu"}, story.now, story.boot, lambda _: None)
    assert "reservation r1 ends in 3 h" in found


def test_its_devices_are_free_for_all_after_its_end_and_after_it_is_cancelled() -> None:
    for is_cancelled in (False, True):
        story = Afar(gpus=1)
        reserve(story, "box/0", after=0.0)
        job = story.submit(limit=60)
        assert story.plan() == []
        if is_cancelled:
            story.tell(e.ReservationEnded(at=story.now, name="r1", cancelled=True))
        else:
            assert next_timers(story.state, story.boot)[0] == story.now + 2 * HOUR
            (event,) = story.wait(2 * HOUR)
            assert isinstance(event, e.ReservationEnded)
        assert story.state.pending.planning_requested
        assert story.plan() == [job]


@pytest.mark.parametrize("kind", ["training", "requeueable", "other"])
def test_at_its_begin_only_jobs_stop_that_can_be_resumed(kind: str) -> None:
    story = Afar(gpus=1)
    if kind == "training":
        job = training(story)
        listens(story, job)
    else:
        job = story.submit(requeueable=kind == "requeueable")
        story.run(job)
    reserve(story, "box/0")
    assert story.wait(HOUR - 1) == []
    events = story.wait(1)
    if kind == "other":
        assert events == []
        return
    (event,) = events
    assert isinstance(event, e.PreemptionRequested)
    assert (event.job, "r1" in event.why) == (job, True)
    assert story.wait(1) == []
    if kind == "training":
        story.exited(job, stopped=True)
        story.wait(600)
        assert story.plan() == []
        assert story.is_(job) == "PENDING"


def test_jobs_of_its_subjects_are_not_stopped() -> None:
    story = Afar(gpus=1)
    job = story.submit(requeueable=True, queue="night")
    story.run(job)
    reserve(story, "box/0")
    assert story.wait(HOUR) == []


def test_a_job_that_is_always_preemptible_may_start_until_the_begin() -> None:
    story = Afar(gpus=1)
    reserve(story, "box/0")
    job = story.submit(requeueable=True)
    assert story.plan() == [job]
    story.tell(e.StartCancelled(at=story.now, job=job, attempt=0, why="test"))
    story.wait(HOUR)
    assert story.plan() == []


def test_a_reserved_node_runs_no_jobs_without_gpus_either() -> None:
    story = Afar(gpus=1)
    story.add("far", gpus=1)
    reserve(story, nodes=("box",))
    cores = ResourceRequest(cpus=1000)
    jobs = [story.submit(cores), story.submit(ResourceRequest(exclusive=True))]
    assert story.plan() == jobs[:1]
    assert story.where(jobs[0]) == ["far"]


def test_a_whole_node_with_a_reserved_gpu_is_not_given_away() -> None:
    story = Afar(gpus=2)
    reserve(story, "box/1")
    whole, cores = story.submit(ResourceRequest(exclusive=True)), story.submit(gpus(0))
    assert story.plan() == [cores]
    assert story.is_(whole) == "PENDING"


@pytest.mark.parametrize("name", ["backfill", "conservative"])
def test_backfill_reserves_for_the_head_after_the_advance_reservation(name: str) -> None:
    """The head needs both GPUs for two hours: it starts when the reservation of one of them ends.

    Without it, the head would start when the running job ends, after an hour.
    """
    story = Afar(gpus=2)
    policy(story, name)
    running = story.submit(limit=3600)
    story.run(running)
    other = "1" if story.on(running) == ["0"] else "0"
    reserve(story, f"box/{other}", after=1.5 * HOUR, hours=1.0)
    head = story.submit(gpus(2), limit=7200)
    fits_before, too_long = story.submit(limit=5000), story.submit(limit=9000)
    assert story.plan() == [fits_before]
    assert story.on(fits_before) == [other]
    story.exited(fits_before)
    story.exited(running)
    beside = story.submit(limit=7200)
    started = story.plan()
    assert beside in started
    assert too_long not in started
    assert story.is_(head) == "PENDING"


def test_several_users_of_one_class_do_not_block_each_other() -> None:
    story = Afar(gpus=1)
    reserve(story, "box/0", after=0.0, subjects=(Subject("user", "bo", 1002),))
    first, second = story.submit(user="ana", uid=1001), story.submit(user="bo", uid=1002)
    assert story.plan() == [second]
    assert story.is_(first) == "PENDING"


def test_two_reservations_are_used_by_their_own_jobs() -> None:
    story = Afar(gpus=3)
    head = story.submit(gpus(3))
    for number, name in enumerate(("night", "day")):
        subject = Subject("queue", name)
        reserve(story, f"box/{number}", name=name, after=0.0, subjects=(subject,))
    jobs = [story.submit(queue=name) for name in ("night", "day")]
    assert story.plan() == jobs
    assert [story.on(job) for job in jobs] == [["0"], ["1"]]
    assert story.is_(head) == "PENDING"


def test_an_estimate_counts_as_a_time_limit() -> None:
    story = Afar(gpus=1)
    reserve(story, "box/0", after=10 * HOUR)
    job = training(story)
    assert story.is_(job) == "PENDING"
    done = training(story, limit=3600)
    listens(story, done)
    for count in (1, 2):
        story.now += 60.0
        story.about(e.EpochsCounted, done, done=count, seconds=60.0)
    story.exited(done)
    assert story.plan() == [job]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.sampled_from((0.5, 1.0, 2.0)),
            st.sampled_from((None, 600, 3600, 20_000)), st.sampled_from(("default", "night")),
            st.sampled_from(("", "requeueable", "exclusive", "gang")),
        ),
        st.tuples(st.just("exit"), st.integers(0, 20)),
        st.tuples(
            st.just("reserve"), st.sampled_from(("box/0", "box/1", "far/0", "far/1")),
            st.sampled_from((0.0, 1800.0, 9000.0)), st.sampled_from((0.5, 3.0)),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from((60.0, 900.0, 4000.0))),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None)
@given(STEPS, st.sampled_from(("backfill", "conservative", "planner", "fifo")))
def test_what_is_reserved_is_free_of_jobs_of_others_that_started_later_and_cannot_stop(
    steps: list[tuple[Any, ...]], policy_name: str
) -> None:
    story = Afar(gpus=2)
    story.add("far", gpus=2)
    policy(story, policy_name)
    for number, (verb, *rest) in enumerate(steps):
        if verb == "submit":
            amount, limit, queue, kind = rest
            request = gpus(amount)
            if kind == "exclusive":
                request = ResourceRequest(exclusive=True)
            elif kind == "gang":
                request = ResourceRequest(gpus=request.gpus, node_count=2)
            story.submit(request, limit=limit, queue=queue, requeueable=kind == "requeueable")
        elif verb == "exit" and story.state.running:
            running = sorted(story.state.running)
            story.exited(running[rest[0] % len(running)])
        elif verb == "reserve":
            device, after, hours = rest
            reserve(story, device, name=f"r{number}", after=after, hours=hours)
        elif verb == "cancel" and story.state.record.reservations:
            names = sorted(story.state.record.reservations)
            name = names[rest[0] % len(names)]
            story.tell(e.ReservationEnded(at=story.now, name=name, cancelled=True))
        elif verb == "wait":
            pass_time(story, rest[0])
        story.plan()
        for job in list(story.state.running.values()):
            if job.state is JobState.CONFIGURING:
                story.started(job.id)
        assert_reserved_devices_are_kept(story)


def pass_time(story: Afar, seconds: float) -> None:
    """Advance the clock in steps; jobs end at their limits, and stop when they are asked."""
    for _ in range(10):
        story.wait(seconds / 10)
        for id, job in list(story.state.running.items()):
            if job.state is JobState.COMPLETING or job.progress.stop is not None:
                story.exited(id, stopped=job.progress.stop is not None)


def assert_reserved_devices_are_kept(story: Afar) -> None:
    state = story.state
    for reservation in state.record.reservations.values():
        if not reservation.begin <= story.now < reservation.end:
            continue
        for job in state.running.values():
            spec = state.spec(job)
            if reservation.admits(state.limits.keys(spec)) or spec.is_always_preemptible:
                continue
            assert job.allocated_at is not None
            is_there = any(
                reservation.has_gpu(part.node, gpu)
                for part in job.parts
                for gpu in part.names("gpu")
            )
            made = next(
                event.at
                for event in reversed(story.journal)
                if isinstance(event, e.ReservationMade) and event.reservation == reservation
            )
            assert not is_there or job.allocated_at <= made
