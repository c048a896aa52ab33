"""The same courses with the journal in PostgreSQL, whose sessions are ended as well."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import simulation.test_crashes as crashes
import simulation.test_random_commands as courses
from postgres import Server, running
from simulation.sim_fixture import SimFixture
from simulation.simulated_executor import Faults
from stoker.store.port import Store
from stoker.store.postgres import PostgresStore


def stores(server: Server) -> tuple[Callable[[], Store], list[PostgresStore]]:
    """Opens the same journal again and again; a killed process closes nothing but sockets."""
    choice, opened = server.choice(), []

    def open_store() -> Store:
        for old in opened:
            drop(old)
        opened[:] = [PostgresStore(choice)]
        return opened[0]

    return open_store, opened


def drop(store: PostgresStore) -> None:
    for db in (store._db, store._flusher):
        if db is not None:
            db.close()


def test_killed_and_cut_off_with_the_journal_in_postgres(postgres: Server):
    open_store, opened = stores(postgres)
    box = SimFixture(gpus=3, open_store=open_store, check_every=5)
    turn, turns, cut = box.driver.turn, 0, 0

    def turn_with_a_mishap() -> None:
        nonlocal turns, cut
        turns += 1
        if turns % 5 == 0:
            box.driver.fuse.passed, box.driver.fuse.at = 0, turns % 7 + 1
        if turns % 3 == 0:
            cut += postgres.end_sessions(f"%{opened[0]._name.token}")
        turn()

    box.driver.turn = turn_with_a_mishap  # type: ignore[method-assign]
    crashes.busy(box)
    assert box.driver.crashes > 3
    assert cut > 3
    drop(opened[0])


class AnyCourseInPostgres(courses.AnyCourse):
    """Any course, over a server that breaks connections."""

    @initialize(seed=st.integers(0, 99), faulty=st.booleans())
    def begin(self, seed: int, faulty: bool) -> None:
        faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
        open_store, self.opened = stores(running())
        self.box = SimFixture(
            gpus=3, seed=seed, faults=faults, open_store=open_store, check_every=4
        )

    @rule(seconds=st.sampled_from([0.0, 7.0]))
    def cut_off(self, seconds: float) -> None:
        assert running().end_sessions(f"%{self.opened[0]._name.token}") == 1
        self.box.run(seconds)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "box"):
            drop(self.opened[0])


@pytest.mark.usefixtures("postgres")
class TestAnyCourseInPostgres(AnyCourseInPostgres.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(courses.SMALL, max_examples=8, stateful_step_count=20)
