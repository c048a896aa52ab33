"""The cycle: what is acknowledged is on record, and what is on record is carried out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simulation import client as ask
from stoker.core import events as e
from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.instructions import StartProcess
from stoker.core.state import State
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
from stoker.store.memory import MemoryStore, Rows
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
def room() -> EngineFixture:
    return EngineFixture()


def test_a_request_is_on_record_before_it_is_carried_out_and_then_answered(room: EngineFixture):
    asked = room.submit()
    assert asked.answers == [(1, 1)]
    carried, start, published = room.log
    assert carried == ("executed at", room.engine.seq)
    assert isinstance(start, StartProcess)
    assert published == ("published", room.engine.seq)


def test_a_submission_is_forced_to_disk_with_or_without_a_key(room: EngineFixture):
    room.submit()
    assert room.store.forced[-1] is True

    def without_key(state: State, now: Instant) -> CommandResult:
        first = state.rest.next_id
        facts: list[e.Event] = [
            e.JobsSubmitted(
                at=now.wall, first=first, count=1, spec=state.jobs[1].spec, lines=("a",)
            )
        ]
        return CommandResult(events=facts)

    room.cycle(commands=[Asking(without_key)])
    assert room.store.forced[-1] is True


def test_what_is_not_forced_stays_so_until_it_is(room: EngineFixture):
    room.submit()
    assert room.engine.unsynced is False
    room.cycle([room.exit(1)])
    assert room.engine.unsynced is True
    room.cycle()
    assert room.engine.unsynced is True
    room.submit()
    assert room.engine.unsynced is False


def test_a_refused_request_changes_nothing(room: EngineFixture):
    asked = room.asking(ask.cancel(99))
    seq = room.engine.seq
    room.cycle(commands=[asked])
    assert [each.message for each in asked.refusals] != []
    assert room.engine.seq == seq
    assert room.log == []


def test_the_same_request_twice_in_one_cycle_is_one_submission(room: EngineFixture):
    first, second = room.submission("same"), room.submission("same")
    other = room.submission()
    room.cycle(commands=[first, second, other])
    assert first.answers == second.answers == [(1, 1)]
    assert other.answers == [(2, 1)]
    assert sorted(room.engine.state.jobs) == [1, 2]


def test_a_repeated_request_is_answered_as_before(room: EngineFixture):
    room.submit(key="same", count=3)
    again = room.submit(key="same", count=3)
    assert again.answers == [(1, 3)]
    assert len(room.engine.state.jobs) == 3


def test_when_the_commit_fails_nothing_happened(room: EngineFixture):
    room.store.failure = lambda _: StoreError("the disk is on fire")
    asked = room.submission()
    with pytest.raises(StoreError):
        room.cycle(commands=[asked])
    assert asked.answers == []
    assert [each.code for each in asked.refusals] == ["unavailable"]
    assert room.log == []
    assert room.engine.state.jobs == {}
    room.store.failure = lambda _: None
    assert room.submit().answers == [(1, 1)]


def test_facts_of_a_failed_commit_are_kept_for_the_next(room: EngineFixture):
    room.submit()
    room.store.failure = lambda _: StoreError("locked")
    with pytest.raises(StoreError):
        room.cycle([room.exit(1)])
    room.store.failure = lambda _: None
    room.cycle()
    assert room.states() == ["COMPLETED"]


def test_who_was_fenced_off_writes_nothing_and_says_so(room: EngineFixture):
    room.store.another().acquire_term()
    asked = room.submission()
    with pytest.raises(StoreFenced):
        room.cycle(commands=[asked])
    assert asked.refusals
    assert room.log == []


def test_a_bug_in_a_request_leaves_the_state_as_it_was(room: EngineFixture):
    room.submit()

    def broken(state: State, now: Instant) -> CommandResult:
        return CommandResult(events=[e.JobHeld(at=0, job=1), e.JobHeld(at=0, job=99)])

    asked = Asking(broken)
    with pytest.raises(KeyError):
        room.cycle([room.exit(1)], [asked])
    assert [each.code for each in asked.refusals] == ["internal"]
    assert room.engine.state.jobs[1].held is False
    room.cycle()
    assert room.states() == ["COMPLETED"]


def test_on_a_full_disk_requests_are_refused_and_ends_are_still_recorded(room: EngineFixture):
    room.submit()
    room.store.failure = lambda _: StoreFull("full") if room.store.ballast else None
    asked = room.submission()
    room.cycle([room.exit(1)], [asked])
    assert [each.message for each in asked.refusals] == ["full"]
    assert room.states() == ["COMPLETED"]
    assert room.store.ballast is False
    assert room.engine.store_error == "full"


def test_with_no_ballast_left_facts_are_owed_and_never_dropped(room: EngineFixture):
    room.submit(count=3)
    room.store.failure = lambda _: StoreFull("full")
    room.cycle([room.exit(1)])
    room.cycle([room.exit(2)])
    assert room.states() == ["CONFIGURING", "CONFIGURING", "PENDING"]
    assert [fact.job for fact in room.engine.unwritten_events] == [1, 2]  # type: ignore[attr-defined]
    room.store.failure = lambda _: None
    room.cycle()
    assert room.states() == ["COMPLETED", "COMPLETED", "CONFIGURING"]
    assert (room.engine.unwritten_events, room.engine.store_error) == ([], None)


def test_a_full_disk_starts_nothing(room: EngineFixture):
    room.store.failure = lambda _: StoreFull("full")
    room.submit()
    assert room.log == []
    assert room.engine.state.running == {}


def test_while_draining_nothing_starts(room: EngineFixture):
    room.cycle(commands=[room.submission()], scheduling_enabled=False)
    assert room.states() == ["PENDING"]
    room.cycle()
    assert room.states() == ["CONFIGURING"]


def test_ends_of_many_jobs_at_once_are_all_on_record_before_any_is_forgotten(room: EngineFixture):
    room.submit(count=500, held=True)
    room.cycle(commands=[room.asking(ask.cancel(id)) for id in range(1, 501)])
    room.cycle([e.JobsSeen(at=0, jobs=())])
    assert len(room.engine.state.jobs) < 500
    rows = room.store.find_jobs(JobQuery(ids=list(range(1, 501))))
    assert {row.job.state.value for row in rows} == {"CANCELLED"}


def test_a_job_of_which_something_is_still_to_be_heard_is_not_forgotten(room: EngineFixture):
    room.submit(count=500, held=True)
    cancels = [room.asking(ask.cancel(id)) for id in range(1, 501)]
    room.cycle(commands=cancels, pinned_jobs=lambda: {1})
    room.cycle([e.JobsSeen(at=0, jobs=())], pinned_jobs=lambda: {1})
    assert 1 in room.engine.state.jobs
    assert 2 not in room.engine.state.jobs


def test_a_forgotten_job_can_be_retried(room: EngineFixture):
    room.submit(count=500, held=True)
    room.cycle(commands=[room.asking(ask.cancel(id)) for id in range(1, 501)])
    room.cycle([e.JobsSeen(at=0, jobs=())])
    assert 1 not in room.engine.state.jobs
    room.cycle(commands=[room.asking(ask.retry(1))])
    assert room.engine.state.jobs[1].attempt == 1
    room.engine.reload()
    assert room.engine.state.jobs[1].state.value == "CONFIGURING"


# -- one cycle, several commits -------------------------------------------------------------


def test_results_of_several_commits_are_joined_in_order(room: EngineFixture):
    before = room.engine.seq
    first, again, other = room.submission("same"), room.submission("same"), room.submission()
    result = room.cycle(commands=[first, again, other])
    assert result.seq == room.engine.seq == before + len(result.events)
    assert [reply.command for reply in result.replies] == [first, other, again]
    starts = [each for each in result.instructions if isinstance(each, StartProcess)]
    assert [start.job for start in starts] == [1, 2]


def test_instructions_of_a_commit_are_returned_with_the_error_of_the_next(room: EngineFixture):
    commits: list[Batch] = []

    def fail_second(batch: Batch) -> Exception | None:
        commits.append(batch)
        return StoreFenced("another daemon") if len(commits) == 2 else None

    room.store.failure = fail_second

    def answered_twice(state: State, now: Instant) -> CommandResult:
        event = e.JobsSeen(at=now.wall, jobs=())
        return CommandResult(events=[event], key=("same", 1, 1))

    first, again = room.submission("same"), Asking(answered_twice)
    result = room.engine.cycle(commands=[first, again])
    assert isinstance(result.error, StoreFenced)
    assert [type(each) for each in result.instructions] == [StartProcess]
    assert result.seq == room.store.load().seq
    for reply in result.replies:
        reply.send()
    assert first.answers == [(1, 1)]
    assert [each.code for each in again.refusals] == ["unavailable"]
