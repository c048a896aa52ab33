"""One busy scenario, with the driver killed at every single instant of it."""

from pathlib import Path

import pytest

from simulation import client as ask
from simulation.crash_points import CrashPoint
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_machine import Model
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.model.job import JobState
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Retry
from stoker.store.port import Store
from stoker.store.sqlite import SqliteStore


def busy(box: SimFixture) -> None:
    """A little of everything, in three minutes."""
    first = box.submit(models=(Model(seconds=20),))
    array = box.submit(gpus(0.5), count=3, array=True, array_limit=2)
    again = box.submit(
        models=(Model(seconds=8, code=1), Model(seconds=5)), retry=Retry(1), priority=5
    )
    box.submit(dependency=Dependency((Clause("afterok", (first, array)),)))
    stubborn = box.submit(models=(Model(seconds=900, ignores_term=True),), limit=30)
    box.run(6)
    paused = box.submit(gpus(2), models=(Model(seconds=30),), limit=60)
    checkpoints = box.submit(models=(Model(seconds=3, code=75), Model(seconds=3)))
    unwanted = box.submit(held=True)
    box.run(6)
    box.do(ask.pause(first))
    box.do(ask.edit(unwanted, **ask.request_options(ResourceRequest(cpus=1000))))
    box.do(ask.move(unwanted))
    box.run(20)
    box.do(ask.resume(first))
    box.do(ask.cancel(unwanted))
    box.do(ask.cancel(stubborn))
    box.run(30)
    box.do(ask.retry(unwanted))
    box.run(600)
    box.check()
    box.check_all_over()
    for job in (first, array, again, paused, checkpoints, unwanted):
        assert box.job(job).state is JobState.COMPLETED, box.job(job)
    assert box.job(stubborn).state in (JobState.TIMEOUT, JobState.CANCELLED)
    for job in range(first, unwanted + 1):
        assert len(box.runs(job)) <= 2


def counted() -> CrashPoint:
    box = SimFixture(gpus=3)
    busy(box)
    assert box.driver.crashes == 0
    return box.driver.fuse


def test_the_scenario_passes_every_kind_of_instant():
    kinds = set(counted().places)
    assert {"before commit", "after commit", "executed", "recovered"} <= kinds
    assert {"before StartProcess", "before TerminateAttempt", "before SuspendAttempt"} <= kinds


def test_killed_at_any_instant_nothing_is_lost_and_nothing_runs_twice():
    for instant in range(SimFixture(gpus=3).driver.fuse.passed + 1, counted().passed + 1):
        box = SimFixture(gpus=3, check_every=25)
        box.driver.fuse.at = instant
        busy(box)
        assert box.driver.crashes == 1, instant


@pytest.mark.parametrize("every", [15, 24, 41])
def test_killed_again_and_again(every: int):
    box = SimFixture(gpus=3, check_every=5)
    turn = box.driver.turn

    def turn_with_a_crash() -> None:
        if box.driver.fuse.at is None:
            # Not always at the same instant: that one may be before a start takes effect.
            box.driver.fuse.passed, box.driver.fuse.at = 0, every + box.driver.crashes % 3
        turn()

    box.driver.turn = turn_with_a_crash  # type: ignore[method-assign]
    busy(box)
    assert box.driver.crashes > 3


def test_killed_with_the_journal_in_sqlite(tmp_path: Path):
    opened: list[SqliteStore] = []

    def open_store() -> Store:
        for old in opened:  # a killed process closes nothing but its descriptors
            old._db.close()
        opened[:] = [SqliteStore(str(tmp_path / "journal.db"))]
        return opened[0]

    box = SimFixture(gpus=3, open_store=open_store, check_every=5)
    turns = 0
    turn = box.driver.turn

    def turn_with_a_crash() -> None:
        nonlocal turns
        turns += 1
        if turns % 5 == 0:
            box.driver.fuse.passed, box.driver.fuse.at = 0, turns % 7 + 1
        turn()

    box.driver.turn = turn_with_a_crash  # type: ignore[method-assign]
    busy(box)
    assert box.driver.crashes > 3


def test_a_loss_of_power_takes_nothing_that_was_acknowledged():
    for seconds in range(0, 60, 3):
        box = SimFixture(gpus=3, seed=seconds)
        rule = Retry(3, ("lost",))
        box.submit(models=(Model(seconds=10),), count=4, retry=rule)
        box.run(seconds)
        late = box.submit(models=(Model(seconds=4),), retry=rule)
        box.memory.lose_power()
        box.forget_checks()  # the journal is shorter now
        box.driver.machine.started.clear()  # what ran within the last moments may run again
        box.driver.reboot(keeps_records=seconds % 2 == 0)
        box.finish(5000)
        box.check_all_over()
        assert box.job(late).state is JobState.COMPLETED
