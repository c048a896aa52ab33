"""The contract of all stores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory_store import MemoryStore
from stoker.core import events as e
from stoker.store.port import JobQuery, Store, StoreError, StoreFenced
from stoker.store.postgres import PostgresStore
from stoker.store.sqlite import SqliteStore
from store.rows import batch, done, job, rest, spec, sweep, trial

Open = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "sqlite on a shared file system", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same store again, like another process."""
    opened: list[Store] = []
    postgres = request.param == "postgres" and request.getfixturevalue("postgres").choice()

    def open_() -> Store:
        if postgres:
            for old in opened:  # only one store at a time may have the lease
                old.close()
            opened.append(PostgresStore(postgres))
        elif request.param == "memory":
            opened.append(opened[0].another() if opened else MemoryStore())  # type: ignore[attr-defined]
        elif request.param == "sqlite":
            opened.append(SqliteStore(str(tmp_path / "journal.db")))
        else:
            for old in opened:  # only one store at a time may be open
                old.close()
            opened[:] = [SqliteStore(str(tmp_path / "journal.db"), shared_file_system=True)]
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Open) -> Store:
    found = reopen()
    found.acquire_term()
    return found


def test_a_new_store_is_empty(store: Store):
    found = store.load()
    assert (found.seq, found.jobs, found.specs, found.rest) == (0, [], {}, rest())
    assert store.warnings() == []
    assert list(store.events(0, 10)) == []


def test_committed_rows_are_read_back(store: Store, reopen: Open):
    jobs = [job(1), job(2, "RUNNING", pid=7, started_at=1.5)]
    assert store.commit(batch(*jobs, rest=rest(next_id=3, boot="b")), sync=True) == 2
    for each in (lambda: store, reopen):
        found = each().load()
        assert (found.seq, found.jobs, found.specs) == (2, jobs, {"s1": spec()})
        assert found.rest == rest(next_id=3, boot="b")


def test_a_later_commit_replaces_its_rows_and_keeps_all_others(store: Store):
    store.commit(batch(job(1), job(2), rest=rest(next_id=3)), sync=False)
    store.commit(batch(job(1, "RUNNING")), sync=False)
    found = store.load()
    assert found.jobs == [job(1, "RUNNING"), job(2)]
    assert (found.seq, found.rest) == (3, rest(next_id=3))


def test_unloaded_jobs_are_not_loaded_but_found(store: Store):
    store.commit(batch(done(1, 50.0), job(2)), sync=False)
    store.commit(batch(dropped=[1], events=[e.JobsUnloaded(at=0, jobs=(1,))]), sync=False)
    assert [each.id for each in store.load().jobs] == [2]
    [found] = store.find_jobs(JobQuery(ids=[1]))
    assert (found.job, found.spec) == (done(1, 50.0), spec())


def test_a_restored_job_is_loaded_again(store: Store):
    store.commit(batch(done(1, 50.0)), sync=False)
    store.commit(batch(dropped=[1]), sync=False)
    store.commit(batch(job(1)), sync=False)
    assert store.load().jobs == [job(1)]


def test_only_the_specs_in_use_are_loaded(store: Store):
    specs = {"s1": spec(), "s2": spec(name="unused")}
    store.commit(batch(job(1), specs=specs), sync=False)
    assert set(store.load().specs) == {"s1"}


def test_a_daemon_with_an_older_term_cannot_write(store: Store, reopen: Open):
    store.commit(batch(job(1)), sync=False)
    newer = reopen()
    assert newer.acquire_term() == 2
    with pytest.raises(StoreError):
        store.commit(batch(job(2)), sync=False)
    assert newer.commit(batch(job(3)), sync=False) == 2
    assert [each.id for each in newer.load().jobs] == [1, 3]


def test_a_fenced_store_raises_an_error(tmp_path: Path):
    old = SqliteStore(str(tmp_path / "j.db"))
    memory = MemoryStore()
    for one, two in ((old, SqliteStore(str(tmp_path / "j.db"))), (memory, memory.another())):
        one.acquire_term()
        two.acquire_term()
        with pytest.raises(StoreFenced):
            one.commit(batch(job(1)), sync=True)
        assert two.load().jobs == []
        one.close()
        two.close()


def test_terms_only_grow(reopen: Open):
    assert [reopen().acquire_term() for _ in range(3)] == [1, 2, 3]


