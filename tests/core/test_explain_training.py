"""Explanations of training jobs: victims, shared GPU memory."""

from typing import Any

from msgspec.structs import replace

from core.scenario import Afar, gpus
from core.test_training import counted, listens, sharing, training
from stoker.core import events as e
from stoker.core.explain.why import Explanation, explain_job
from stoker.core.model.spec import EarlySignal


def explanation(scenario: Afar, job: int) -> Explanation:
    return explain_job(
        scenario.state, scenario.job(job), scenario.now, scenario.boot, lambda _: None
    )


def details(scenario: Afar, job: int) -> list[str]:
    return [text for node in explanation(scenario, job).nodes for each in node.constraints
            for text in each.details]  # fmt: skip


def test_victims_are_listed_with_the_time_of_their_stop() -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    counted(scenario, low, 3, seconds=300.0)
    high = training(scenario, priority=5)
    assert explanation(scenario, high).pending_preemptions == ()
    scenario.plan()
    scenario.now += 120
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} stops for this job at the end of its epoch, about 3 min",
    )
    scenario.now += 200
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} stops for this job at the end of its epoch, any moment",
    )


def test_without_a_measurement_the_time_of_a_stop_is_unknown() -> None:
    scenario = Afar(gpus=1)
    low = training(scenario)
    listens(scenario, low)
    high = training(scenario, priority=5)
    scenario.plan()
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} stops for this job at the end of its epoch",
    )
    assert explanation(scenario, low).pending_preemptions == ()


def test_a_victim_without_the_library_is_listed() -> None:
    scenario = Afar(gpus=1)
    low = training(scenario, early_signal=EarlySignal(10, 60))
    scenario.run(low)
    high = training(scenario, priority=5)
    scenario.plan()
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} was asked to stop for this job",
    )


def test_processes_that_must_agree_may_need_another_epoch() -> None:
    scenario = Afar(gpus=2)
    low = training(scenario, gpus(2))
    listens(scenario, low)
    high = training(scenario, priority=5)
    scenario.plan()
    text = f"job {low} stops for this job at the end of its epoch, or of the next"
    assert explanation(scenario, high).pending_preemptions == (text,)
    counted(scenario, low, 3, seconds=300.0)
    assert explanation(scenario, high).pending_preemptions == (
        f"{text}, at the earliest in about 5 min",
    )


def stopping_victim(scenario: Afar, **changes: Any) -> tuple[int, int]:
    """A job that was asked to stop, in whatever state, and the one that waits for it."""
    low = training(scenario)
    listens(scenario, low)
    high = training(scenario, priority=5)
    scenario.plan()
    progress = scenario.job(low).progress
    assert progress is not None
    assert progress.stop is not None
    scenario.job(low).progress = replace(progress, stop=replace(progress.stop, **changes))
    return low, high


def test_a_paused_victim_stops_when_it_is_resumed() -> None:
    scenario = Afar(gpus=1)
    low, high = stopping_victim(scenario)
    scenario.tell(e.JobPaused(at=scenario.now, job=low, boot=scenario.boot))
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} is paused; it stops for this job when it is resumed",
    )  # fmt: skip


def test_a_victim_that_timed_out_is_reported() -> None:
    scenario = Afar(gpus=1)
    low, high = stopping_victim(scenario, timed_out=True)
    assert explanation(scenario, high).pending_preemptions == (
        f"job {low} was asked to stop for this job but has not stopped",
    )


def test_a_cancelled_victim_does_not_wait_for_its_epoch() -> None:
    scenario = Afar(gpus=1)
    low, high = stopping_victim(scenario)
    scenario.tell(e.JobCancelled(at=scenario.now, job=low))
    assert explanation(scenario, high).pending_preemptions == (f"job {low} is ending",)


def test_reserved_memory_of_other_jobs_is_explained() -> None:
    scenario = Afar(gpus=1)
    first = training(scenario, sharing(20_000))
    scenario.run(first)
    second = training(scenario, sharing(5000))
    scenario.plan()
    assert details(scenario, second) == [
        f"GPU 0 has 4000 MiB of its memory left, not 5000 MiB, beside job {first}"
    ]
    whole = scenario.submit(gpus(1))
    assert details(scenario, whole) == [f"GPU 0 is held by job {first}"]


def test_a_sharing_job_cannot_use_an_exclusive_gpu() -> None:
    scenario = Afar(gpus=1)
    first = scenario.submit(gpus(1))
    scenario.run(first)
    second = training(scenario, sharing(5000))
    scenario.plan()
    assert details(scenario, second) == [f"GPU 0 is held by job {first}"]
