"""The states of a job: the table, and a sentence for every edge of it."""

import pytest
from msgspec.structs import replace

from core.scenario import Afar, S, Scenario, gpus
from stoker.core import events as e
from stoker.core.job import Retry
from stoker.core.lifecycle import FINISHED, HOLDING, SHORT, TRANSITIONS, UNHAPPY, JobState, check

ALWAYS = Retry(9)


def configuring(**fields: object) -> tuple[Scenario, int]:
    story = Scenario()
    job = story.submit(**fields)  # type: ignore[arg-type]
    story.plan()
    return story, job


def running(**fields: object) -> tuple[Scenario, int]:
    story, job = configuring(**fields)
    story.started(job)
    return story, job


def queued(**fields: object) -> tuple[Scenario, int]:
    story, job = configuring(**fields)
    story.about(e.AttemptQueued, job, external_id="4711")
    return story, job


def suspended(**fields: object) -> tuple[Scenario, int]:
    story, job = running(**fields)
    story.fact(e.JobPaused, job, boot=story.now)
    return story, job


def completing(why: type[e.Event] = e.JobCancelled, **fields: object) -> tuple[Scenario, int]:
    story, job = running(**fields)
    more = {"attempt": 0} if why in (e.TimeLimitReached, e.TrialStopped) else {}
    story.fact(why, job, **more)
    return story, job


def pending(**fields: object) -> tuple[Scenario, int]:
    story = Scenario()
    return story, story.submit(**fields)  # type: ignore[arg-type]


def failing(**end: object) -> tuple[Scenario, int]:
    """One of two parts has ended badly, and the other one is asked to end."""
    story = Afar()
    story.add("ant")
    job = story.submit(replace(gpus(1), machines=2))
    story.run(job)
    story.part(e.ProcessExited, job, 1, **end)
    return story, job


def other_part_over(story: Scenario, job: int) -> None:
    story.exited(job, None, signal=15, part=0)


def lost(story: Scenario, job: int) -> None:
    story.about(e.AttemptLost, job, why="the node restarted")


def edges() -> dict[tuple[JobState, JobState], tuple[Scenario, int]]:
    """Every step of the table, taken by facts alone."""
    made: dict[tuple[JobState, JobState], tuple[Scenario, int]] = {}

    def note(old: JobState, new: JobState, told: tuple[Scenario, int], act) -> None:
        story, job = told
        assert story.job(job).state is old
        act(story, job)
        assert story.job(job).state is new
        made[old, new] = told

    note(S.PENDING, S.CONFIGURING, pending(), lambda s, j: s.plan())
    note(S.PENDING, S.CANCELLED, pending(), lambda s, j: s.fact(e.JobCancelled, j))
    note(S.PENDING, S.DEADLINE, pending(deadline_at=1005.0, held=True), lambda s, j: s.wait(9))
    for old, make in (
        (S.CONFIGURING, configuring), (S.QUEUED, queued), (S.RUNNING, running),
        (S.SUSPENDED, suspended),
    ):  # fmt: skip
        note(old, S.COMPLETING, make(), lambda s, j: s.fact(e.JobCancelled, j))
        note(old, S.COMPLETED, make(), lambda s, j: s.exited(j, 0))
        note(old, S.FAILED, make(), lambda s, j: s.exited(j, 1))
        note(old, S.OUT_OF_MEMORY, make(), lambda s, j: s.exited(j, None, signal=9, memory="host"))
        note(old, S.NODE_FAIL, make(), lost)
        note(old, S.PENDING, make(retry=ALWAYS), lambda s, j: s.exited(j, 1))
    note(S.CONFIGURING, S.RUNNING, configuring(), lambda s, j: s.started(j))
    note(
        S.CONFIGURING, S.QUEUED, configuring(),
        lambda s, j: s.about(e.AttemptQueued, j, external_id="4711"),
    )  # fmt: skip
    note(S.QUEUED, S.RUNNING, queued(), lambda s, j: s.started(j))
    note(S.RUNNING, S.SUSPENDED, running(), lambda s, j: s.fact(e.JobPaused, j, boot=s.now))
    note(S.SUSPENDED, S.RUNNING, suspended(), lambda s, j: s.fact(e.JobResumed, j, boot=s.now))
    note(S.COMPLETING, S.CANCELLED, completing(), lambda s, j: s.exited(j, None, signal=15))
    note(S.COMPLETING, S.TIMEOUT, completing(e.TimeLimitReached), lambda s, j: s.exited(j, 0))
    note(S.COMPLETING, S.COMPLETED, completing(e.TrialStopped), lambda s, j: s.exited(j, 1))
    note(S.COMPLETING, S.DEADLINE, completing(e.DeadlinePassed), lambda s, j: s.exited(j, 0))
    note(S.COMPLETING, S.NODE_FAIL, completing(e.TimeLimitReached), lost)
    note(
        S.COMPLETING, S.PENDING, completing(e.TimeLimitReached, retry=ALWAYS),
        lambda s, j: s.exited(j, 0),
    )  # fmt: skip
    note(S.COMPLETING, S.FAILED, failing(code=1), other_part_over)
    note(S.COMPLETING, S.OUT_OF_MEMORY, failing(signal=9, memory="host"), other_part_over)
    for (_, new), told in list(made.items()):
        if new in FINISHED:
            note(new, S.PENDING, told, lambda s, j: s.fact(e.JobRetried, j))
    return made


def test_every_edge_of_the_table_is_taken_by_some_fact():
    table = {(old, new) for old, targets in TRANSITIONS.items() for new in targets}
    assert set(edges()) == table


def test_every_state_can_be_reached_and_left():
    assert {new for _, new in edges()} == set(JobState)
    assert set(TRANSITIONS) == set(JobState)


def test_a_step_that_is_not_in_the_table_is_a_bug():
    with pytest.raises(AssertionError, match="illegal transition from COMPLETED to RUNNING"):
        check(S.COMPLETED, S.RUNNING)


def test_each_state_is_one_thing():
    assert not FINISHED & HOLDING
    assert UNHAPPY < FINISHED
    assert {S.PENDING} | HOLDING | FINISHED == set(JobState)
    assert len(set(SHORT.values())) == len(SHORT) == len(JobState)


@pytest.mark.parametrize("why", ["cancel", "deadline", "time"])
@pytest.mark.parametrize("end", ["exited", "lost", "failed", "called off"])
def test_whatever_ends_a_job_that_is_being_ended_it_ends(why: str, end: str):
    story, job = configuring(limit=60, deadline_at=1005.0)
    match why:
        case "cancel":
            story.fact(e.JobCancelled, job)
        case "deadline":
            story.fact(e.DeadlinePassed, job)
        case "time":
            story.about(e.TimeLimitReached, job)
    match end:
        case "exited":
            story.exited(job, None, signal=15)
        case "lost":
            lost(story, job)
        case "failed":
            story.about(e.StartFailed, job, why="no such directory")
        case "called off":
            story.about(e.StartCalledOff, job, why="bob was first")
    expected = {"cancel": "CANCELLED", "deadline": "DEADLINE", "time": "TIMEOUT"}[why]
    if (why, end) == ("time", "lost"):
        expected = "NODE_FAIL"
    if (why, end) == ("time", "called off"):
        expected = "PENDING"  # it never ran
    assert story.is_(job) == expected
    assert story.free() == {"0": 1000, "1": 1000}
