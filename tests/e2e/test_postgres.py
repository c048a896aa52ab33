"""The daemon with PostgreSQL: which store it opens, and crashes of both."""

import os
import random
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

import postgres as pg
from e2e.daemon_fixture import DaemonFixture, alive, kill, until
from e2e.test_crash import AGAIN, ONCE, ids, lines, ran, times_run
from postgres import PASSWORD, Server

SECRET = PASSWORD.replace("/", "%2F")


# Fixtures: a server, and one to be crashed.
servers, server, fragile = pg.servers, pg.postgres, pg.crashing


def started(box: DaemonFixture, url: str, resources: str = "{gpu:4,cpu:8}") -> DaemonFixture:
    done = box.stoker("daemon", "start", "--resources", resources, "--db", url)
    assert done.returncode == 0, done.stderr
    return box


def refused(box: DaemonFixture, *args: object, **env: str) -> tuple[int, str]:
    """Return exit code and message of a command that fails."""
    done = box.stoker(*args, env=env)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


# -- which store --------------------------------------------------------------------------


def test_the_chosen_store_is_remembered_and_no_password_shown(
    server: Server, idle: DaemonFixture
) -> None:
    box = started(idle, server.url(user=f"guarded:{SECRET}"))
    job = box.submit("exit 3")
    assert box.end_of(job)["result"] == 3
    status = box.client.daemon()
    assert status["store"].startswith("postgresql://guarded:***@/stoker?host=")
    assert SECRET not in box.stoker("daemon", "status").stdout
    assert b"horse" not in Path(f"/proc/{box.pid}/cmdline").read_bytes()
    assert "horse" not in box.log
    files_with_password = [
        path for path in box.home.rglob("*") if path.is_file() and _holds(path, b"horse")
    ]
    assert [path.name for path in files_with_password] == ["store.json"]
    assert stat.S_IMODE(files_with_password[0].stat().st_mode) == 0o600
    assert box.stoker("db", "path").stdout.strip() == status["store"]
    assert box.stoker("daemon", "stop").returncode == 0
    assert not (box.state / "journal.db").exists()
    box.up()  # an automatic start uses the same store
    assert box.client.daemon()["store"] == status["store"]
    assert box.job(job)["result"] == 3


def _holds(path: Path, text: bytes) -> bool:
    return text in path.read_bytes()


