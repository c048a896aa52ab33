"""Containers on nodes that cannot run them: another node is tried, then all of them later."""

from msgspec.structs import replace

from core.scenario import Afar, Scenario, gpus
from stoker.core import events as e
from stoker.core.explain.why import reason
from stoker.core.model.spec import Container

IMAGE = Container("img:1")


def lacks(story: Scenario, job: int) -> None:
    story.exited(job, code=125, lacks="the image img:1 is not on this node")


def test_a_job_and_those_after_it_go_to_a_node_that_can_run_the_image() -> None:
    story = Afar(gpus=1)
    story.add("a", gpus=1)
    first = story.submit(gpus(1), container=IMAGE)
    story.run(first)
    assert story.where(first) == ["box"]
    waits = story.submit(gpus(1), count=2, container=IMAGE)
    story.plan()
    assert story.where(waits) == ["a"]
    lacks(story, first)
    assert story.plan() == []
    assert story.job(first).retries == 0
    story.exited(waits)
    assert story.plan() == [first]
    assert story.where(first) == ["a"]
    other = story.submit(gpus(1), container=Container("img:2"))
    assert story.plan() == [other]
    assert story.where(other) == ["box"]


def test_when_no_node_can_run_it_all_are_tried_again_later() -> None:
    story = Afar(gpus=1)
    story.add("a", gpus=1)
    job = story.submit(gpus(1), container=IMAGE)
    for node in ("box", "a"):
        story.run(job)
        assert story.where(job) == [node]
        lacks(story, job)
    assert story.plan() == []
    assert reason(story.state, story.job(job), story.now) == (
        "BeginTime", "tries again in 5:00: a: the image img:1 is not on this node",
    )  # fmt: skip
    story.wait(301)
    assert story.plan() == [job]
    assert story.where(job) == ["box"]


def test_a_job_for_one_node_is_not_sent_elsewhere() -> None:
    story = Afar(gpus=1)
    story.add("a", gpus=0)
    job = story.submit(gpus(1), container=IMAGE)
    story.run(job)
    lacks(story, job)
    assert story.plan() == []
    story.wait(301)
    assert story.plan() == [job]


def test_on_a_single_node_it_fails() -> None:
    story = Scenario(gpus=1)
    job = story.submit(gpus(1), container=IMAGE)
    story.run(job)
    lacks(story, job)
    assert story.is_(job) == "FAILED"


def test_a_node_is_tried_again_for_a_job_that_is_submitted_later() -> None:
    story = Afar(gpus=1)
    story.add("a", gpus=1)
    job = story.submit(gpus(1), container=IMAGE)
    story.run(job)
    lacks(story, job)
    story.run(job)
    assert story.where(job) == ["a"]
    waits = story.submit(gpus(1), container=IMAGE)
    assert story.plan() == []
    story.wait(301)
    later = story.submit(gpus(1), container=IMAGE)
    assert story.plan() == [waits]
    assert story.where(waits) == ["box"]
    lacks(story, waits)
    assert story.plan() == []
    story.exited(job)
    assert story.plan() == [waits]
    assert story.is_(later) == "PENDING"


def test_a_node_is_tried_again_when_it_answers_again() -> None:
    story = Afar(gpus=0)
    story.add("a", gpus=1)
    story.add("b", gpus=1)
    job = story.submit(gpus(1), container=IMAGE)
    story.run(job)
    lacks(story, job)
    story.run(job)
    waits = story.submit(gpus(1), container=IMAGE)
    assert (story.where(job), story.plan()) == (["b"], [])
    story.silent("a")
    story.reached("a")
    assert story.plan() == [waits]
    assert story.state.record.missing_devices == {}


def test_all_parts_move_when_the_node_of_one_cannot_run_the_image() -> None:
    story = Afar(gpus=1)
    story.add("a", gpus=1)
    story.add("b", gpus=1)
    job = story.submit(replace(gpus(1), node_count=2), container=IMAGE)
    story.plan()
    assert story.where(job) == ["box", "a"]
    for part in (0, 1):
        story.part(e.ProcessStarted, job, part, pid=7, boot=story.boot)
    story.part(e.ProcessExited, job, 1, code=125, lacks="no image")
    story.part(e.ProcessExited, job, 0, code=None, signal=15)
    assert story.plan() == [job]
    assert story.where(job) == ["box", "b"]
