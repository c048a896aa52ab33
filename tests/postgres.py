"""A real PostgreSQL server for tests: started on first use, gone with the process that did."""

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stoker.store.select import StoreConfig, parse

PASSWORD = "correct/horse"  # quoted in a URL as %2F


def program(name: str) -> str:
    """A program of the server; Debian keeps them off the PATH, by version."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return str(places[0]) if places else shutil.which(name) or name


class Server:
    """A cluster in a directory of its own, reached through a socket there, never by network."""

    def __init__(self, **settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sk-pg-", dir="/tmp"))
        self.settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self.directory}'",
            "fsync": "off",
            "max_connections": "60",
            **settings,
        }
        self.schemas = 0
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.directory, *self._user())
        self.run("initdb", "--no-sync", "-U", "stoker", "-A", "trust", "-E", "UTF8", "--locale=C")
        rules = "local all guarded scram-sha-256\nlocal all all trust\n"
        (self.data / "pg_hba.conf").write_text(rules)
        self.start()
        self.sql("CREATE DATABASE stoker")
        self.sql(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{PASSWORD}'")

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @staticmethod
    def _user() -> tuple[int, int]:
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                found = pwd.getpwnam(name)
                return found.pw_uid, found.pw_gid
        return 65534, 65534

    def run(self, name: str, *args: str) -> None:
        """Run one of its programs to the end, as the user who may."""
        command = [*self._become(), program(name), "-D", str(self.data), *args]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _become(self) -> list[str]:
        if os.getuid() != 0:
            return ["setpriv"]
        uid, gid = self._user()
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]

    def start(self) -> None:
        """Start it as a child that dies with us, and wait until it answers."""
        options = [f"-c{key}={value.strip(chr(39))}" for key, value in self.settings.items()]
        command = [*self._become(), "--pdeathsig=QUIT", program("postgres"), "-D", str(self.data)]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd="/",
                # Nothing of the test that happens to be the first: it outlives that one.
                env={"PATH": os.environ["PATH"], "LANG": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                self.sql("SELECT 1", database="postgres")
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                time.sleep(0.02)

    def stop(self, mode: str = "immediate") -> None:
        """End it; `immediate` is what a crash is: what it had not written is gone."""
        self.run("pg_ctl", "stop", "-m", mode)
        self.process.wait(30)

    def restart(self, mode: str = "immediate") -> None:
        """A crash, and the recovery from it."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
        shutil.rmtree(self.directory, ignore_errors=True)

    def sql(self, text: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as an administrator would."""
        info = f"host={self.directory} dbname={database} user=stoker"
        with psycopg.connect(info, autocommit=True) as db:
            found = db.execute(text.encode())
            while found.nextset():
                pass  # the answer to the last statement is the one that is wanted
            return found.fetchall() if found.description else []

    def url(self, schema: str | None = None, user: str = "stoker") -> str:
        """A URL with a schema of its own."""
        self.schemas += schema is None
        schema = schema or f"s{os.getpid()}_{self.schemas}"
        return f"postgresql://{user}@/stoker?host={self.directory}&schema={schema}"

    def choice(self) -> StoreConfig:
        """A store that nobody has used yet."""
        return parse(self.url(), "test")

    def end_sessions(self, like: str = "stoker %") -> int:
        """End the sessions of daemons, as an administrator or a dead network would."""
        which = f"FROM pg_stat_activity WHERE application_name LIKE '{like}'"
        ended = {pid for pid, _ in self.sql(f"SELECT pid, pg_terminate_backend(pid) {which}")}
        deadline = time.monotonic() + 10
        while ended & {pid for (pid,) in self.sql(f"SELECT pid {which}")}:
            assert time.monotonic() < deadline, f"{ended} do not end"
        return len(ended)


STARTED: list[Server] = []


@functools.cache
def running(**settings: str) -> Server:
    """The server of this test process with these settings."""
    STARTED.append(Server(**settings))
    return STARTED[-1]


@pytest.fixture(scope="session")
def servers() -> Iterator[None]:
    """However many were started, none is left."""
    yield
    while STARTED:
        STARTED.pop().remove()


@pytest.fixture
def postgres(servers: None, needs: Callable[..., None]) -> Server:
    """A server with a database `stoker`; schemas are for the asking."""
    needs("setpriv", program("initdb"), program("postgres"))
    return running()


@pytest.fixture
def crashing(servers: None, needs: Callable[..., None]) -> Iterator[Server]:
    """A server to be crashed, one test at a time. It writes as late as it may."""
    needs("setpriv", program("initdb"), program("postgres"))
    server = running(wal_writer_delay="10s")
    yield server
    if server.process.poll() is not None:
        server.start()
