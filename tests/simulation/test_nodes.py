"""Several simulated machines: links that break, restarts, parts that begin together."""

import pytest
from msgspec.structs import replace

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus, machine
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from stoker.core.events import AttemptAbandoned, NodeUnreachable, StartCancelled
from stoker.core.model.job import JobState
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Retry

AFAR = replace(gpus(1), not_nodes=("box",))
BOTH = replace(gpus(1), node_count=2)
LONG = (Model(seconds=100),)


def fleet(*, gpus: int = 1, **more) -> SimFixture:
    box = SimFixture(gpus=gpus, remotes=[machine(1, name="ant"), machine(2, name="bee")], **more)
    box.add("ant", "bee")
    return box


def told(box: SimFixture, kind: type) -> int:
    return sum(isinstance(event, kind) for event in box.driver.published)


def test_jobs_run_on_all_machines():
    box = fleet()
    box.submit(models=(Model(seconds=10),), count=8)
    box.run(5)
    assert [len(each.processes) for _, each in box.driver.machines.values()] == [1, 1, 2]
    box.run(20)
    box.check_all_over()


def test_what_ends_while_its_link_is_cut_is_found_on_return():
    box = fleet()
    job = box.submit(AFAR, models=(Model(seconds=20, code=3),))
    box.run(5)
    box.cut("ant", 60)
    assert box.job(job).state is JobState.RUNNING
    assert told(box, NodeUnreachable) == 1
    box.mend("ant")
    assert (box.job(job).state, box.job(job).code) == (JobState.FAILED, 3)
    assert box.runs(job) == [0]


def test_what_ended_in_time_while_its_link_was_cut_did_not_run_out_of_it():
    box = fleet()
    job = box.submit(AFAR, models=(Model(seconds=30),), limit=60)
    box.run(5)
    box.cut("ant", 100)
    box.mend("ant")
    assert box.job(job).state is JobState.COMPLETED


def test_a_cut_that_nobody_noticed_loses_no_report():
    box = fleet()
    job = box.submit(AFAR, models=(Model(seconds=2),))
    box.run(1)
    box.cut("ant", 3)
    assert told(box, NodeUnreachable) == 0
    box.mend("ant")
    assert box.job(job).state is JobState.COMPLETED


def test_an_order_that_was_lost_on_the_way_is_given_again():
    box = fleet()
    box.driver.cut("ant")
    job = box.submit(AFAR, models=(Model(seconds=5),))  # the cut is not noticed yet
    box.run(20)
    assert box.job(job).state is JobState.CONFIGURING
    assert box.runs(job) == []
    box.mend("ant")
    box.run(20)
    assert box.job(job).state is JobState.COMPLETED
    assert box.runs(job) == [1]


def test_what_is_wanted_of_a_silent_machine_is_done_on_its_return():
    box = fleet()
    job = box.submit(AFAR, models=LONG)
    box.run(5)
    box.cut("ant")
    box.do(ask.cancel(job))
    box.run(10)
    assert box.job(job).state is JobState.COMPLETING
    box.mend("ant")
    assert box.job(job).state is JobState.CANCELLED


def test_another_machines_restart_loses_only_what_ran_there():
    box = fleet()
    jobs = [box.submit(models=LONG, retry=Retry(1, ("lost",))) for _ in range(3)]
    box.run(5)
    where = {box.ran_on(job)[0]: job for job in jobs}
    box.driver.reboot_remote("ant")
    box.run(400)
    assert [box.runs(where[name]) for name in ("box", "ant", "bee")] == [[0], [0, 1], [0]]
    box.check_all_over()


def test_the_drivers_restart_loses_nothing_elsewhere():
    box = fleet()
    jobs = [box.submit(models=LONG, limit=200) for _ in range(3)]
    box.run(5)
    here = next(job for job in jobs if box.ran_on(job) == ["box"])
    box.driver.reboot()
    box.run(150)
    for job in jobs:
        assert box.job(job).state is (JobState.NODE_FAIL if job == here else JobState.COMPLETED)


@pytest.mark.parametrize("mishap", ["none", "crash", "reboot"])
def test_a_job_that_was_given_up_runs_elsewhere_and_its_old_copy_is_killed_on_return(mishap: str):
    box = fleet()
    job = box.submit(AFAR, models=LONG, if_unreachable=30)
    box.run(5)
    assert box.ran_on(job) == ["ant"]
    box.cut("ant", 20)
    if mishap == "crash":
        box.driver.crash()
    if mishap == "reboot":
        box.driver.reboot()
    box.run(20)
    assert told(box, AttemptAbandoned) == 1
    assert box.ran_on(job) == ["ant", "bee"]  # which is what its owner asked for
    box.mend("ant")
    assert box.ran_on(job) == ["bee"]
    assert box.state.record.abandoned_attempts == {}
    box.run(200)
    assert (box.job(job).state, box.runs(job)) == (JobState.COMPLETED, [0, 1])


