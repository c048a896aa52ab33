"""The simulated driver itself: what it does without any mishap."""

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from stoker.core.model.job import JobState
from stoker.core.model.spec import Retry


def test_a_job_runs_and_ends():
    box = SimFixture()
    job = box.submit(models=(Model(seconds=5),))
    box.run(10)
    assert box.states() == {job: "COMPLETED"}
    assert box.runs(job) == [0]
    assert box.driver.told == [job]


def test_four_gpus_run_ten_jobs_in_three_rounds():
    box = SimFixture(gpus=4)
    box.submit(models=(Model(seconds=10),), count=10)
    box.run(25)
    assert sorted(box.states().values()) == ["COMPLETED"] * 8 + ["RUNNING"] * 2
    box.run(10)
    box.check_all_over()


def test_a_process_that_ignores_term_is_killed_after_the_grace():
    box = SimFixture()
    job = box.submit(models=(Model(seconds=1000, ignores_term=True),))
    box.do(ask.cancel(job))
    box.run(5)
    assert box.job(job).state is JobState.COMPLETING
    box.run(10)
    assert box.job(job).state is JobState.CANCELLED


def test_lost_reports_are_made_good_by_looking():
    box = SimFixture(faults=Faults(lost=1.0))
    job = box.submit(models=(Model(seconds=5),))
    box.run(60)
    assert box.job(job).state is JobState.COMPLETED


def test_a_crash_leaves_running_processes_alone():
    box = SimFixture()
    job = box.submit(models=(Model(seconds=100),))
    box.run(10)
    box.driver.crash()
    box.run(200)
    assert box.runs(job) == [0]
    assert box.job(job).state is JobState.COMPLETED


def test_a_reboot_loses_what_ran_and_its_retry_rule_decides():
    box = SimFixture()
    plain = box.submit(gpus(1), models=(Model(seconds=100),))
    stubborn = box.submit(gpus(1), models=(Model(seconds=100),), retry=Retry(1, ("lost",)))
    box.run(10)
    box.driver.reboot()
    box.finish()
    assert box.job(plain).state is JobState.NODE_FAIL
    assert box.job(plain).cause == "lost: the node restarted"
    assert box.job(stubborn).state is JobState.COMPLETED
    assert box.runs(stubborn) == [0, 1]


def test_an_end_recorded_before_a_reboot_is_not_lost():
    box = SimFixture()
    job = box.submit(models=(Model(seconds=5, code=3),))
    box.world.advance(6)  # the process ends, and the driver has not turned since
    box.driver.reboot()
    box.run(10)
    assert (box.job(job).state, box.job(job).code) == (JobState.FAILED, 3)


def test_an_order_that_arrives_after_its_driver_died_starts_nothing():
    box = SimFixture(seed=3, faults=Faults(start_delay=100))
    job = box.submit(models=(Model(seconds=5),))
    box.driver.crash()
    box.finish(1000)
    assert box.job(job).state is JobState.COMPLETED
    assert len(box.runs(job)) == 1