def test_variable_and_configuration_select_a_store(
    server: Server, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = server.url(), server.url()
    (idle.home / "config.toml").write_text(f'[store]\nurl = "{one}"\n')
    assert one.rpartition("=")[2] in idle.start().client.daemon()["store"]
    idle.stoker("daemon", "stop", check=True)
    monkeypatch.setenv("STOKER_DB", two)
    assert two.rpartition("=")[2] in idle.start().client.daemon()["store"]
    idle.stoker("daemon", "restart", "--db", "sqlite", check=True)
    assert idle.client.daemon()["store"] == "sqlite"
    idle.stoker("daemon", "restart", "--db", "postgres", check=True)
    assert two.rpartition("=")[2] in idle.client.daemon()["store"]


def test_postgres_without_a_url_uses_the_settings_of_libpq(
    server: Server, idle: DaemonFixture
) -> None:
    schema = server.sql("DROP SCHEMA IF EXISTS stoker CASCADE", "stoker")
    assert schema == []
    env = {"PGHOST": str(server.directory), "PGUSER": "stoker", "PGDATABASE": "stoker"}
    assert idle.stoker("daemon", "start", "--db", "postgres", env=env).returncode == 0
    assert idle.client.daemon()["store"] == "postgresql: (schema stoker)"
    assert idle.end_of(idle.submit("exit 4"))["result"] == 4
    assert server.sql("SELECT code FROM stoker.jobs", "stoker") == [(4,)]


def test_feed_without_a_daemon_uses_the_same_store(server: Server, idle: DaemonFixture) -> None:
    box = started(idle, server.url())
    box.stoker("daemon", "stop", check=True)
    assert box.stoker("feed", "--gpus", "0,1", input="true\nexit 5\n").returncode == 1
    box.up()
    ended = sorted(box.client.history()["jobs"], key=lambda job: int(job["id"]))
    assert [job["result"] for job in ended] == [0, 5]
    assert not (box.state / "journal.db").exists()


def test_a_daemon_without_its_state_directory_continues_the_state(
    server: Server, idle: DaemonFixture
) -> None:
    box = started(idle, url := server.url())
    assert box.end_of(box.submit("exit 3"))["result"] == 3
    box.client.listen("127.0.0.1:0")
    assert box.stoker("daemon", "restart").returncode == 0
    names = ("install", "token", "report-key")
    before = [(box.state / name).read_text() for name in names]
    box.stoker("daemon", "stop", check=True)
    shutil.rmtree(box.state)
    started(box, url)
    assert [(box.state / name).read_text() for name in names] == before
    assert box.job("1")["result"] == 3
    assert box.submit("true") == "2"


def test_jobs_left_in_sqlite_are_reported_once(server: Server, box: DaemonFixture) -> None:
    old = box.submit("exit 3")
    box.end_of(old)
    assert box.stoker("daemon", "restart", "--db", server.url()).returncode == 0
    assert box.log.count("1 earlier job remains in") == 1
    new = box.submit("exit 4")
    assert int(new) > int(old)  # the old log still belongs to the old job
    assert box.end_of(new)["result"] == 4
    box.stoker("daemon", "restart", check=True)
    assert box.log.count("earlier job remains in") == 1
    assert box.stoker("queue").stderr == ""
    assert box.stoker("daemon", "restart", "--db", "sqlite").returncode == 0
    assert box.job(old)["result"] == 3
    assert int(box.submit("true")) > int(new)


# -- failures -----------------------------------------------------------------------------


def test_a_second_daemon_on_the_same_store_is_rejected_with_its_holder(
    server: Server, box: DaemonFixture, tmp_path: Path
) -> None:
    url = server.url()
    box.stoker("daemon", "restart", "--db", url, check=True)
    (tmp_path / "other").mkdir(mode=0o700)
    other = {"STOKER_HOME": str(tmp_path / "other")}
    code, stderr = refused(box, "daemon", "start", "--db", url, **other)
    assert code == 1
    assert f"in use by the daemon with pid {box.pid} on {os.uname().nodename[:24]}" in stderr
    assert box.end_of(box.submit("exit 2"))["result"] == 2


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("postgresql://ada:s3cret@127.0.0.1:1/lab", 4, "cannot be reached: Connection refused"),
        ("postgresql://guarded:s3cret@/stoker?host={host}", 5, "password authentication failed"),
        ("postgresql://stoker@/nothing?host={host}", 1, "does not exist. Create it first"),
        ("mysql://ada:s3cret@db/lab", 2, "--db must be sqlite, postgres, or a URL such as"),
        ("postgresql://ada:s3c@s3cret@db", 2, "write %40"),
        ("postgresql://ada:s3cret@db/lab?colour=red", 2, "is invalid; write"),
    ],
)
def test_an_unreachable_store_is_reported_and_changes_nothing(
    server: Server, idle: DaemonFixture, url: str, code: int, words: str
) -> None:
    url = url.format(host=server.directory)
    exit_code, stderr = refused(idle, "daemon", "start", "--gpus", "0,1", "--db", url)
    assert (exit_code, words in stderr, "s3cret" in stderr) == (code, True, False), stderr
    assert "s3cret" not in idle.log
    assert not (idle.state / "store.json").exists()
    assert not (idle.state / "declared.json").exists()
    assert refused(idle, "feed", STOKER_DB=url)[0] == code
    assert idle.start().client.daemon()["store"] == "sqlite"
    before = idle.pid
    exit_code, stderr = refused(idle, "daemon", "restart", "--db", url)
    assert (exit_code, words in stderr, "s3cret" in stderr) == (code, True, False), stderr
    assert idle.pid == before


def test_a_newer_schema_is_rejected(server: Server, idle: DaemonFixture) -> None:
    url = server.url("newer")
    started(idle, url).stoker("daemon", "stop", check=True)
    server.sql("UPDATE newer.meta SET number = 99 WHERE key = 'layout'", "stoker")
    code, stderr = refused(idle, "submit", "true")
    assert (code, "was written by a newer stoker" in stderr) == (1, True)
    server.sql("DROP SCHEMA newer CASCADE", "stoker")