def test_one_given_up_in_the_moment_of_return_does_not_run_twice():
    box = fleet()
    job = box.submit(AFAR, models=LONG, if_unreachable=30)
    box.run(5)
    box.cut("ant", 5)
    box.run(29.9)
    box.world.advance(0.2)  # its time is up, and nobody has looked
    box.driver.mend("ant")
    box.run(1)
    assert len(box.ran_on(job)) == 1
    assert box.state.record.abandoned_attempts == {}
    box.run(300)
    assert box.job(job).state is JobState.COMPLETED


def test_a_machine_that_was_removed_and_added_again_is_cleared_of_what_was_ours():
    box = fleet()
    job = box.submit(AFAR, models=LONG, if_unreachable=30)
    box.run(5)
    assert box.remove("ant").rejection is not None  # something runs there
    box.cut("ant", 50)
    assert box.remove("ant").rejection is None
    assert box.ran_on(job) == ["ant", "bee"]
    box.mend("ant")
    box.add("ant")
    assert box.ran_on(job) == ["bee"]


def test_parts_begin_together_and_end_together():
    box = fleet()
    job = box.submit(BOTH, models=(Model(seconds=50, others=(Model(seconds=10, code=4),)),))
    box.run(5)
    assert len(box.ran_on(job)) == 2
    box.run(10)
    assert box.ran_on(job) == []
    assert (box.job(job).state, box.job(job).code) == (JobState.FAILED, 4)


def test_no_part_begins_when_one_machine_does_not_answer():
    box = fleet()
    box.driver.cut("ant")
    job = box.submit(replace(BOTH, node_count=3), models=(Model(seconds=5),))
    box.run(30)
    assert (box.job(job).state, box.runs(job)) == (JobState.CONFIGURING, [])
    box.run(60)  # the parts that were ready give up
    box.mend("ant")
    assert told(box, StartCancelled) == 1
    assert box.runs(job) == []
    box.run(20)
    assert box.job(job).state is JobState.COMPLETED
    assert len(box.runs(job)) == 3


def test_parts_that_wait_for_one_that_was_given_up_are_started_elsewhere():
    box = fleet()
    box.driver.cut("ant")
    job = box.submit(
        replace(BOTH, not_nodes=("box",)), models=(Model(seconds=5),), if_unreachable=20
    )
    box.run(10)
    assert (box.job(job).state, box.runs(job)) == (JobState.CONFIGURING, [])
    box.run(40)
    assert box.job(job).attempt == 1
    box.mend("ant")
    box.run(20)
    assert (box.job(job).state, box.runs(job)) == (JobState.COMPLETED, [1, 1])


def test_the_death_of_a_part_is_not_forgotten_by_a_new_daemon():
    box = fleet()
    stubborn = Model(seconds=500, ignores_term=True, others=(Model(seconds=10, code=4),))
    job = box.submit(BOTH, models=(stubborn,))
    box.run(12)
    assert box.job(job).state is JobState.COMPLETING
    box.driver.crash()
    box.run(12)
    assert (box.job(job).state, box.job(job).code) == (JobState.FAILED, 4)
    box.check_all_over()


def test_a_part_that_was_done_long_ago_is_not_taken_for_one_that_never_began():
    box = fleet()
    job = box.submit(BOTH, models=(Model(seconds=60, others=(Model(seconds=5),)),))
    box.run(20)
    box.driver.crash()
    box.run(60)
    assert (box.job(job).state, box.runs(job)) == (JobState.COMPLETED, [0, 0])


def busy(box: SimFixture) -> None:
    """A little of everything, in five minutes."""
    box.add("ant", "bee")
    rule = Retry(2, ("lost",))
    plain = box.submit(AFAR, models=(Model(seconds=30),), count=3, retry=rule)
    wide = box.submit(BOTH, models=(Model(seconds=20), Model(seconds=5)), retry=rule)
    patient = box.submit(
        AFAR, models=(Model(seconds=90),), if_unreachable=20, priority=5, retry=rule
    )
    uneven = box.submit(
        replace(ResourceRequest(cpus=1000), node_count=3),
        models=(Model(seconds=40, others=(Model(seconds=15, code=1),)), Model(seconds=5)),
        retry=Retry(2),
    )
    box.run(10)
    box.cut("ant", 40)
    box.driver.reboot_remote("bee")
    box.run(10)
    box.mend("ant")
    box.run(600)
    box.check_all_over()
    for job in (plain, plain + 1, plain + 2, wide, patient, uneven):
        assert box.job(job).state is JobState.COMPLETED, box.job(job)


def small(**more) -> SimFixture:
    return SimFixture(gpus=1, remotes=[machine(1, name="ant"), machine(2, name="bee")], **more)


def test_killed_at_any_instant_the_fleet_loses_nothing_and_runs_nothing_twice():
    whole = small()
    busy(whole)
    assert whole.driver.crashes == 0
    for instant in range(small().driver.fuse.passed + 1, whole.driver.fuse.passed + 1):
        box = small(check_every=25, faults=Faults(start_delay=1.0) if instant % 4 else None)
        box.driver.fuse.at = instant
        busy(box)
        assert box.driver.crashes == 1, instant
