"""GPU time: every second of every GPU is held by a job or free, and is counted once."""

import random

import pytest

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.handlers.learning import usage_until
from stoker.core.model.job import JobState
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Retry
from stoker.core.model.units import THOUSAND


def test_an_attempt_holds_its_gpus_until_their_release() -> None:
    scenario = Scenario(gpus=2)
    job = scenario.submit(gpus(2))
    scenario.plan()
    scenario.now += 5.0  # files are uploaded
    scenario.started(job)
    scenario.about(e.UsageMeasured, job, measured=40.0, busy=30.0, energy=4000.0)
    scenario.now += 20.0
    before = usage_until(scenario.state, scenario.job(job), scenario.now)
    assert (before.held, before.busy) == (50.0, 30.0)
    scenario.exited(job)
    usage = scenario.job(job).past[-1].usage
    assert usage is not None
    assert (usage.held, usage.measured, usage.busy, usage.energy) == (50.0, 40.0, 30.0, 4000.0)
    assert (usage.wasted, scenario.job(job).usage) == (0.0, usage)


def test_attempts_are_added_and_failures_are_wasted() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(gpus(0.5), retry=Retry(limit=1, on=("any",)))
    for code, seconds in ((3, 10.0), (0, 30.0)):
        scenario.now += 400.0
        scenario.wait(0.0)
        scenario.run(job)
        scenario.now += seconds
        scenario.exited(job, code)
    wasted = [past.usage.wasted for past in scenario.job(job).past if past.usage]
    assert wasted == [5.0, 0.0]
    assert scenario.job(job).usage.held == 20.0
    assert scenario.job(job).usage.wasted == 5.0


def test_a_measurement_of_an_ended_attempt_changes_nothing() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(gpus(1))
    scenario.run(job)
    scenario.exited(job)
    usage = scenario.job(job).usage
    scenario.fact(e.UsageMeasured, job, attempt=0, measured=9.0, busy=9.0, energy=9.0)
    assert scenario.job(job).usage == usage


def test_a_job_without_gpus_of_which_nothing_was_measured_has_no_usage() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(ResourceRequest(cpus=1000))
    scenario.run(job)
    scenario.now += 10.0
    scenario.exited(job)
    assert scenario.job(job).past[-1].usage is None


def test_cpu_time_is_added_and_the_largest_process_counts() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(ResourceRequest(cpus=1000), retry=Retry(limit=1, on=("any",)))
    for code, seconds, peak in ((1, 5.0, 300), (0, 2.0, 200)):
        scenario.now += 400.0
        scenario.wait(0.0)
        scenario.run(job)
        scenario.about(e.ProcessExited, job, code=code, cpu_seconds=seconds, rss_peak=peak)
    usage = scenario.job(job).usage
    assert (usage.held, usage.cpu, usage.rss) == (0.0, 7.0, 300)


def test_a_repeated_end_counts_once() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(gpus(1))
    scenario.run(job)
    scenario.about(e.UsageMeasured, job, measured=4.0, busy=3.0, energy=0.0)
    for _ in range(2):
        scenario.fact(e.ProcessExited, job, attempt=0, code=0, cpu_seconds=3.0, rss_peak=10)
    usage = scenario.job(job).usage
    assert (usage.cpu, usage.rss, usage.busy) == (3.0, 10, 3.0)


@pytest.mark.parametrize("seed", range(5))
def test_held_and_free_time_of_all_users_is_the_time_of_all_gpus(seed: int) -> None:
    rng, scenario = random.Random(seed), Scenario(gpus=4)
    begin, free = scenario.now, 0.0
    for _ in range(60):
        scenario.submit(gpus(rng.choice([0.25, 0.5, 1, 2, 3])))
        scenario.plan()
        for job in list(scenario.state.running.values()):
            if job.state is JobState.CONFIGURING and rng.random() < 0.7:
                scenario.started(job.id)
            elif job.state is JobState.RUNNING and rng.random() < 0.4:
                scenario.exited(job.id, rng.choice([0, 1]))
        seconds = rng.choice([1.0, 7.5, 60.0])
        free += seconds * sum(scenario.free().values()) / THOUSAND
        scenario.now += seconds
    jobs = scenario.state.jobs.values()
    held = sum(job.usage.held for job in jobs)
    held += sum(usage_until(scenario.state, job, scenario.now).held for job in jobs)
    assert held + free == pytest.approx(4 * (scenario.now - begin))
