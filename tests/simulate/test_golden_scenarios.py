"""Golden scenarios: recorded under unique names, and repeatable."""

import json

import pytest
from msgspec.structs import replace

from benchmarks.golden.__main__ import EXPECTED, RESTARTS
from benchmarks.golden.decisions import DecisionHash
from benchmarks.golden.scenarios import SCENARIOS, run
from benchmarks.golden.workloads import WORKLOADS, simulate
from benchmarks.planner.suite import TRACES, Task, workload
from stoker.core import events as e
from stoker.simulate.replay.replay import replay

RECORDED = json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("name", [name for name in RECORDED if f"{name}{RESTARTS}" in RECORDED])
def test_restarts_are_recorded_with_the_decisions_of_the_run_without(name: str):
    assert RECORDED[f"{name}{RESTARTS}"] == RECORDED[name]


@pytest.mark.parametrize("title", WORKLOADS)
def test_restarts_do_not_change_decisions(title: str):
    without = simulate(title, max_arrivals=40).decisions.result()
    assert simulate(title, 10, max_arrivals=40).decisions.result() == without


def test_every_scenario_is_recorded_under_its_own_name():
    names = [scenario.name for scenario in SCENARIOS]
    assert sorted(names) == sorted(RECORDED)


@pytest.mark.parametrize("name", ["times", "times / restarts", "sweeps"])
def test_a_workload_decides_as_recorded(name: str):
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    assert run(scenario)[1] == RECORDED[name]


def test_a_renamed_event_keeps_its_hash():
    class Renamed(e.Event, frozen=True, kw_only=True, tag="StopWithdrawn"):
        job: int
        attempt: int

    before, after = DecisionHash(), DecisionHash()
    before.add_decisions([e.PreemptionCancelled(at=1.0, job=2, attempt=0)])
    after.add_decisions([Renamed(at=1.0, job=2, attempt=0)])
    assert before.result() == after.result()
    assert after.result()["StopWithdrawn"] == 1


def test_one_elastic_job_does_not_switch_off_the_joint_assignment():
    trace = workload(TRACES, "gavel continuous")
    elastic = replace(
        trace.jobs[0], submit_time=0.0, gpus=1, max_gpus=2, duration=1e6, name="elastic", speed=None
    )
    assumptions = Task("gavel continuous", "planner").assumed

    def mean_completion_time(jobs):
        run = replay(replace(trace, jobs=jobs), list(trace.nodes), "planner", {}, assumptions)
        assert run.unfinished == 0
        times = [
            result.end_time - jobs[result.job].submit_time
            for result in run.results
            if jobs[result.job].name != "elastic"
        ]
        return sum(times) / len(times)

    without = mean_completion_time(trace.jobs)
    assert mean_completion_time([elastic, *trace.jobs]) < 1.05 * without