def test_events_come_in_order_and_in_pages(store: Store):
    facts: list[e.Event] = [e.JobHeld(at=float(n), job=n) for n in range(1, 8)]
    store.commit(batch(events=facts[:3]), sync=False)
    store.commit(batch(events=facts[3:]), sync=False)
    assert list(store.events(0, 99)) == list(enumerate(facts, 1))
    assert list(store.events(2, 3)) == list(enumerate(facts, 1))[2:5]
    assert list(store.events(7, 3)) == []


def test_a_submission_key_is_used_once(store: Store):
    assert store.find_key("k") is None
    store.commit(batch(job(1), keys=[("k", 1, 5)]), sync=True)
    assert store.find_key("k") == (1, 5)
    with pytest.raises(StoreError):
        store.commit(batch(job(6), keys=[("k", 6, 5)]), sync=True)
    assert store.find_key("k") == (1, 5)
    assert [each.id for each in store.load().jobs] == [1]
    assert store.commit(batch(job(6), keys=[("other", 6, 1)]), sync=True) == 2


def test_scripts_and_environments_are_stored(store: Store):
    store.commit(batch(blobs={"b": b"#!/bin/sh\n\xff"}, secrets={"e": b"A=1\0B=2"}), sync=False)
    assert (store.blob("b"), store.secret("e")) == (b"#!/bin/sh\n\xff", b"A=1\0B=2")
    assert store.blob("e") is None
    assert store.secret("b") is None
    assert all(b"A=1" not in repr(event).encode() for _, event in store.events(0, 9))


HISTORY = [
    done(1, 10.0), done(2, 20.0, "FAILED", code=1), done(3, 30.0, user="bob"),
    done(4, 25.0, name="other"), job(5), job(6, "RUNNING", started_at=1.0),
    done(7, 5.0, "CANCELLED"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (JobQuery(), [7, 1, 2, 4, 3]),
        (JobQuery(limit=2), [4, 3]),
        (JobQuery(states=["FAILED", "CANCELLED"]), [7, 2]),
        (JobQuery(states=["RUNNING"]), []),
        (JobQuery(name="other"), [4]),
        (JobQuery(since=20.0), [2, 4, 3]),
        (JobQuery(until=20.0), [7, 1]),
        (JobQuery(since=10.0, until=26.0, states=["COMPLETED"]), [1, 4]),
        (JobQuery(ids=[6, 2, 99]), [6, 2]),
        (JobQuery(ids=[1, 2, 3], limit=1), [1, 2, 3]),
        (JobQuery(ids=[]), []),
    ],
)
def test_finished_jobs_are_found_oldest_first(store: Store, wanted: JobQuery, ids: list[int]):
    store.commit(batch(*HISTORY), sync=False)
    assert [found.job.id for found in store.find_jobs(wanted)] == ids


def test_many_ids_are_found_at_once(store: Store):
    store.commit(batch(*[job(n) for n in range(1, 301)]), sync=False)
    ids = list(range(1, 40_000))
    assert len(store.find_jobs(JobQuery(ids=ids))) == 300


def test_a_sweep_is_read_back_as_it_was_last_written(store: Store, reopen: Open):
    assert store.load().sweeps == []
    store.commit(batch(sweeps=[sweep(9), sweep(2, total=4)]), sync=False)
    store.commit(batch(sweeps=[sweep(2, total=4, counts={"done": 1})]), sync=False)
    store.commit(batch(job(10)), sync=True)
    expected = [sweep(2, total=4, counts={"done": 1}), sweep(9)]
    assert store.load().sweeps == expected
    assert reopen().load().sweeps == expected


def test_a_sweep_of_a_rejected_batch_is_not_written(store: Store):
    store.commit(batch(keys=[("k", 1, 1)], sweeps=[sweep(1)]), sync=False)
    with pytest.raises(StoreError):
        store.commit(batch(keys=[("k", 1, 1)], sweeps=[sweep(1, held=True), sweep(2)]), sync=False)
    assert store.load().sweeps == [sweep(1)]


FAMILIES = [
    trial(1, 2, 0, state="COMPLETED", started_at=1.0, ended_at=90.0),
    trial(1, 3, 1, state="FAILED", started_at=1.0, ended_at=50.0, code=1),
    trial(1, 4, 2, state="RUNNING", started_at=1.0),
    trial(5, 6, 0, state="COMPLETED", started_at=1.0, ended_at=70.0),
    job(7, array=7, index=0, state="COMPLETED", started_at=1.0, ended_at=60.0),
    job(8, array=7, index=1),
    trial(1, 9, 3), job(10),
]  # fmt: skip


