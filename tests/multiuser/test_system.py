"""Jobs of several users through gate, system daemon and user executors."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from multiuser import users
from multiuser.conftest import Machine
from multiuser.gate_process import GateProcess
from multiuser.system_daemon import Rejected, SystemDaemon, executors_of

# ------------------------------------------------------------------- jobs run as their submitter


def test_a_job_runs_as_its_submitter_with_its_directory_and_environment(
    machine: Machine, system: SystemDaemon
) -> None:
    ana = system.client(machine.ana)
    line = "id -u; id -g; pwd; umask; echo $HOME; grep CapEff /proc/self/status; env"
    view = ana.run(line)
    assert view["state"] == "COMPLETED", (view, system.log(), system.gate.log())
    lines = ana.log(view["id"]).splitlines()
    user = machine.ana
    assert lines[:5] == [str(user.uid), str(user.gid), str(user.home), "0022", str(user.home)]
    assert lines[5].split() == ["CapEff:", "0000000000000000"]
    assert "STOKER_MODE=system" in lines
    assert not [name for name in lines if name.startswith(("STOKER_HOME=", "STOKER_CONFIG="))]


def test_variables_of_a_submission_reach_the_job_and_no_other_program(
    machine: Machine, system: SystemDaemon
) -> None:
    ana = system.client(machine.ana)
    library = machine.ana.home / "evil.so"
    given = machine.ana.environment() | {
        "LD_PRELOAD": str(library), "PYTHONPATH": "/nowhere", "BASH_ENV": "/nowhere",
        "STOKER_HOME": "/nowhere", "HUGE": "x" * 100_000,
    }  # fmt: skip
    view = ana.run("echo $LD_PRELOAD $PYTHONPATH; sleep 0.2", environment=given)
    assert f"{library} /nowhere" in ana.log(view["id"]).splitlines()
    executors = list(executors_of(machine.ana))
    assert executors
    for pid in (system.gate.pid, system.pid, *executors):
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"evil.so" not in file.read()


def test_jobs_of_three_users_run_as_themselves_at_the_same_time(
    machine: Machine, system: SystemDaemon
) -> None:
    clients = {user.uid: system.client(user) for user in machine.people}
    jobs = {
        uid: [client.submit("id -u; sleep 0.1", options={"cpus": 1}) for _ in range(4)]
        for uid, client in clients.items()
    }
    for uid, client in clients.items():
        for view in client.wait(*jobs[uid]):
            assert view["state"] == "COMPLETED"
            assert client.log(view["id"]) == f"{uid}\n"


def test_a_script_and_an_array_run_as_their_user(machine: Machine, system: SystemDaemon) -> None:
    ana = system.client(machine.ana)
    what = {"script": "#!/bin/sh\nid -u\necho $STOKER_ARRAY_INDEX\n", "script_name": "s.sh"}
    first = ana.submit("", what=what, options={"array": "0-2"})
    views = ana.wait(first, first + 1, first + 2)
    assert [view["state"] for view in views] == ["COMPLETED"] * 3
    logs = {ana.log(view["id"]) for view in views}
    assert logs == {f"{machine.ana.uid}\n{index}\n" for index in range(3)}


def test_a_sweep_runs_as_its_user(machine: Machine, system: SystemDaemon) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    body = {
        "definition": {"command": ["sh", "-c", "id -u; echo {lr}"],
                       "parameters": {"lr": {"values": [1, 2]}}, "method": "grid", "name": "s"},
        "directory": str(machine.ana.home), "environment": machine.ana.environment(),
    }  # fmt: skip
    sweep = ana.ask("POST", "/sweeps", body)["sweep"]
    ana.ask("POST", "/wait", {"select": [str(sweep)], "timeout": 60})
    detail = ana.ask("GET", f"/sweeps/{sweep}")
    assert [trial["state"] for trial in detail["trials"]] == ["COMPLETED"] * 2
    assert ana.log(detail["trials"][0]["id"]).startswith(f"{machine.ana.uid}\n")
    with pytest.raises(Rejected, match="belongs to"):
        ben.ask("GET", f"/sweeps/{sweep}")
    with pytest.raises(Rejected, match="belongs to"):
        ben.ask("POST", f"/sweeps/{sweep}", {"max_running": 1})


# -------------------------------------------------------------------------------- logs and views


def test_the_log_of_a_job_is_its_users_and_is_read_by_its_users_process(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    job = ana.run("for i in 1 2 3; do echo line $i; done")["id"]
    assert ana.log(job) == "line 1\nline 2\nline 3\n"
    assert ana.log(job, "?tail=1") == "line 3\n"
    with pytest.raises(Rejected, match="belongs to") as rejected:
        ben.log(job)
    assert rejected.value.status == 403
    assert system.client(None).log(job, "?tail=2") == "line 2\nline 3\n"
    log = system.gate.users_dir / str(machine.ana.uid) / "logs" / f"{job}.out"
    assert log.stat().st_uid == machine.ana.uid
    assert machine.ben.run("cat", log).returncode != 0
    assert machine.daemon.run("cat", log, cwd="/").returncode != 0


def test_a_log_is_followed_while_the_job_runs(machine: Machine, system: SystemDaemon) -> None:
    ana = system.client(machine.ana)
    fifo = machine.ana.home / "go"
    os.mkfifo(fifo)
    os.chown(fifo, machine.ana.uid, machine.ana.gid)
    job = ana.submit(f"echo before; read line < {fifo}; echo $line")
    ana.until(job, "RUNNING")
    with ana.connect() as client:
        client.sendall(b"GET /v1/jobs/%d/log?follow=1 HTTP/1.1\r\nHost: stoker\r\n\r\n" % job)
        data = b""
        while b"before" not in data:
            data += client.recv(4096)
        fifo.write_text("after\n")
        while b"after" not in data:
            data += client.recv(4096)
    fifo.unlink()


def test_the_end_of_a_failed_jobs_output_is_shown_to_its_user(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    job = ana.run("echo secret words; exit 3")["id"]
    [view] = ana.ask("GET", "/jobs?tail=3")["jobs"]
    assert (view["id"], view["tail"], view["exit_code"]) == (job, ["secret words"], 3)
    [view] = ben.ask("GET", "/jobs?tail=3")["jobs"]
    assert (view["state"], view["user"]) == ("FAILED", machine.ana.name)
    assert "secret" not in json.dumps(view)


@pytest.mark.parametrize("replace", [os.mkfifo, lambda path: path.symlink_to("/etc/shadow")])
def test_a_log_that_cannot_be_read_is_an_error(
    machine: Machine, system: SystemDaemon, replace: Callable[[Path], None]
) -> None:
    ana = system.client(machine.ana)
    job = ana.run("echo output")["id"]
    (view,) = ana.wait(job)
    log = Path(view["log"])
    log.unlink()
    replace(log)
    status, reply = ana.send("GET", f"/jobs/{job}/log")
    assert (status, b"cannot be read" in reply, b"output" in reply) == (409, True, False)


def test_live_and_event_streams_are_filtered(machine: Machine, system: SystemDaemon) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    seen: dict[str, bytes] = {}
    for name, client in (("ana", ana), ("ben", ben)):
        before = client.ask("GET", "/daemon")["seq"]
        job = ana.run("echo secretword >/dev/null", options={"name": f"for-{name}"})["id"]
        with client.connect() as stream:
            request = f"GET /v1/events?after={before} HTTP/1.1\r\nHost: stoker\r\n\r\n"
            stream.sendall(request.encode())
            own = client.run("true")["id"]
            data = b""
            while f'"job":{own}'.encode() not in data:
                data += stream.recv(65536)
        seen[name] = data
        assert (f'"job":{job}'.encode() in data) is (name == "ana")
    assert b"secretword" in seen["ana"]
    assert b"secretword" not in seen["ben"]
    status, columns = ben.send("GET", "/jobs/columns?finished=1")
    assert status == 200
    assert b"for-ana" in columns
    assert b"secretword" not in columns


# --------------------------------------------------------------------------------------- rights


def test_jobs_of_others_are_changed_by_leaders_and_administrators_only(
    machine: Machine, gate: GateProcess
) -> None:
    group = f"{machine.ana.name}g"
    subprocess.run(["groupadd", "--users", machine.ana.name, group], check=True)
    system = SystemDaemon(gate)
    system.configure(f'[groups.{group}]\nleaders = ["{machine.cleo.name}"]')
    try:
        system.start()
        ana, ben, cleo = (system.client(user) for user in machine.people)
        for client in (cleo, system.client(None), ana):
            job = ana.submit("sleep 100")
            for verb in ("cancel", "kill", "pause", "hold"):
                with pytest.raises(Rejected) as rejected:
                    ben.ask("POST", f"/{verb}", {"select": [str(job)]})
                assert rejected.value.code == "permission"
            client.ask("POST", "/cancel", {"select": [str(job)]})
            assert ana.wait(job)[0]["state"] == "CANCELLED"
        acts = system.client(None).ask("GET", "/acts")["acts"]
        assert [act["uid"] for act in acts] == [machine.cleo.uid, 0, machine.ana.uid]
        assert {act["verb"] for act in acts} == {"POST /cancel"}
        assert [act["uid"] for act in ana.ask("GET", "/acts")["acts"]] == [machine.ana.uid]
    finally:
        system.close()
        subprocess.run(["groupdel", group], check=True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/queues", {"name": "mine"}), ("POST", "/policies", {"name": "fifo"}),
        ("POST", "/drain", {"select": ["all"]}), ("POST", "/daemon/stop", {}),
        ("POST", "/listen", {"address": "127.0.0.1:0"}), ("POST", "/backup", {"path": "/tmp/x"}),
        ("POST", "/nodes", {"name": "n", "address": "ssh://h"}), ("DELETE", "/queues/q", None),
    ],
)  # fmt: skip
def test_what_all_share_is_changed_by_administrators_only(
    machine: Machine, system: SystemDaemon, method: str, path: str, body: object
) -> None:
    with pytest.raises(Rejected) as rejected:
        system.client(machine.ana).ask(method, path, body)
    assert (rejected.value.status, rejected.value.code) == (403, "permission")


def test_other_machines_are_refused_in_one_sentence(system: SystemDaemon) -> None:
    with pytest.raises(Rejected, match="own machine only"):
        system.client(None).ask("POST", "/nodes", {"name": "n", "address": "ssh://host"})


def test_other_machines_in_the_configuration_are_refused(
    machine: Machine, gate: GateProcess
) -> None:
    system = SystemDaemon(gate)
    system.configure('[nodes.far]\naddress = "ssh://host"')
    with pytest.raises(AssertionError, match="own machine only"):
        system.start()


def test_the_system_daemon_refuses_to_run_as_root(machine: Machine) -> None:
    program = [str(machine.installation.python), "-I", "-m", "stoker.daemon", "--system"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "must not be started by root" in done.stderr


def test_a_uid_in_a_request_is_not_believed(machine: Machine, system: SystemDaemon) -> None:
    ben = system.client(machine.ben)
    body = {
        "what": {"line": "id -u"}, "directory": "/", "user": machine.ana.name,
        "uid": machine.ana.uid, "environment": {"USER": machine.ana.name, "PATH": "/usr/bin:/bin"},
    }  # fmt: skip
    status, data = ben.send("POST", "/jobs", body, {"X-Uid": str(machine.ana.uid)})
    if status < 400:
        job = json.loads(data)["first"]
        assert ben.wait(job)[0]["user"] == machine.ben.name
        assert ben.log(job) == f"{machine.ben.uid}\n"


# ---------------------------------------------------------------- users that may not run jobs


def test_a_submission_of_root_is_refused_unless_it_is_allowed(system: SystemDaemon) -> None:
    body = {"what": {"line": "true"}, "directory": "/", "environment": {}}
    with pytest.raises(Rejected, match="may not run jobs here: uid 0 belongs") as rejected:
        system.client(None).ask("POST", "/jobs", body)
    assert rejected.value.status == 403


def test_a_job_of_a_user_that_the_gate_refuses_says_why_it_waits(
    machine: Machine, idle_gate: GateProcess
) -> None:
    idle_gate.configure(deny_users=[machine.ana.name])
    idle_gate.start()
    system = SystemDaemon(idle_gate).start()
    try:
        ana = system.client(machine.ana)
        job = ana.submit("id")
        end = time.monotonic() + 60
        while "deny_users" not in (ana.show(job)["reason_text"] or ""):
            assert time.monotonic() < end, ana.show(job)
            time.sleep(0.05)
        assert system.client(machine.ben).run("true")["state"] == "COMPLETED"
    finally:
        system.close()


def test_jobs_of_a_deleted_user_wait_and_no_other_user_gets_them(
    machine: Machine, system: SystemDaemon
) -> None:
    homes = machine.ana.home.parent
    dora = users.add_user("dora", homes)
    job = system.client(dora).submit("id", options={"hold": True})
    users.remove_user(dora.name)
    root = system.client(None)
    root.ask("POST", "/release", {"select": [str(job)]})
    end = time.monotonic() + 60
    while "account" not in (root.show(job)["reason_text"] or ""):
        assert time.monotonic() < end, root.show(job)
        time.sleep(0.05)
    shutil.rmtree(dora.home)
    eve = users.add_user("eve", homes, "--uid", str(dora.uid))
    try:
        rejected = ""
        while f"belonged to {dora.name}" not in rejected:  # names are remembered for ten seconds
            assert time.monotonic() < end
            try:
                system.client(eve).show(job)
            except Rejected as error:
                rejected = error.message
            time.sleep(0.05)  # the gate limits connections per second
        root.ask("POST", "/edit", {"select": [str(job)], "options": {"begin": "now"}})
        while f"belonged to {dora.name}" not in (root.show(job)["reason_text"] or ""):
            assert time.monotonic() < end, root.show(job)
            time.sleep(0.05)
        assert not (system.gate.users_dir / str(dora.uid)).exists()
        assert system.client(machine.ben).run("true")["state"] == "COMPLETED"
    finally:
        users.remove_user(eve.name)


# ------------------------------------------------------------------------- GPUs shared by users


def gpu_system(gate: GateProcess) -> SystemDaemon:
    system = SystemDaemon(gate)
    system.configure(gpus="0=24G")
    return system.start()


def test_a_gpu_is_shared_by_memory_between_users(machine: Machine, gate: GateProcess) -> None:
    system = gpu_system(gate)
    try:
        ana, ben = system.client(machine.ana), system.client(machine.ben)
        options = {"epochs": "3", "gpu_memory": "8G", "single_gpu": True}
        first = ana.submit("sleep 100", options=options)
        second = ben.submit("echo $CUDA_VISIBLE_DEVICES; sleep 100", options=options)
        assert ana.until(first, "RUNNING")["devices"] == ben.until(second, "RUNNING")["devices"]
    finally:
        system.close()


def test_a_job_of_one_user_preempts_that_of_another(machine: Machine, gate: GateProcess) -> None:
    system = gpu_system(gate)
    try:
        ana = system.client(machine.ana)
        low = ana.submit("sleep 100", options={"gpus": "1", "requeue": True, "priority": "-10"})
        ana.until(low, "RUNNING")
        ben = system.client(machine.ben)
        high = ben.run("id -u", options={"gpus": "1"})
        assert high["state"] == "COMPLETED"
        assert ben.log(high["id"]) == f"{machine.ben.uid}\n"
        ana.until(low, "RUNNING", attempt=1)
    finally:
        system.close()


# ------------------------------------------------------------------------------- hostile users


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_log_path_that_is_not_a_file_of_the_user_gives_nothing_away(
    machine: Machine, system: SystemDaemon, kind: str
) -> None:
    ana = system.client(machine.ana)
    job = ana.run("true")["id"]
    log = system.gate.users_dir / str(machine.ana.uid) / "logs" / f"{job}.out"
    log.unlink()
    secret = system.state / "secret"
    secret.write_text("of the daemon")
    if kind == "link":
        machine.ana.run("ln", "-s", secret, log, check=True)
    elif kind == "fifo":
        machine.ana.run("mkfifo", log, check=True)
    else:
        machine.ana.run("mkdir", log, check=True)
    with pytest.raises(Rejected, match="cannot be read"):
        ana.log(job, "?tail=5")
    assert ana.run("echo still here")["state"] == "COMPLETED"


@pytest.mark.parametrize("path", ["{ben}/x.txt", "../../{name}/x.txt", "{state}/x.txt"])
def test_output_is_written_with_the_rights_of_the_user(
    machine: Machine, system: SystemDaemon, path: str
) -> None:
    ana = system.client(machine.ana)
    words = {"ben": machine.ben.home, "name": "etc", "state": system.state}
    view = ana.run("echo evil", options={"output": path.format(**words)})
    assert view["state"] == "FAILED"
    assert "ermission denied" in (view["cause"] or ""), view
    assert not list(machine.ben.home.glob("x.txt"))


def test_a_directory_of_another_user_is_not_entered(machine: Machine, system: SystemDaemon) -> None:
    ana = system.client(machine.ana)
    view = ana.run("pwd", directory=machine.ben.home)
    assert view["state"] == "FAILED"
    assert "ermission denied" in (view["cause"] or ""), view


def test_a_setgid_directory_gives_no_group(machine: Machine, system: SystemDaemon) -> None:
    directory = machine.ana.home / "setgid"
    directory.mkdir()
    os.chown(directory, machine.ana.uid, machine.daemon.gid)
    directory.chmod(0o2770)
    ana = system.client(machine.ana)
    view = ana.run("id -G; umask; touch f", directory=directory, umask=0o077)
    assert view["state"] == "COMPLETED", view
    groups, mask = ana.log(view["id"]).splitlines()
    assert str(machine.daemon.gid) not in groups.split()
    assert mask == "0077"


def test_too_many_connections_of_one_user_do_not_shut_out_others(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    with contextlib.ExitStack() as opened:
        for _ in range(700):
            opened.enter_context(ana.connect())
        assert ben.run("echo here")["state"] == "COMPLETED"
    end = time.monotonic() + 60
    while True:  # until the daemon has noticed that they are closed
        with contextlib.suppress(ConnectionError):
            assert ana.run("echo again")["state"] == "COMPLETED"
            return
        assert time.monotonic() < end


def test_the_daemon_has_no_rights_and_cannot_be_traced(
    machine: Machine, system: SystemDaemon
) -> None:
    with open(f"/proc/{system.pid}/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == 0
    assert status["Uid"].split()[0] == str(machine.daemon.uid)
    for user in (machine.ana, machine.daemon):
        assert user.run("cat", f"/proc/{system.pid}/environ", cwd="/").returncode != 0


def test_a_command_of_a_user_reaches_the_daemon(machine: Machine, system: SystemDaemon) -> None:
    env = {"STOKER_SYSTEM_SOCKET": str(system.gate.users_socket), "STOKER_MODE": "system"}
    done = machine.ana.run(machine.installation.command, "run", "id", "-un", env=env)
    assert (done.returncode, done.stdout) == (0, f"{machine.ana.name}\n"), done.stderr
