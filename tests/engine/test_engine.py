"""The cycle: what is acknowledged is on record, and what is on record is carried out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from memory_store import MemoryStore, Rows
from simulation import client as ask
from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.model.resources import DeviceFacts, NodeFacts
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.engine import (
    Command,
    CommandRejected,
    CommandResult,
    CycleResult,
    Engine,
    Instant,
)
from stoker.faults import FaultTracker
from stoker.schema.job import SubmitReply
from stoker.store.port import Batch, JobQuery, StoreError, StoreFenced, StoreFull

NODE = NodeFacts(name="box", types={"gpu": tuple(DeviceFacts(name=str(n)) for n in range(2))})


class Asking:
    """A request that remembers its answer."""

    def __init__(self, handler: CommandHandler) -> None:
        self._handler = handler
        self.answers: list[Any] = []
        self.refusals: list[CommandRejected] = []

    def handle(self, state: State, now: Instant) -> CommandResult:
        return self._handler(state, now)

    def reply(self, value: Any) -> None:
        is_receipt = isinstance(value, SubmitReply)
        self.answers.append((value.first, value.count) if is_receipt else value)

    def reject(self, rejection: CommandRejected) -> None:
        self.refusals.append(rejection)


class Moody(MemoryStore):
    """A store that can be told to fail."""

    def __init__(self, rows: Rows | None = None) -> None:
        super().__init__(rows)
        self.failure: Callable[[Batch], Exception | None] = lambda _: None
        self.forced: list[bool] = []
        self.ballast = True

    def commit(self, batch: Batch, sync: bool) -> int:
        failure = self.failure(batch)
        if failure is not None:
            raise failure
        self.forced.append(sync)
        return super().commit(batch, sync)

    def release_reserve(self) -> bool:
        had, self.ballast = self.ballast, False
        return had


class EngineFixture:
    """An engine with everything it needs, and what it did."""

    def __init__(self, contained: bool = False) -> None:
        self.store = Moody()
        self.store.acquire_term()
        self.log: list[object] = []
        self.now = 1000.0
        self.faults = FaultTracker(self.clock) if contained else None
        self.engine = Engine(self.store, self.clock, self.faults)
        self.cycle([e.NodeJoined(at=self.now, facts=NODE)])
        self.log.clear()
        self.keys = 0

    def clock(self) -> Instant:
        return Instant(self.now, self.now)

    def cycle(
        self, events: Sequence[e.Event] = (), commands: Sequence[Command] = (), **options: Any
    ) -> CycleResult:
        """Run a cycle, send its replies, and raise its error."""
        result = self.engine.cycle(events, commands, **options)
        if result.instructions:
            self.log.append(("executed at", self.store.load().seq))
            self.log += result.instructions
        for reply in result.replies:
            reply.send()
        if result.events:
            self.log.append(("published", result.seq))
        result.raise_error()
        return result

    def asking(self, make_handler: ask.MakeHandler) -> Asking:
        return Asking(make_handler(RequestContext(self.store, "/logs", "box", "ada")))

    def submission(self, key: str = "", count: int = 1, **options: Any) -> Asking:
        self.keys += 1
        asked = ask.submit(ask.job_options(**options), key or f"k{self.keys}", count)
        return self.asking(asked)

    def submit(self, **more: Any) -> Asking:
        asked = self.submission(**more)
        self.cycle(commands=[asked])
        return asked

    def exit(self, job: int, attempt: int = 0) -> e.ProcessExited:
        return e.ProcessExited(at=self.now, job=job, attempt=attempt, code=0)

    def states(self) -> list[str]:
        return [job.state.value for _, job in sorted(self.engine.state.jobs.items())]


@pytest.fixture
def fixture() -> EngineFixture:
    return EngineFixture()


def test_a_request_is_on_record_before_it_is_carried_out_and_then_answered(fixture: EngineFixture):
    asked = fixture.submit()
    assert asked.answers == [(1, 1)]
    carried, start, published = fixture.log
    assert carried == ("executed at", fixture.engine.seq)
    assert isinstance(start, StartProcess)
    assert published == ("published", fixture.engine.seq)


def test_a_submission_is_forced_to_disk_with_or_without_a_key(fixture: EngineFixture):
    fixture.submit()
    assert fixture.store.forced[-1] is True

    def without_key(state: State, now: Instant) -> CommandResult:
        first = state.record.next_id
        facts: list[e.Event] = [
            e.JobsSubmitted(
                at=now.wall, first=first, count=1, spec=state.jobs[1].spec, lines=("a",)
            )
        ]
        return CommandResult(events=facts)

    fixture.cycle(commands=[Asking(without_key)])
    assert fixture.store.forced[-1] is True


def test_what_is_not_forced_stays_so_until_it_is(fixture: EngineFixture):
    fixture.submit()
    assert fixture.engine.unsynced is False
    fixture.cycle([fixture.exit(1)])
    assert fixture.engine.unsynced is True
    fixture.cycle()
    assert fixture.engine.unsynced is True
    fixture.submit()
    assert fixture.engine.unsynced is False


def test_a_refused_request_changes_nothing(fixture: EngineFixture):
    asked = fixture.asking(ask.cancel(99))
    seq = fixture.engine.seq
    fixture.cycle(commands=[asked])
    assert [each.message for each in asked.refusals] != []
    assert fixture.engine.seq == seq
    assert fixture.log == []


def test_the_same_request_twice_in_one_cycle_is_one_submission(fixture: EngineFixture):
    first, second = fixture.submission("same"), fixture.submission("same")
    other = fixture.submission()
    fixture.cycle(commands=[first, second, other])
    assert first.answers == second.answers == [(1, 1)]
    assert other.answers == [(2, 1)]
    assert sorted(fixture.engine.state.jobs) == [1, 2]


def test_a_repeated_request_is_answered_as_before(fixture: EngineFixture):
    fixture.submit(key="same", count=3)
    again = fixture.submit(key="same", count=3)
    assert again.answers == [(1, 3)]
    assert len(fixture.engine.state.jobs) == 3


def test_when_the_commit_fails_nothing_happened(fixture: EngineFixture):
    fixture.store.failure = lambda _: StoreError("the disk is on fire")
    asked = fixture.submission()
    with pytest.raises(StoreError):
        fixture.cycle(commands=[asked])
    assert asked.answers == []
    assert [each.code for each in asked.refusals] == ["unavailable"]
    assert fixture.log == []
    assert fixture.engine.state.jobs == {}
    fixture.store.failure = lambda _: None
    assert fixture.submit().answers == [(1, 1)]


def test_facts_of_a_failed_commit_are_kept_for_the_next(fixture: EngineFixture):
    fixture.submit()
    fixture.store.failure = lambda _: StoreError("locked")
    with pytest.raises(StoreError):
        fixture.cycle([fixture.exit(1)])
    fixture.store.failure = lambda _: None
    fixture.cycle()
    assert fixture.states() == ["COMPLETED"]


def test_a_plan_of_a_failed_commit_is_made_again_without_a_new_event(fixture: EngineFixture):
    asked = fixture.submission()
    fixture.cycle(commands=[asked], scheduling_enabled=False)
    fixture.store.failure = lambda _: StoreError("locked")
    with pytest.raises(StoreError):
        fixture.cycle()
    assert fixture.states() == ["PENDING"]
    assert fixture.engine.must_retry
    fixture.store.failure = lambda _: None
    fixture.cycle()
    assert fixture.states() == ["CONFIGURING"]
    assert not fixture.engine.must_retry


def test_who_was_fenced_off_writes_nothing_and_says_so(fixture: EngineFixture):
    fixture.store.another().acquire_term()
    asked = fixture.submission()
    with pytest.raises(StoreFenced):
        fixture.cycle(commands=[asked])
    assert asked.refusals
    assert fixture.log == []


def test_a_bug_in_a_request_leaves_the_state_as_it_was(fixture: EngineFixture):
    fixture.submit()

    def broken(state: State, now: Instant) -> CommandResult:
        return CommandResult(events=[e.JobHeld(at=0, job=1), e.JobHeld(at=0, job=99)])

    asked = Asking(broken)
    with pytest.raises(KeyError):
        fixture.cycle([fixture.exit(1)], [asked])
    assert [each.code for each in asked.refusals] == ["internal"]
    assert fixture.engine.state.jobs[1].held is False
    fixture.cycle()
    assert fixture.states() == ["COMPLETED"]


def test_on_a_full_disk_requests_are_refused_and_ends_are_still_recorded(fixture: EngineFixture):
    fixture.submit()
    fixture.store.failure = lambda _: StoreFull("full") if fixture.store.ballast else None
    asked = fixture.submission()
    fixture.cycle([fixture.exit(1)], [asked])
    assert [each.message for each in asked.refusals] == ["full"]
    assert fixture.states() == ["COMPLETED"]
    assert fixture.store.ballast is False
    assert fixture.engine.store_error == "full"


def test_with_no_ballast_left_facts_are_owed_and_never_dropped(fixture: EngineFixture):
    fixture.submit(count=3)
    fixture.store.failure = lambda _: StoreFull("full")
    fixture.cycle([fixture.exit(1)])
    fixture.cycle([fixture.exit(2)])
    assert fixture.states() == ["CONFIGURING", "CONFIGURING", "PENDING"]
    assert [fact.job for fact in fixture.engine.unwritten_events] == [1, 2]  # type: ignore[attr-defined]
    fixture.store.failure = lambda _: None
    fixture.cycle()
    assert fixture.states() == ["COMPLETED", "COMPLETED", "CONFIGURING"]
    assert (fixture.engine.unwritten_events, fixture.engine.store_error) == ([], None)


def test_a_full_disk_starts_nothing(fixture: EngineFixture):
    fixture.store.failure = lambda _: StoreFull("full")
    fixture.submit()
    assert fixture.log == []
    assert fixture.engine.state.running == {}


def test_while_draining_nothing_starts(fixture: EngineFixture):
    fixture.cycle(commands=[fixture.submission()], scheduling_enabled=False)
    assert fixture.states() == ["PENDING"]
    fixture.cycle()
    assert fixture.states() == ["CONFIGURING"]


def test_ends_of_many_jobs_at_once_are_all_on_record_before_any_is_forgotten(
    fixture: EngineFixture,
):
    fixture.submit(count=500, held=True)
    fixture.cycle(commands=[fixture.asking(ask.cancel(id)) for id in range(1, 501)])
    fixture.cycle([e.FailuresDismissed(at=0, jobs=())])
    assert len(fixture.engine.state.jobs) < 500
    rows = fixture.store.find_jobs(JobQuery(ids=list(range(1, 501))))
    assert {row.job.state.value for row in rows} == {"CANCELLED"}


def test_a_job_of_which_something_is_still_to_be_heard_is_not_forgotten(fixture: EngineFixture):
    fixture.submit(count=500, held=True)
    cancels = [fixture.asking(ask.cancel(id)) for id in range(1, 501)]
    fixture.cycle(commands=cancels, pinned_jobs=lambda: {1})
    fixture.cycle([e.FailuresDismissed(at=0, jobs=())], pinned_jobs=lambda: {1})
    assert 1 in fixture.engine.state.jobs
    assert 2 not in fixture.engine.state.jobs


def test_a_forgotten_job_can_be_retried(fixture: EngineFixture):
    fixture.submit(count=500, held=True)
    fixture.cycle(commands=[fixture.asking(ask.cancel(id)) for id in range(1, 501)])
    fixture.cycle([e.FailuresDismissed(at=0, jobs=())])
    assert 1 not in fixture.engine.state.jobs
    fixture.cycle(commands=[fixture.asking(ask.retry(1))])
    assert fixture.engine.state.jobs[1].attempt == 1
    fixture.engine.reload()
    assert fixture.engine.state.jobs[1].state.value == "CONFIGURING"


# -- one cycle, several commits -------------------------------------------------------------


def test_results_of_several_commits_are_joined_in_order(fixture: EngineFixture):
    before = fixture.engine.seq
    first, again, other = (
        fixture.submission("same"),
        fixture.submission("same"),
        fixture.submission(),
    )
    result = fixture.cycle(commands=[first, again, other])
    assert result.seq == fixture.engine.seq == before + len(result.events)
    assert [reply.command for reply in result.replies] == [first, other, again]
    starts = [each for each in result.instructions if isinstance(each, StartProcess)]
    assert [start.job for start in starts] == [1, 2]


def test_instructions_of_a_commit_are_returned_with_the_error_of_the_next(fixture: EngineFixture):
    commits: list[Batch] = []

    def fail_second(batch: Batch) -> Exception | None:
        commits.append(batch)
        return StoreFenced("another daemon") if len(commits) == 2 else None

    fixture.store.failure = fail_second

    def answered_twice(state: State, now: Instant) -> CommandResult:
        event = e.FailuresDismissed(at=now.wall, jobs=())
        return CommandResult(events=[event], key=("same", 1, 1))

    first, again = fixture.submission("same"), Asking(answered_twice)
    result = fixture.engine.cycle(commands=[first, again])
    assert isinstance(result.error, StoreFenced)
    assert [type(each) for each in result.instructions] == [StartProcess]
    assert result.seq == fixture.store.load().seq
    for reply in result.replies:
        reply.send()
    assert first.answers == [(1, 1)]
    assert [each.code for each in again.refusals] == ["unavailable"]
