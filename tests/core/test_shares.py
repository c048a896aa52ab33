"""Weights of users and groups in fair share."""

from __future__ import annotations

import pytest

from core.scenario import Afar, gpus
from stoker.core import events as e
from stoker.core.model.limits import Subject
from stoker.core.policies.fair_share import FairShareUsage
from stoker.core.state.reranking import refresh_ranks

ANA, BO = 1001, 1002
VISION = 501
SUBJECTS = {
    "ana": Subject("user", "ana", ANA),
    "bo": Subject("user", "bo", BO),
    "vision": Subject("group", "vision", VISION),
}


def submit(story: Afar, uid: int) -> int:
    return story.submit(gpus(1), user="ana" if uid == ANA else "bo", uid=uid)


def share(story: Afar, who: str, weight: float | None) -> None:
    story.tell(e.ShareSet(at=story.now, subject=SUBJECTS[who], weight=weight))


@pytest.fixture
def story() -> Afar:
    """One GPU and a queue with fair share, in which both users have used the same."""
    story = Afar(gpus=1)
    story.tell(e.PolicyChosen(at=story.now, queue="*", name="fair"))
    for uid, name in ((ANA, "ana"), (BO, "bo")):
        story.tell(e.GroupsRecorded(at=story.now, uid=uid, groups=(VISION,), user=name))
        job = submit(story, uid)
        story.run(job)
        story.now += 20_000.0
        story.exited(job)
    return story


def first(story: Afar) -> list[int]:
    refresh_ranks(story.state, story.now)
    return story.plan()


def test_the_user_with_the_larger_weight_is_first_after_equal_use(story: Afar) -> None:
    jobs = {uid: submit(story, uid) for uid in (BO, ANA)}
    share(story, "ana", 8.0)
    assert story.state.pending.planning_requested
    assert first(story) == [jobs[ANA]]


def test_a_weight_is_changed_and_removed(story: Afar) -> None:
    share(story, "ana", 8.0)
    share(story, "ana", 2.0)
    assert story.state.record.weight_of("ana") == (2.0, f"user:{ANA}")
    share(story, "ana", None)
    assert story.state.record.weight_of("ana") == (1.0, "")


def test_the_weight_of_a_group_is_that_of_members_without_their_own(story: Afar) -> None:
    share(story, "vision", 3.0)
    share(story, "bo", 0.5)
    record = story.state.record
    assert record.weight_of("ana") == (3.0, f"group:{VISION}")
    assert record.weight_of("bo") == (0.5, f"user:{BO}")
    assert record.weight_of("unknown") == (1.0, "")


def test_use_in_proportion_to_the_weights_gives_no_penalty() -> None:
    usage = FairShareUsage({})
    for user, gpus_held in (("ana", 30.0), ("bo", 10.0)):
        usage.charge_start(user, gpus_held, 0.0)
    weights = {"ana": 3.0, "bo": 1.0}
    at = 1e7  # so that the usage that every user is assumed to have does not count
    assert usage.user_penalties(["ana", "bo"], at, weights.__getitem__) == {"ana": 0.0, "bo": 0.0}
    equal = usage.user_penalties(["ana", "bo"], at)
    assert equal["ana"] > 0 > equal["bo"]
    assert usage.user_penalties(["ana", "bo"], at, lambda _: 5.0) == equal
