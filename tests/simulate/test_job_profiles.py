"""Jobs of known kinds in virtual time: GPUs that differ, and company that slows both down."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.model.resources import NodeFacts
from stoker.simulate.replay.replay import Replay
from stoker.simulate.replay.results import RunResult
from stoker.simulate.traces.cluster_size import node_facts
from stoker.simulate.traces.formats import gavel
from stoker.simulate.workload import Speed, TraceJob, Workload

SAMPLE = Path(__file__).parent / "traces" / "gavel" / "jobs.trace"


class Table:
    """So fast on each model, and so much of it is left in company."""

    def __init__(self, left: float, **rates: float) -> None:
        self.left, self.rates = left, rates

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        return self.rates.get(model, 0.0)

    def interference(self, other: Speed, model: str) -> float:
        return self.left


def load(
    seconds: float, left: float, name: str = "one", at: float = 0.0, **rates: float
) -> TraceJob:
    speed = Table(left, **rates)
    return TraceJob(
        submit_time=at,
        duration=seconds,
        name=name,
        gpu_models=tuple(rates),
        speed=speed,
        steps=seconds,
    )


def played(jobs: list[TraceJob], nodes: list[NodeFacts], policy: str = "planner") -> RunResult:
    run = Replay(Workload(title="", jobs=jobs, profiled=True), nodes, policy).run()
    assert not run.unfinished
    return run


def ends(run: RunResult) -> list[float]:
    return [result.end_time for result in run.results]


def test_two_sharing_jobs_slow_each_other_until_one_ends() -> None:
    # At 0.8 of their speed the first is done with its 800 s after 1000 s; the other has done as
    # much, and does the 800 s that are left to it alone.
    jobs = [load(800.0, 0.8, v100=1.0), load(1600.0, 0.8, v100=1.0)]
    assert ends(played(jobs, [node_facts("a", 1, "v100")])) == pytest.approx([1000.0, 1800.0])


def test_a_later_job_shares_from_its_start_on() -> None:
    # 300 s alone, then 500 s of work at 0.8 of its speed.
    jobs = [load(800.0, 0.8, v100=1.0), load(1600.0, 0.8, at=300.0, v100=1.0)]
    assert ends(played(jobs, [node_facts("a", 1, "v100")])) == pytest.approx([925.0, 2025.0])


def test_two_jobs_that_gain_nothing_by_sharing_take_turns() -> None:
    jobs = [load(800.0, 0.5, v100=1.0), load(1600.0, 0.5, v100=1.0)]
    assert ends(played(jobs, [node_facts("a", 1, "v100")])) == pytest.approx([800.0, 2400.0])


def test_a_gpu_that_two_share_is_in_use_once() -> None:
    jobs = [load(800.0, 0.8, v100=1.0), load(800.0, 0.8, v100=1.0)]
    assert max(used for _, used in played(jobs, [node_facts("a", 1, "v100")]).gpus_in_use) == 1.0


def test_a_slow_gpu_takes_longer() -> None:
    jobs = [load(800.0, 0.0, v100=1.0, k80=0.25)]
    assert ends(played(jobs, [node_facts("a", 1, "k80")])) == pytest.approx([3200.0])


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srsf", "tiresias", "planner", "makespan"])
def test_a_sample_is_played_to_its_end_under_every_policy(policy: str) -> None:
    nodes = [node_facts("a", 4, "v100"), node_facts("b", 4, "p100"), node_facts("c", 4, "k80")]
    workload = gavel.read(SAMPLE)
    first, second = (Replay(workload, nodes, policy, max_segments=100).run() for _ in range(2))
    assert first.unfinished == 0
    assert first.results == second.results
    for piece in first.segments:
        models = workload.jobs[piece.job].gpu_models
        assert ("v100", "p100", "k80")[piece.node] in models


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs of a few kinds, each with its own speeds, on one to three GPUs."""
    rates, shares = st.sampled_from([0.1, 0.3, 0.7, 1.0]), st.sampled_from([0.0, 0.5, 0.7, 0.95])
    speeds = {
        name: Table(draw(shares), v100=draw(rates), k80=draw(rates)) for name in ("a", "b", "c")
    }
    jobs = []
    for _ in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from(sorted(speeds)))
        seconds = draw(st.sampled_from([50.0, 900.0, 5000.0, 40_000.0]))
        jobs.append(
            TraceJob(
                submit_time=draw(st.sampled_from([0.0, 0.0, 700.0, 9000.0])),
                duration=seconds,
                name=name,
                gpus=draw(st.sampled_from([1.0, 1.0, 1.0, 2.0, 3.0])),
                steps=seconds,
                gpu_models=draw(st.sampled_from([("v100", "k80"), ("v100",), ("k80",)])),
                speed=speeds[name],
                non_preemptible=draw(st.booleans()),
            )
        )
    return sorted(jobs, key=lambda each: each.submit_time)


@pytest.mark.parametrize("policy", ["planner", "makespan"])
@given(jobs=workloads())
@settings(max_examples=40, deadline=None)
def test_whatever_the_speeds_every_job_ends(policy: str, jobs: list[TraceJob]) -> None:
    run = played(jobs, [node_facts("a", 3, "v100"), node_facts("b", 3, "k80")], policy)
    for load, result in zip(jobs, run.results, strict=True):
        assert result.end_time - result.start_time >= load.duration - 1e-6
        assert not (load.non_preemptible and result.preemptions)
