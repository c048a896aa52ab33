"""Failures of a database on a server, and recovery from them."""

import os
import re
import selectors
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postgres import PASSWORD, Server, program
from stoker.core.events import JobHeld, ProcessExited
from stoker.core.model.job import Job, Progress
from stoker.core.model.units import BadValue
from stoker.store import codec
from stoker.store import postgres_server as sessions
from stoker.store.migrations import POSTGRES
from stoker.store.port import Batch, JobQuery, StoreError, StoreFenced, StoreFull
from stoker.store.postgres import PostgresStore
from stoker.store.select import StoreConfig, parse
from store.rows import batch, done, job, rest, spec, sweep, trial

Open = Callable[..., PostgresStore]


@pytest.fixture
def opened() -> Iterator[Open]:
    stores: list[PostgresStore] = []

    def open_(choice: StoreConfig, claim: bool = True, **more: object) -> PostgresStore:
        stores.append(PostgresStore(choice, **more))  # type: ignore[arg-type]
        if claim:
            stores[-1].acquire_term()
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the timeout of a lease short."""
    monkeypatch.setattr(sessions, "LEASE_TIMEOUT_SECONDS", 0.3)


def recorded(store: PostgresStore) -> list[tuple[int, int]]:
    """Return number and job of each event in the journal."""
    return [(seq, event.job) for seq, event in store.events(0, 10_000)]  # type: ignore[attr-defined]


def ended(id: int, **more: Any) -> Batch:
    """Return a batch that does not wait for the disk."""
    return batch(job(id), events=[ProcessExited(at=1.0, job=id, attempt=0, code=0)], **more)


def one_each(count: int) -> list[tuple[int, int]]:
    return [(n, n) for n in range(1, count + 1)]


def schema_sql(server: Server, choice: StoreConfig, text: str) -> list[tuple[object, ...]]:
    return server.sql(f"SET search_path = {choice.schema}; {text}", "stoker")


# -- the lease and the term ---------------------------------------------------------------


def test_a_second_daemon_is_rejected_with_the_holder_of_the_lease(
    postgres: Server, opened: Open, hurried: None
):
    choice = postgres.choice()
    first = opened(choice)
    with pytest.raises(StoreError) as refused:
        PostgresStore(choice)
    assert f"in use by the daemon with pid {os.getpid()} on {os.uname().nodename[:24]}" in str(
        refused.value
    )
    assert first.commit(batch(job(1)), sync=True) == 1


def test_schemas_are_independent(postgres: Server, opened: Open):
    one, two = opened(postgres.choice()), opened(postgres.choice())
    one.commit(batch(job(1)), sync=True)
    two.commit(batch(job(7)), sync=True)
    assert [each.id for each in one.load().jobs] == [1]
    assert [each.id for each in two.load().jobs] == [7]


@pytest.mark.parametrize("still_there", [True, False])
def test_a_daemon_that_lost_its_lease_while_disconnected_writes_nothing(
    postgres: Server, opened: Open, hurried: None, still_there: bool
):
    choice = postgres.choice()
    old = opened(choice)
    old.commit(batch(job(1)), sync=True)
    assert postgres.end_sessions(f"%{old._name.token}") == 1
    new = opened(choice)
    assert new.commit(batch(job(2)), sync=True) == 2
    if not still_there:
        new.close()
    for _ in range(2):
        with pytest.raises(StoreFenced):
            old.commit(batch(job(3)), sync=True)
    with pytest.raises(StoreFenced):
        old.load()
    old.close()
    new.close()
    assert [each.id for each in opened(choice).load().jobs] == [1, 2]


def test_a_term_that_moved_on_is_noticed_even_with_the_lease(postgres: Server, opened: Open):
    choice = postgres.choice()
    store = opened(choice)
    store.commit(ended(1), sync=False)
    schema_sql(postgres, choice, "UPDATE meta SET number = number + 1 WHERE key = 'term'")
    with pytest.raises(StoreFenced):
        store.commit(batch(job(2)), sync=True)
    with pytest.raises(StoreFenced):
        store.sync()
    assert [each.id for each in store.load().jobs] == [1]


DYING = """
    import os, sys, time
    from stoker.store.select import parse
    from stoker.store.postgres import PostgresStore
    from store.rows import batch, job

    store = PostgresStore(parse(sys.argv[1], "test"))
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    if os.fork() == 0:  # has the connection too, so the server will not see it end
        print(os.getpid(), flush=True)
        time.sleep(300)
    os._exit(9)