def test_unloaded_trials_are_loaded_with_their_sweep(store: Store):
    sweeps = [sweep(1), sweep(5, resident=False)]
    store.commit(batch(*FAMILIES, sweeps=sweeps), sync=False)
    assert store.load().members == []
    store.commit(batch(dropped=[3, 2, 6, 7]), sync=False)
    found = store.load()
    assert found.members == [FAMILIES[0], FAMILIES[1]]
    assert [each.id for each in found.jobs] == [4, 8, 9, 10]
    store.commit(batch(sweeps=[sweep(1, resident=False), sweep(5)]), sync=False)
    assert [each.id for each in store.load().members] == [6]
    store.commit(batch(FAMILIES[3]), sync=False)
    assert store.load().members == []


@pytest.mark.parametrize(
    ("wanted", "ids", "count"),
    [
        (JobQuery(array=1), [2, 3, 4, 9], 4),
        (JobQuery(array=1, limit=2), [4, 9], 4),
        (JobQuery(array=1, states=["FAILED", "RUNNING"]), [3, 4], 2),
        (JobQuery(array=1, states=[]), [], 0),
        (JobQuery(array=1, until=80.0), [3], 1),
        (JobQuery(array=1, since=10.0), [2, 3], 2),
        (JobQuery(array=1, user="bob"), [], 0),
        (JobQuery(array=7), [7, 8], 2),
        (JobQuery(array=10), [], 0),
    ],
)
def test_members_of_an_array_or_a_sweep_are_found(
    store: Store, wanted: JobQuery, ids: list[int], count: int
):
    store.commit(batch(*FAMILIES[4:], *FAMILIES[:4], sweeps=[sweep(1), sweep(5)]), sync=False)
    store.commit(batch(dropped=[2, 7]), sync=False)
    found = store.find_jobs(wanted)
    assert [each.job.id for each in found] == ids
    assert all(each.spec == spec() for each in found)
    assert store.count_jobs(wanted) == count


def test_ids_of_members_of_an_array_or_a_sweep_are_found(store: Store):
    store.commit(batch(*FAMILIES[4:], *FAMILIES[:4], sweeps=[sweep(1), sweep(5)]), sync=False)
    store.commit(batch(dropped=[2, 7]), sync=False)
    assert [store.members(array) for array in (1, 5, 7, 10)] == [[2, 3, 4, 9], [6], [7, 8], []]


def test_environments_of_old_jobs_are_dropped_and_others_are_not(store: Store):
    specs = {f"s{n}": spec(environment=f"env-{n}") for n in range(1, 5)}
    secrets = {f"env-{n}": b"SECRET=1" for n in range(1, 5)}
    rows = [
        done(1, 100.0), done(2, 900.0, spec="s2"), job(3, spec="s3"),
        job(4, spec="s4", ended_at=50.0),  # retried: it ended once and is pending again
    ]  # fmt: skip
    store.commit(batch(*rows, specs=specs, secrets=secrets), sync=False)
    store.purge(before=500.0)
    kept = [n for n in range(1, 5) if store.secret(f"env-{n}") is not None]
    assert kept == [2, 3, 4]


def test_environments_in_use_are_kept(store: Store):
    specs = {f"s{n}": spec(environment=f"env-{n}") for n in (1, 2)}
    secrets = {f"env-{n}": b"SECRET=1" for n in (1, 2, 3)}
    rows = [done(1, 100.0), done(2, 100.0, spec="s2")]
    store.commit(batch(*rows, specs=specs, secrets=secrets), sync=False)
    store.purge(500.0, {"env-2", "env-3", "unknown"})
    assert [n for n in (1, 2, 3) if store.secret(f"env-{n}") is not None] == [2, 3]


def test_a_backup_is_a_copy(store: Store, tmp_path: Path):
    store.commit(batch(job(1), job(2)), sync=False)
    path = tmp_path / "copy"
    size = store.backup(str(path))
    assert size == path.stat().st_size > 0


def test_sync_is_always_allowed(store: Store):
    store.sync()
    store.commit(batch(job(1)), sync=False)
    store.sync()
    store.sync()
    assert store.load().seq == 1
