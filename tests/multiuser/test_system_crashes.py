"""The three programs are killed while jobs of three users run: nothing is lost or doubled."""

import contextlib
import json
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from multiuser.conftest import Machine
from multiuser.gate_process import GateProcess
from multiuser.system_daemon import SystemDaemon, UserClient, executors_of

JOBS = 12
LINE = 'echo "$STOKER_JOB_ID $(id -u)" >>ran; sleep 0.1; exit 7'
SECONDS = 120
Json = dict[str, Any]


def surely(client: UserClient, method: str, path: str, body: Json) -> Json:
    """Send a request until it is answered, as clients do: a submission has a key."""
    end = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(OSError):
            status, data = client.send(method, path, body)
            if status < 400:
                return dict(json.loads(data))
            assert status in (502, 503), data
        assert time.monotonic() < end
        time.sleep(0.05)


def submit(client: UserClient, line: str = LINE) -> int:
    assert client.user is not None
    body: Json = {
        "what": {"line": line}, "directory": str(client.user.home), "key": secrets.token_hex(8),
        "environment": client.user.environment(),
    }  # fmt: skip
    return int(surely(client, "POST", "/jobs", body)["first"])


def kill_gate(machine: Machine, system: SystemDaemon) -> None:
    system.gate.end()
    system.gate.start()


def kill_daemon(machine: Machine, system: SystemDaemon) -> None:
    system.end()
    system.start()


def kill_executors(machine: Machine, system: SystemDaemon) -> None:
    for user in machine.people:
        for pid in executors_of(user):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_all(machine: Machine, system: SystemDaemon) -> None:
    system.gate.end()
    kill_executors(machine, system)
    system.end()
    system.start()
    system.gate.start()


@pytest.mark.parametrize("kill", [kill_gate, kill_daemon, kill_executors, kill_all])
def test_nothing_is_lost_doubled_or_run_as_another_user(
    machine: Machine, system: SystemDaemon, kill: Callable[[Machine, SystemDaemon], None]
) -> None:
    clients = [system.client(user) for user in machine.people]
    for user in machine.people:
        (user.home / "ran").unlink(missing_ok=True)
    jobs: dict[int, list[int]] = {user.uid: [] for user in machine.people}
    for number in range(JOBS):
        for client in clients:
            assert client.user is not None
            jobs[client.user.uid].append(submit(client))
        if number % 3 == 2:
            kill(machine, system)
    for client in clients:
        assert client.user is not None
        own = jobs[client.user.uid]
        body = {"select": [str(job) for job in own], "timeout": SECONDS}
        reply = surely(client, "POST", "/wait", body)
        assert reply["finished"], (reply, system.log(), system.gate.log())
        views = reply["jobs"]
        ends = Counter((view["exit_code"], view["user"]) for view in views)
        assert ends == {(7, client.user.name): JOBS}, (views, system.log())
        ran = (client.user.home / "ran").read_text().splitlines()
        assert Counter(ran) == {f"{job} {client.user.uid}": 1 for job in own}
    assert len({job for own in jobs.values() for job in own}) == JOBS * len(clients)


def test_jobs_that_run_survive_all_three_programs(machine: Machine, system: SystemDaemon) -> None:
    clients = [system.client(user) for user in machine.people[:2]]
    jobs = [submit(client, "sleep 4; echo done; exit 3") for client in clients]
    for client, job in zip(clients, jobs, strict=True):
        client.until(job, "RUNNING")
    kill_all(machine, system)
    for client, job in zip(clients, jobs, strict=True):
        [view] = client.wait(job)
        assert (view["exit_code"], view["attempt"]) == (3, 0)
        assert client.log(job) == "done\n"


def test_an_exit_while_no_program_runs_is_found(machine: Machine, system: SystemDaemon) -> None:
    ana = system.client(machine.ana)
    job = submit(ana, "sleep 1; exit 5")
    ana.until(job, "RUNNING")
    system.gate.end()
    system.end()
    for pid in executors_of(machine.ana):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    exits = system.gate.users_dir / str(machine.ana.uid) / "exits"
    while not any(path.stat().st_size for path in exits.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.05)
    system.gate.start()
    system.start()
    [view] = ana.wait(job)
    assert (view["exit_code"], view["attempt"]) == (5, 0)


def test_the_daemon_serves_when_the_gate_starts_after_it(
    machine: Machine, idle_gate: GateProcess
) -> None:
    idle_gate.start()
    system = SystemDaemon(idle_gate).start()
    try:
        idle_gate.end(signal.SIGTERM)
        system.end(signal.SIGTERM)
        system.start()
        idle_gate.start()
        assert system.client(machine.ana).run("true")["state"] == "COMPLETED"
    finally:
        system.close()
