"""Frames of the live stream: applied in order, they give the same list as the columns."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from daemon.handler_fixture import HandlerFixture
from stoker.core.state.record import ChangeSet
from stoker.daemon.control import change_collector
from stoker.daemon.control.change_collector import ChangeCollector, Update
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.handlers import edit, job_actions, job_list
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.views.job_columns import job_rows
from stoker.engine import Command, CommandRejected
from stoker.faults import FaultTracker
from stoker.schema import requests as r
from stoker.schema.live import JobRow

TOPICS = frozenset({"jobs", "counts"})


class ObservedHandlers(HandlerFixture):
    """Handlers whose cycles are published to a collector, as those of the daemon are."""

    def __init__(self, directory: Path) -> None:
        self.publisher = Publisher({}, FaultTracker(system_clock))
        self.wakes = 0
        super().__init__(directory)
        self.collector = ChangeCollector(self.context, self.publisher, self._on_change)

    def _on_change(self) -> None:
        self.wakes += 1

    def cycle(self, events: list[Any], commands: list[Command]) -> None:
        super().cycle(events, commands)
        if self.events:
            self.publisher.publish(self.engine.seq, self.events, self.changes)

    def start(self) -> None:
        self.ask(partial(self.collector.start, lambda: self.engine.seq))

    def take(self) -> Update:
        update: Update = self.ask(partial(self.collector.take, TOPICS))
        return update

    def pending_order(self) -> list[int]:
        order: job_list.JobOrder = self.ask(partial(job_list.list_order, False, lambda: 0))
        return order.pending_ids()

    def listed(self) -> dict[int, JobRow]:
        """Return the rows of the default list."""
        state = self.state
        jobs = [
            job for job in state.jobs.values() if not job.finished or job.id in state.unacknowledged
        ]
        return {row.id: row for row in job_rows(jobs, state.specs, lambda job: None)}


@pytest.fixture
def observed(tmp_path: Path) -> ObservedHandlers:
    handlers = ObservedHandlers(tmp_path)
    handlers.start()
    return handlers


class FoldMachine(RuleBasedStateMachine):
    """Random commands and events; a client that applies frames has the list of the daemon."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.handlers = ObservedHandlers(Path(self.directory.name))
        self.handlers.submit()
        self.handlers.start()
        self.rows = self.handlers.listed()
        self.order = self.handlers.pending_order()

    def teardown(self) -> None:
        self.directory.cleanup()

    def ids(self) -> list[int]:
        return sorted(self.handlers.state.jobs)

    def act(self, handler: Callable[..., Any], body: Any) -> None:
        try:
            self.handlers.ask(partial(handler, self.handlers.context, body))
        except CommandRejected:
            return  # it is not possible in this state

    @rule(
        gpus=st.sampled_from(["0", "1", "2", "0.5"]),
        more=st.sampled_from(
            [{}, {"hold": True}, {"array": "0-3"}, {"priority": "3"}, {"retries": "1"}]
        ),
    )
    def submit(self, gpus: str, more: dict[str, Any]) -> None:
        self.handlers.submit(gpus=gpus, **more)

    @rule(data=st.data(), code=st.integers(0, 1))
    def end(self, data: st.DataObject, code: int) -> None:
        running = sorted(self.handlers.state.running)
        if running:
            self.handlers.exit(data.draw(st.sampled_from(running)), code)

    @rule(data=st.data(), verb=st.sampled_from(["cancel", "hold", "release", "retry", "dismiss"]))
    def control(self, data: st.DataObject, verb: str) -> None:
        body = getattr(r, verb.capitalize())(select=[str(data.draw(st.sampled_from(self.ids())))])
        self.act(getattr(job_actions, verb), body)

    @rule(data=st.data(), priority=st.integers(-2, 2))
    def change_priority(self, data: st.DataObject, priority: int) -> None:
        select = [str(data.draw(st.sampled_from(self.ids())))]
        self.act(edit.edit, r.Edit(select=select, options={"priority": str(priority)}))

    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        finished = sorted(self.handlers.state.finished)
        if len(finished) > 1:
            self.handlers.unload(data.draw(st.sampled_from(finished)))

    @rule()
    def take_frame(self) -> None:
        frame = self.handlers.take().jobs
        if frame is None:
            return
        changed: list[JobRow] = frame.changed  # type: ignore[assignment]
        gone: list[int] = frame.gone  # type: ignore[assignment]
        self.rows |= {row.id: row for row in changed}
        for id in gone:
            self.rows.pop(id, None)
        order = self.handlers.pending_order()
        if frame.reorder:
            self.order = order
        pending = set(order)
        kept = [id for id in self.order if id in pending]
        self.order = kept + [id for id in order if id not in set(kept)]

    @invariant()
    def the_fold_of_all_frames_is_the_list(self) -> None:
        if not hasattr(self, "rows"):
            return
        self.take_frame()
        assert self.rows == self.handlers.listed()
        assert self.order == self.handlers.pending_order()


TestFold = FoldMachine.TestCase
TestFold.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_several_commits_are_one_frame_and_one_wake(observed: ObservedHandlers) -> None:
    first = observed.submit(gpus="2")
    observed.submit(gpus="2")
    observed.run(first)
    assert observed.wakes == 1
    update = observed.take()
    assert update.jobs is not None
    assert [row.state for row in update.jobs.changed] == ["RUNNING", "PENDING"]  # type: ignore[union-attr]
    assert update.counts is not None
    assert update.counts.counts == {"RUNNING": 1, "PENDING": 1}
    assert update.seq == observed.engine.seq
    empty = observed.take()
    assert (empty.jobs, empty.counts) == (None, None)


def test_a_finished_job_is_a_last_row_and_gone(observed: ObservedHandlers) -> None:
    job = observed.submit()
    observed.exit(job)
    frame = observed.take().jobs
    assert frame is not None
    assert [row.state for row in frame.changed] == ["COMPLETED"]  # type: ignore[union-attr]
    assert frame.gone == [job]


def test_too_many_changes_are_a_reset(
    observed: ObservedHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_collector, "MAX_CHANGED_JOBS", 3)
    observed.submit(array="0-5")
    frame = observed.take().jobs
    assert frame is not None
    assert (frame.reset, frame.seq) == (True, observed.engine.seq)
    job = observed.submit()
    frame = observed.take().jobs
    assert frame is not None
    assert [row.id for row in frame.changed] == [job]  # type: ignore[union-attr]


def test_a_stopped_collector_notes_nothing(observed: ObservedHandlers) -> None:
    observed.ask(observed.collector.stop)
    observed.submit()
    assert (observed.wakes, observed.publisher.has_streams) == (0, False)


def test_changes_of_several_commits_are_added() -> None:
    changes, later = ChangeSet(), ChangeSet()
    changes.job(1)
    later.job(2)
    later.unload(1)
    later.record()
    changes.add(later)
    assert (changes.jobs, changes.unloaded, changes.has_record) == ({1, 2}, [1], True)
