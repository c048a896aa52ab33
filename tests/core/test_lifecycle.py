"""Job states: every transition of the table."""

import pytest
from msgspec.structs import replace

from core.scenario import Afar, S, Scenario, gpus
from stoker.core import events as e
from stoker.core.model.job import FAILED_STATES, FINISHED, HOLDING, TRANSITIONS, JobState
from stoker.core.model.spec import Retry

ALWAYS = Retry(9)


def configuring(**fields: object) -> tuple[Scenario, int]:
    scenario = Scenario()
    job = scenario.submit(**fields)  # type: ignore[arg-type]
    scenario.plan()
    return scenario, job


def running(**fields: object) -> tuple[Scenario, int]:
    scenario, job = configuring(**fields)
    scenario.started(job)
    return scenario, job


def queued(**fields: object) -> tuple[Scenario, int]:
    scenario, job = configuring(**fields)
    scenario.about(e.AttemptQueued, job, external_id="4711")
    return scenario, job


def suspended(**fields: object) -> tuple[Scenario, int]:
    scenario, job = running(**fields)
    scenario.fact(e.JobPaused, job, boot=scenario.now)
    return scenario, job


def completing(why: type[e.Event] = e.JobCancelled, **fields: object) -> tuple[Scenario, int]:
    scenario, job = running(**fields)
    more = {"attempt": 0} if why in (e.TimeLimitReached, e.TrialStopped) else {}
    scenario.fact(why, job, **more)
    return scenario, job


def pending(**fields: object) -> tuple[Scenario, int]:
    scenario = Scenario()
    return scenario, scenario.submit(**fields)  # type: ignore[arg-type]


def failing(**end: object) -> tuple[Scenario, int]:
    """One of two parts has ended badly, and the other one is asked to end."""
    scenario = Afar()
    scenario.add("ant")
    job = scenario.submit(replace(gpus(1), node_count=2))
    scenario.run(job)
    scenario.part(e.ProcessExited, job, 1, **end)
    return scenario, job


def other_part_over(scenario: Scenario, job: int) -> None:
    scenario.exited(job, None, signal=15, part=0)


def lost(scenario: Scenario, job: int) -> None:
    scenario.about(e.AttemptLost, job, why="the node restarted")


def edges() -> dict[tuple[JobState, JobState], tuple[Scenario, int]]:
    """Every step of the table, taken by facts alone."""
    made: dict[tuple[JobState, JobState], tuple[Scenario, int]] = {}

    def note(old: JobState, new: JobState, reached: tuple[Scenario, int], act) -> None:
        scenario, job = reached
        assert scenario.job(job).state is old
        act(scenario, job)
        assert scenario.job(job).state is new
        made[old, new] = reached

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
    for (_, new), reached in list(made.items()):
        if new in FINISHED:
            note(new, S.PENDING, reached, lambda s, j: s.fact(e.JobRetried, j))
    return made


def test_every_transition_is_caused_by_an_event():
    table = {(old, new) for old, targets in TRANSITIONS.items() for new in targets}
    assert set(edges()) == table


def test_every_state_can_be_reached_and_left():
    assert {new for _, new in edges()} == set(JobState)
    assert set(TRANSITIONS) == set(JobState)


def test_an_illegal_transition_raises():
    with pytest.raises(AssertionError, match="illegal transition from COMPLETED to RUNNING"):
        S.COMPLETED.check_transition(S.RUNNING)


def test_sets_of_states_are_disjoint():
    assert not FINISHED & HOLDING
    assert FAILED_STATES < FINISHED
    assert {S.PENDING} | HOLDING | FINISHED == set(JobState)


@pytest.mark.parametrize("why", ["cancel", "deadline", "time"])
@pytest.mark.parametrize("end", ["exited", "lost", "failed", "called off"])
def test_a_completing_job_ends_in_the_requested_state(why: str, end: str):
    scenario, job = configuring(limit=60, deadline_at=1005.0)
    match why:
        case "cancel":
            scenario.fact(e.JobCancelled, job)
        case "deadline":
            scenario.fact(e.DeadlinePassed, job)
        case "time":
            scenario.about(e.TimeLimitReached, job)
    match end:
        case "exited":
            scenario.exited(job, None, signal=15)
        case "lost":
            lost(scenario, job)
        case "failed":
            scenario.about(e.StartFailed, job, why="no such directory")
        case "called off":
            scenario.about(e.StartCancelled, job, why="bob was first")
    expected = {"cancel": "CANCELLED", "deadline": "DEADLINE", "time": "TIMEOUT"}[why]
    if (why, end) == ("time", "lost"):
        expected = "NODE_FAIL"
    if (why, end) == ("time", "called off"):
        expected = "PENDING"  # it never ran
    assert scenario.is_(job) == expected
    assert scenario.free() == {"0": 1000, "1": 1000}
