"""Why a job waits where others train: who makes room for it, whose memory is in the way."""

from typing import Any

from msgspec.structs import replace

from core.scenario import Afar, gpus
from core.test_training import counted, listens, sharing, training
from stoker.core import events as e
from stoker.core.explain import Why, why
from stoker.core.job import EarlySignal


def told(story: Afar, job: int) -> Why:
    return why(story.state, story.job(job), story.now, story.boot, lambda _: None)


def details(story: Afar, job: int) -> list[str]:
    return [text for node in told(story, job).nodes for each in node.constraints
            for text in each.details]  # fmt: skip


def test_who_stops_for_it_and_when() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    counted(story, low, 3, seconds=300.0)
    high = training(story, priority=5)
    assert told(story, high).coming == ()
    story.plan()
    story.now += 120
    assert told(story, high).coming == (
        f"job {low} stops for this job at the end of its epoch, about 3 min",
    )
    story.now += 200
    assert told(story, high).coming == (
        f"job {low} stops for this job at the end of its epoch, any moment",
    )


def test_without_a_measurement_nobody_knows_when() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    assert told(story, high).coming == (f"job {low} stops for this job at the end of its epoch",)
    assert told(story, low).coming == ()


def test_a_job_that_only_knows_signals_makes_room() -> None:
    story = Afar(gpus=1)
    low = training(story, warning=EarlySignal(10, 60))
    story.run(low)
    high = training(story, priority=5)
    story.plan()
    assert told(story, high).coming == (f"job {low} was asked to stop for this job",)


def test_processes_that_must_agree_may_need_another_epoch() -> None:
    story = Afar(gpus=2)
    low = training(story, gpus(2))
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    text = f"job {low} stops for this job at the end of its epoch, or of the next"
    assert told(story, high).coming == (text,)
    counted(story, low, 3, seconds=300.0)
    assert told(story, high).coming == (f"{text}, at the earliest in about 5 min",)


def asked(story: Afar, **changes: Any) -> tuple[int, int]:
    """A job that was asked to stop, in whatever state, and the one that waits for it."""
    low = training(story)
    listens(story, low)
    high = training(story, priority=5)
    story.plan()
    progress = story.job(low).progress
    assert progress is not None
    assert progress.stop is not None
    story.job(low).progress = replace(progress, stop=replace(progress.stop, **changes))
    return low, high


def test_one_that_is_paused_stops_when_it_goes_on() -> None:
    story = Afar(gpus=1)
    low, high = asked(story)
    story.tell(e.JobPaused(at=story.now, job=low, boot=story.boot))
    assert told(story, high).coming == (
        f"job {low} is paused; it stops for this job when it is resumed",
    )  # fmt: skip


def test_one_that_did_not_stop_is_not_counted_on() -> None:
    story = Afar(gpus=1)
    low, high = asked(story, ignored=True)
    assert told(story, high).coming == (
        f"job {low} was asked to stop for this job but has not stopped",
    )


def test_one_that_is_cancelled_does_not_wait_for_its_epoch() -> None:
    story = Afar(gpus=1)
    low, high = asked(story)
    story.tell(e.JobCancelled(at=story.now, job=low))
    assert told(story, high).coming == (f"job {low} is ending",)


def test_memory_that_others_have_set_aside() -> None:
    story = Afar(gpus=1)
    first = training(story, sharing(20_000))
    story.run(first)
    second = training(story, sharing(5000))
    story.plan()
    assert details(story, second) == [
        f"GPU 0 has 4000 MiB of its memory left, not 5000 MiB, beside job {first}"
    ]
    whole = story.submit(gpus(1))
    assert details(story, whole) == [f"GPU 0 is held by job {first}"]


def test_a_job_that_shares_cannot_be_beside_one_that_does_not() -> None:
    story = Afar(gpus=1)
    first = story.submit(gpus(1))
    story.run(first)
    second = training(story, sharing(5000))
    story.plan()
    assert details(story, second) == [f"GPU 0 is held by job {first}"]