"""


def test_the_session_of_a_dead_process_is_ended(postgres: Server, opened: Open):
    url = postgres.url()
    here = Path(__file__).parent.parent
    dying = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DYING), url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(here)},
    )
    assert dying.stdout is not None
    child = os.pidfd_open(int(dying.stdout.readline()))
    try:
        assert dying.wait(30) == 9
        store = opened(parse(url, "test"))
        assert [each.id for each in store.load().jobs] == [1]
    finally:
        import signal

        signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
        dying.stdout.close()


# -- connections that break ---------------------------------------------------------------


class Proxy:
    """A proxy between a store and its server that can break the connection at a chosen point."""

    def __init__(self, server: Server) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sk-px-", dir="/tmp"))
        self.target = str(server.directory / ".s.PGSQL.5432")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.directory / ".s.PGSQL.5432"))
        self.listener.listen()
        self.plan: str | None = None
        """What to do at the next request; see `_forward`."""
        self.left: list[socket.socket] = []
        self.peers: dict[socket.socket, tuple[socket.socket, bool]] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.waker, self.wake = socket.socketpair()
        self.selector.register(self.waker, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self.waker:
                    return
                if sock is self.listener:
                    self._accept()
                elif sock in self.peers:
                    self._forward(sock)

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.target)
        for one, other, is_client in ((client, server, True), (server, client, False)):
            self.peers[one] = (other, is_client)
            self.selector.register(one, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        other, is_client = self.peers[sock]
        try:
            data = sock.recv(1 << 16)
        except OSError:
            data = b""
        plan = self.plan
        if not data or (is_client and plan == "before the request"):
            self.plan = None if data else plan
            self._drop(sock, other)
        elif not is_client and plan == "before the answer":
            self.plan = None
            self._drop(sock, other)
        elif is_client and plan == "only towards us":
            self.plan = None
            other.sendall(data)
            self._drop(sock)  # the server does not notice it
            self.left.append(other)
            self.selector.unregister(other)
            del self.peers[other]
        else:
            try:
                other.sendall(data)
            except OSError:
                self._drop(sock, other)

    def _drop(self, *socks: socket.socket) -> None:
        for sock in socks:
            if self.peers.pop(sock, None):
                self.selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        self.wake.close()
        self.thread.join(10)
        for sock in (*self.peers, *self.left, self.listener, self.waker):
            sock.close()
        self.selector.close()
        shutil.rmtree(self.directory)

    def through(self, choice: StoreConfig) -> StoreConfig:
        """Return the configuration of the store through this proxy."""
        assert choice.url is not None
        return StoreConfig(
            re.sub(r"host=[^&]*", f"host={self.directory}", choice.url), choice.schema
        )


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    found = Proxy(postgres)
    yield found
    found.close()


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("where", ["before the request", "before the answer", "only towards us"])
def test_a_commit_without_a_reply_is_stored_once(
    postgres: Server, proxy: Proxy, opened: Open, where: str, sync: bool
):
    choice = postgres.choice()
    store = opened(proxy.through(choice))
    store.commit(ended(1), sync=False)
    proxy.plan = where
    assert store.commit(ended(2, keys=[("k", 2, 1)]), sync=sync) == 2
    assert proxy.plan is None
    assert store.commit(ended(3), sync=sync) == 3
    store.close()
    again = opened(choice, claim=False)
    assert recorded(again) == one_each(3)
    assert [each.id for each in again.load().jobs] == [1, 2, 3]
    assert again.find_key("k") == (2, 1)


def test_reads_continue_over_a_new_connection(postgres: Server, proxy: Proxy, opened: Open):
    store = opened(proxy.through(postgres.choice()))
    store.commit(batch(done(1, 5.0), blobs={"b": b"x"}, keys=[("k", 1, 1)]), sync=False)
    for read in (
        store.load,
        lambda: recorded(store),
        lambda: store.blob("b"),
        lambda: store.find_key("k"),
        lambda: store.find_jobs(JobQuery(user="ada", name="train", states=["COMPLETED"])),
    ):
        before = read()
        proxy.plan = "before the answer"
        assert read() == before
        assert proxy.plan is None


def test_repeatedly_ended_sessions_lose_and_duplicate_nothing(postgres: Server, opened: Open):
    choice, over = postgres.choice(), threading.Event()
    store, cut = opened(choice), []
    tokens = f"%{store._name.namespace}%"

    def end() -> None:
        while not over.wait(0.03):
            cut.append(postgres.end_sessions(tokens))

    ender = threading.Thread(target=end)
    ender.start()
    try:
        n = 0
        while n < 60 or sum(cut) < 4:
            n += 1
            assert store.commit(ended(n, rest=rest(next_id=n + 1)), sync=n % 5 == 0) == n
            if n % 7 == 0:
                store.sync()
    finally:
        over.set()
        ender.join()
    store.close()
    again = opened(choice, claim=False)
    assert recorded(again) == one_each(n)
    assert again.load().rest.next_id == n + 1


def test_a_term_acquired_without_a_reply_is_acquired_again(
    postgres: Server, proxy: Proxy, opened: Open
):
    store = opened(proxy.through(postgres.choice()), claim=False)
    proxy.plan = "before the answer"
    assert store.acquire_term() == 2
    assert store.commit(batch(job(1)), sync=True) == 1


def test_a_server_that_does_not_return_ends_the_store_with_an_error(crashing: Server, opened: Open):
    store = opened(crashing.choice(), reconnect_timeout=0.2)
    store.commit(batch(job(1)), sync=True)
    crashing.stop()
    for _ in range(2):
        with pytest.raises(StoreFenced, match="check the queue before repeating"):
            store.commit(batch(job(2)), sync=True)
    with pytest.raises(StoreFenced):
        store.load()
    with pytest.raises(StoreFenced):
        store.sync()


# -- what is on disk ----------------------------------------------------------------------


def count(server: Server, choice: StoreConfig) -> int:
    [[found]] = schema_sql(server, choice, "SELECT count(*) FROM events")
    assert isinstance(found, int)
    return found


def test_commits_lost_in_a_crash_of_the_server_are_written_again(crashing: Server, opened: Open):
    choice = crashing.choice()
    store = opened(choice)
    store.commit(batch(job(1)), sync=True)
    for n in range(2, 6):
        store.commit(ended(n, rest=rest(next_id=n + 1)), sync=False)
    crashing.restart()
    assert count(crashing, choice) < 5  # they were not written
    assert store.commit(ended(6), sync=False) == 6
    crashing.restart()  # events that were written again are on disk
    store.close()
    again = opened(choice, claim=False)
    assert recorded(again) == one_each(6)
    assert [each.id for each in again.load().jobs] == [1, 2, 3, 4, 5, 6]
    assert again.load().rest.next_id == 6


def test_a_sync_after_a_crash_of_the_server_restores_all_commits(crashing: Server, opened: Open):
    choice = crashing.choice()
    store = opened(choice)
    store.commit(ended(1), sync=False)
    crashing.restart()
    assert count(crashing, choice) == 0
    store.sync()
    crashing.restart()
    assert count(crashing, choice) == 1


@pytest.mark.parametrize(
    "way", ["sync=True", "sync()", "sync() in another thread", "an event from memory only"]
)
def test_synced_commits_survive_a_crash_of_the_server(crashing: Server, opened: Open, way: str):
    choice = crashing.choice()
    store = opened(choice)
    for n in range(1, 4):
        store.commit(ended(n), sync=way == "sync=True" and n == 3)
    if way == "sync()":
        store.sync()
    elif way == "an event from memory only":
        store.commit(batch(events=[JobHeld(at=1.0, job=1)]), sync=False)
    elif way != "sync=True":
        thread = threading.Thread(target=store.sync)
        thread.start()
        thread.join()
    assert store._unsynced == []
    crashing.restart()
    assert count(crashing, choice) >= 3


def test_commits_continue_while_another_thread_syncs(postgres: Server, opened: Open):
    choice, over = postgres.choice(), threading.Event()
    store = opened(choice)

    def sync() -> None:
        while not over.is_set():
            store.sync()

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        for n in range(1, 301):
            store.commit(ended(n), sync=False)
    finally:
        over.set()
        thread.join()
    store.sync()
    assert store._unsynced == []
    assert recorded(store) == one_each(300)


def test_a_journal_that_lost_synced_events_is_reported(
    postgres: Server, opened: Open, tmp_path: Path
):
    choice, watermark = postgres.choice(), str(tmp_path / "watermark")
    store = opened(choice, watermark=watermark)
    for n in range(1, 6):
        store.commit(batch(job(n), rest=rest(next_id=n + 1)), sync=True)
    store.close()
    assert stat.S_IMODE(os.stat(watermark).st_mode) == 0o600
    schema_sql(postgres, choice, "DELETE FROM events WHERE seq > 3")
    again = opened(choice, watermark=watermark)
    assert "ends at event 3, but event 5 had been synced" in again.warnings()[0]
    assert (again.id_floor(), again.lost_events()) == (6, 2)  # nor are ids, and jobs are held
    assert again.commit(batch(job(9)), sync=True) == 6  # numbers are not reused
    other = opened(postgres.choice(), watermark=watermark)  # another journal is not affected
    assert other.warnings() == []
    assert (other.id_floor(), other.lost_events()) == (0, 0)


@pytest.mark.parametrize("times", [1, 3])
def test_a_failed_sync_loses_no_pending_batch(
    postgres: Server, opened: Open, monkeypatch: pytest.MonkeyPatch, times: int
):
    store = opened(postgres.choice())
    store.commit(ended(1), sync=False)
    flush, failures = store._flush_on_own_connection, [sessions.ServerUnreachable("no")] * times

    def fail_first() -> int:
        if failures:
            raise failures.pop()
        return flush()

    monkeypatch.setattr(store, "_flush_on_own_connection", fail_first)
    for _ in range(times):
        with pytest.raises(sessions.ServerUnreachable):
            store.sync()
        assert store._durable == 0
        assert [each.last for each in store._unsynced] == [1]
    store.commit(ended(2), sync=False)
    store.sync()
    assert (store._durable, store._unsynced) == (2, [])


def test_a_server_that_lost_synced_events_stops_the_daemon(postgres: Server, opened: Open):
    choice = postgres.choice()
    store = opened(choice)
    for n in range(1, 4):
        store.commit(batch(job(n)), sync=True)
    schema_sql(postgres, choice, "DELETE FROM events WHERE seq > 1")
    postgres.end_sessions(f"%{store._name.token}")
    with pytest.raises(StoreFenced, match="the last one is 1, but 3 had been synced"):
        store.commit(batch(job(4)), sync=True)


def test_a_full_disk_is_reported_and_recovers(postgres: Server, opened: Open):
    choice = postgres.choice()
    store = opened(choice)
    schema_sql(
        postgres,
        choice,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;"
        "CREATE TRIGGER full_disk BEFORE INSERT ON events EXECUTE FUNCTION full_disk()",
    )
    with pytest.raises(StoreFull, match="is full"):
        store.commit(batch(job(1)), sync=True)
    assert store.load().jobs == []
    schema_sql(postgres, choice, "DROP TRIGGER full_disk ON events")
    assert store.commit(batch(job(1)), sync=True) == 1


# -- the layout ---------------------------------------------------------------------------


def test_a_newer_layout_is_refused_politely_and_left_alone(postgres: Server, opened: Open):
    choice = postgres.choice()
    opened(choice).close()
    schema_sql(postgres, choice, "UPDATE meta SET number = 99 WHERE key = 'layout'")
    before = schema_sql(postgres, choice, "SELECT * FROM meta ORDER BY key")
    with pytest.raises(StoreError, match=r"was written by a newer stoker \(layout 99"):
        PostgresStore(choice)
    assert schema_sql(postgres, choice, "SELECT * FROM meta ORDER BY key") == before


def test_older_layouts_are_migrated_one_after_the_other(
    postgres: Server, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    choice = postgres.choice()
    store = opened(choice)
    store.commit(batch(job(1)), sync=True)
    store.close()
    now = sessions.LAYOUT
    monkeypatch.setattr(sessions, "LAYOUT", now + 2)
    monkeypatch.setitem(POSTGRES, now, "ALTER TABLE jobs ADD COLUMN colour text")
    monkeypatch.setitem(POSTGRES, now + 1, "UPDATE jobs SET colour = 'green'")
    again = opened(choice)
    assert [each.id for each in again.load().jobs] == [1]
    assert schema_sql(postgres, choice, "SELECT colour FROM jobs") == [("green",)]
    layout = schema_sql(postgres, choice, "SELECT number FROM meta WHERE key = 'layout'")
    assert layout == [(now + 2,)]


def of_layout_1(server: Server, choice: StoreConfig, *jobs: Job) -> None:
    """Create a schema of an earlier release, with unloaded finished jobs."""
    postgres_1 = (Path(__file__).parent / "layouts" / "postgres-1.sql").read_text()
    server.sql(f"CREATE SCHEMA {choice.schema}", "stoker")
    encoded_spec = codec.encode(spec()).hex()
    rows = [
        f"({each.id}, 'n', 'ada', '{each.state.value}', 1.0, NULL, {each.ended_at or 'NULL'}, NULL,"
        f" {not each.finished}, 's1', '\\x{codec.encode(each).hex()}')"
        for each in jobs
    ]
    schema_sql(
        server, choice,
        f"{postgres_1}; INSERT INTO meta (key, number) VALUES ('layout', 1);"
        "INSERT INTO meta (key, data) VALUES ('identity', 'abc');"
        f"INSERT INTO specs VALUES ('s1', 'default', NULL, 'env-1', '\\x{encoded_spec}');"
        f"INSERT INTO jobs VALUES {', '.join(rows)}",
    )  # fmt: skip


def shape(server: Server, choice: StoreConfig) -> list[tuple[object, ...]]:
    """Return the columns and indexes of every table."""
    columns = schema_sql(
        server, choice,
        "SELECT table_name, ordinal_position, column_name, data_type, is_nullable"
        " FROM information_schema.columns WHERE table_schema = current_schema ORDER BY 1, 2",
    )  # fmt: skip
    return columns + schema_sql(
        server, choice,
        "SELECT replace(indexdef, schemaname, '') FROM pg_indexes"
        " WHERE schemaname = current_schema ORDER BY 1",
    )  # fmt: skip


def test_a_schema_of_layout_1_is_migrated_with_all_rows(postgres: Server, opened: Open):
    choice, new = postgres.choice(), postgres.choice()
    jobs = [
        done(1, 20.0, array=1, index=0), job(2, array=1, index=1, name='a\0"array":7 \\u0000'),
        job(3, progress=Progress(metrics={"array": 3.0})), done(4, 21.0),
        job(5, array=5, index=0),
    ]  # fmt: skip
    of_layout_1(postgres, choice, *jobs)
    store = opened(choice)
    found = store.load()
    assert (found.jobs, found.specs) == ([jobs[1], jobs[2], jobs[4]], {"s1": spec()})
    assert (found.sweeps, found.members) == ([], [])
    assert [store.members(array) for array in (1, 3, 5, 7)] == [[1, 2], [], [5], []]
    assert [each.job for each in store.find_jobs(JobQuery(array=1))] == jobs[:2]
    store.commit(batch(trial(9, 10, 0), sweeps=[sweep(9)]), sync=True)
    store.close()
    again = opened(choice)
    assert (again.load().sweeps, again.members(9), again.identity) == ([sweep(9)], [10], "abc")
    opened(new)
    assert shape(postgres, choice) == shape(postgres, new)


@pytest.mark.parametrize("table", ["meta (word text)", "meta (key text, number bigint)", "jobs ()"])
def test_tables_of_other_programs_are_left_alone(postgres: Server, table: str):
    choice = postgres.choice()
    postgres.sql(f"CREATE SCHEMA {choice.schema}", "stoker")
    schema_sql(postgres, choice, f"CREATE TABLE {table}")
    with pytest.raises(StoreError):
        PostgresStore(choice)
    tables = schema_sql(postgres, choice, "SELECT relname FROM pg_class WHERE relkind = 'r'"
                        f" AND relnamespace = '{choice.schema}'::regnamespace")  # fmt: skip
    assert tables == [(table.partition(" ")[0],)]


def test_an_existing_schema_needs_no_right_to_create_one(postgres: Server, opened: Open):
    name = f"plain{os.getpid()}"
    postgres.sql(f"CREATE ROLE {name} LOGIN")
    choice = parse(postgres.url(name, user=name), "test")
    with pytest.raises(sessions.AccessDenied, match="permission denied"):
        PostgresStore(choice)
    postgres.sql(f"CREATE SCHEMA {name} AUTHORIZATION {name}", "stoker")
    assert opened(choice).commit(batch(job(1)), sync=True) == 1


# -- passwords ----------------------------------------------------------------------------


def guarded(server: Server, password: str) -> StoreConfig:
    return parse(server.url(user=f"guarded:{password}"), "test")


def test_the_right_password_is_accepted(postgres: Server, opened: Open):
    assert opened(guarded(postgres, PASSWORD.replace("/", "%2F"))).load().jobs == []


def test_a_wrong_password_is_reported_without_showing_it(postgres: Server):
    with pytest.raises(sessions.AccessDenied) as denied:
        PostgresStore(guarded(postgres, "wrong%2Fhorse"))
    text = str(denied.value)
    assert "password authentication failed" in text
    assert "horse" not in text
    assert "\n" not in text
    assert denied.value.exit_code == 5


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (
            "postgresql://ada:s3cret@127.0.0.1:1/lab",
            sessions.ServerUnreachable,
            "Connection refused",
        ),
        ("postgresql://ada:s3cret@/lab?host=/nowhere", sessions.ServerUnreachable, "/nowhere"),
        ("postgresql://ada:s3cret@[::1/lab", BadValue, "is invalid; write"),
        ("postgresql://ada:s3cret@/lab?colour=s3cret", BadValue, "is invalid; write"),
    ],
)
def test_an_unreachable_server_is_reported(url: str, error: type[Exception], words: str):
    with pytest.raises(error) as said:
        PostgresStore(parse(url, "--db"))
    text = str(said.value)
    assert words in text
    assert "s3cret" not in text
    assert "\n" not in text


def test_a_missing_database_is_reported(postgres: Server):
    url = f"postgresql://stoker@/nothing?host={postgres.directory}"
    with pytest.raises(StoreError, match=r'database "nothing" does not exist\. Create it first'):
        PostgresStore(parse(url, "--db"))


# -- copies -------------------------------------------------------------------------------


@pytest.fixture
def dump_on_path(monkeypatch: pytest.MonkeyPatch, needs: Callable[..., None]) -> None:
    needs(program("pg_dump"), program("psql"))
    monkeypatch.setenv("PATH", f"{Path(program('pg_dump')).parent}:{os.environ['PATH']}")


def test_a_copy_restores_into_another_database(
    postgres: Server, opened: Open, tmp_path: Path, dump_on_path: None
):
    choice = guarded(postgres, PASSWORD.replace("/", "%2F"))
    store = opened(choice)
    store.commit(
        batch(
            job(1), job(2), trial(3, 4, 0), rest=rest(next_id=5), secrets={"e": b"A=\xff\0"},
            sweeps=[sweep(3)], dropped=[4],
        ),
        sync=True,
    )  # fmt: skip
    path = tmp_path / "copy.sql"
    assert store.backup(str(path)) == path.stat().st_size > 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = f"copy{os.getpid()}"
    postgres.sql(f"CREATE DATABASE {other}")
    psql = [program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-h", str(postgres.directory)]
    subprocess.run([*psql, "-U", "stoker", "-d", other, "-f", str(path)], check=True)
    url = f"postgresql://stoker@/{other}?host={postgres.directory}&schema={choice.schema}"
    copy = opened(parse(url, "test"))
    assert copy.load() == store.load()
    assert (copy.load().sweeps, copy.load().members) == ([sweep(3)], [trial(3, 4, 0)])
    assert copy.secret("e") == b"A=\xff\0"
    assert copy.commit(batch(job(5)), sync=True) == 4


def test_a_copy_overwrites_nothing(
    postgres: Server, opened: Open, tmp_path: Path, dump_on_path: None
):
    target = tmp_path / "precious"
    target.write_text("mine")
    with pytest.raises(StoreError, match="Cannot write"):
        opened(postgres.choice()).backup(str(target))
    assert target.read_text() == "mine"


def test_a_copy_that_fails_leaves_no_file(
    postgres: Server, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = opened(postgres.choice())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="pg_dump, which is not on the PATH"):
        store.backup(str(tmp_path / "copy"))
    fake = tmp_path / "pg_dump"
    fake.write_text("#!/bin/sh\necho first >&2\necho 'pg_dump: error: too old.' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(StoreError, match="too old"):
        store.backup(str(tmp_path / "copy"))
    assert [each.name for each in tmp_path.iterdir()] == ["pg_dump"]


# -- small things -------------------------------------------------------------------------


def test_text_with_a_zero_byte_is_stored_completely(postgres: Server, opened: Open):
    store = opened(postgres.choice())
    rows = {"keys": [("k\0", 1, 1)], "sweeps": [sweep(2, name="c\0d")]}
    store.commit(batch(job(1, name="a\0b"), **rows), sync=True)
    assert store.load().jobs[0].name == "a\0b"
    assert store.load().sweeps[0].name == "c\0d"
    assert store.find_key("k\0") == (1, 1)


def test_large_batches_are_stored(postgres: Server, opened: Open):
    store = opened(postgres.choice())
    jobs = [job(n, command="x" * 200) for n in range(1, 5001)]
    assert store.commit(batch(*jobs), sync=True) == 5000
    assert store.load().jobs == jobs


def test_it_can_be_read_by_hand_while_it_is_open(postgres: Server, opened: Open):
    choice = postgres.choice()
    store = opened(choice)
    store.commit(batch(job(7)), sync=False)
    assert schema_sql(postgres, choice, "SELECT id, state FROM jobs") == [(7, "PENDING")]


def test_a_database_in_another_encoding_is_refused(postgres: Server):
    name = f"latin{os.getpid()}"
    postgres.sql(f"CREATE DATABASE {name} ENCODING LATIN1 TEMPLATE template0")
    url = f"postgresql://stoker@/{name}?host={postgres.directory}"
    with pytest.raises(StoreError, match="is encoded as LATIN1"):
        PostgresStore(parse(url, "--db"))
    info = f"host={postgres.directory} dbname={name} user=stoker"
    with psycopg.connect(info) as db:
        found = db.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'stoker'").fetchone()
    assert found == (0,)