def test_a_missing_driver_is_reported(idle: DaemonFixture, tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('not here')\n")
    path = str(tmp_path)
    code, stderr = refused(idle, "daemon", "start", "--db", "postgresql://db", PYTHONPATH=path)
    assert (code, "pip install 'stoker[postgres]'" in stderr) == (1, True)
    assert idle.start().client.daemon()["store"] == "sqlite"


# -- crashes ------------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_daemon_and_server_killed_repeatedly_lose_no_job_and_run_none_twice(
    fragile: Server, idle: DaemonFixture
) -> None:
    box, chance = started(idle, fragile.url(), "{gpu:4,cpu:4}"), random.Random(6)
    runs = box.user / "runs"
    text, codes = lines(chance, runs, 80)
    expected = dict(zip(ids(box.submit("--each-line", "-", input=text)), codes, strict=True))
    again = box.submit(
        "--retries", "3", "--retry-on", "exit:9", AGAIN.format(runs=runs, times=2, code=9)
    )
    chain = [again]
    for _ in range(3):
        line = ONCE.format(runs=runs, nap=0.1, code=0)
        chain.append(box.submit("--gpus", "1", "-d", f"afterok:{chain[-1]}", line))
    expected.update(dict.fromkeys(map(int, chain), 0))

    for turn in range(16):
        waking = box.popen("queue", "--json", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.0, 0.7))  # anywhere between its first step and full work
        if turn % 3 == 2:
            fragile.restart("immediate")
        elif turn % 3 == 1 or turn < 4:
            fragile.end_sessions()
        if turn % 4 != 3 and (daemon := box.lock_pid) is not None:
            kill(daemon)
        waking.wait(60)

    box.up()
    done = box.client.wait([str(job) for job in expected], timeout=90)
    assert done["finished"], box.client.jobs()["counts"]
    results = {job["id"]: (job["state"], job["result"]) for job in done["jobs"]}
    wrong = {
        job: results[job]
        for job, code in expected.items()
        if results[job] != ("COMPLETED" if code == 0 else "FAILED", code)
    }
    assert wrong == {}
    assert {key: count for key, count in ran(runs).items() if count > 1} == {}
    count = times_run(runs)
    assert {job: count[job] for job in expected if count[job] != 1} == {int(again): 2}
    assert set(count) == set(expected)
    numbers = [row[0] for row in fragile.sql(f"SELECT seq FROM {_schema(box)}.events", "stoker")]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))  # type: ignore[type-var]


def _schema(box: DaemonFixture) -> str:
    return str(box.client.daemon()["store"]).rpartition("(schema ")[2].rstrip(")")


@pytest.mark.timeout(120)
def test_submissions_acknowledged_while_the_server_crashed_exist_and_run_once(
    fragile: Server, idle: DaemonFixture
) -> None:
    box, chance = started(idle, fragile.url(), "{gpu:4,cpu:4}"), random.Random(7)
    runs = box.user / "runs"
    daemon, acknowledged = box.pid, []
    for turn in range(8):
        line = ONCE.format(runs=runs, nap=0, code=0)
        submitting = [box.popen("submit", line) for _ in range(3)]
        time.sleep(chance.uniform(0.0, 0.4))
        if turn % 2:
            fragile.end_sessions()
        else:
            fragile.restart("immediate")
        for process in submitting:
            label = process.communicate(timeout=60)[0].decode().strip()
            assert process.returncode == 0
            acknowledged += ids(label)
    assert len(acknowledged) == len(set(acknowledged)) == 24
    done = box.client.wait([str(job) for job in acknowledged], timeout=60)
    assert done["finished"]
    assert {job["state"] for job in done["jobs"]} == {"COMPLETED"}
    count = times_run(runs)
    assert {job: count[job] for job in acknowledged if count[job] != 1} == {}
    assert box.pid == daemon  # the same daemon as before


def test_a_server_that_does_not_return_ends_the_daemon_and_jobs_continue(
    fragile: Server, idle: DaemonFixture
) -> None:
    (idle.home / "config.toml").write_text("[store]\npatience = 1\n")
    box = started(idle, fragile.url())
    go = box.user / "go"
    job = box.submit(f"echo ready; until [ -e {go} ]; do sleep 0.05; done; exit 6")
    box.says(job, "ready")
    daemon, pid = box.pid, box.pid_of(job)
    fragile.stop()
    box.stoker("submit", "true", timeout=60)  # so that it notices
    until(lambda: not alive(daemon))
    code, stderr = refused(box, "submit", "true")
    assert (code, "cannot be reached" in stderr) == (4, True), stderr
    assert alive(pid)
    go.touch()
    until(lambda: not alive(pid))
    fragile.start()
    assert box.up().end_of(job)["result"] == 6
