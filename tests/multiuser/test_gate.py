"""The gate hands over connections with the uid that the kernel knows, and starts executors."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from multiuser.conftest import Machine
from multiuser.gate_actions import authorize, refusal, start, use_test_executor
from multiuser.gate_process import GateProcess
from stoker.gate import protocol

GATE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NOT_OF_THE_GATE = sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ, 32, 33))
"""Bits of signals that Python itself ignores, and of those that libc lets no program change."""


@pytest.fixture
def idle_gate(idle_gate: GateProcess) -> GateProcess:
    use_test_executor(idle_gate)
    return idle_gate


def test_a_connection_arrives_with_the_uid_that_the_kernel_knows(
    machine: Machine, gate: GateProcess
) -> None:
    with gate.connect_daemon() as daemon:
        for user in machine.people:
            with gate.connect(user) as client:
                notice, passed = daemon.receive()
                assert isinstance(notice, protocol.Connection)
                assert (notice.uid, notice.pid, notice.why) == (user.uid, os.getpid(), "")
                assert passed is not None
                with passed:
                    assert protocol.credentials(passed) == (os.getpid(), user.uid)
                    client.sendall(b"hello")
                    assert passed.recv(5) == b"hello"


def test_the_executor_of_a_user_has_the_rights_of_that_user_and_nothing_of_root(
    machine: Machine, gate: GateProcess
) -> None:
    ana = machine.ana
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, ana)
        executor = start(daemon, ana)
        facts = executor.facts
        assert facts["uids"] == [ana.uid] * 3
        assert facts["gids"] == [ana.gid] * 3
        assert facts["groups"] == [ana.gid]
        assert facts["environment"] == {**ana.environment(), "LANG": "C.UTF-8", "PATH": GATE_PATH}
        assert facts["argv"][1:] == [str(gate.users_dir / str(ana.uid))]
        assert facts["umask"] == 0o077
        assert facts["cwd"] == "/"
        assert facts["session"]
        files = facts["files"]
        assert {fd: files[fd] for fd in "012"} == dict.fromkeys("012", "/dev/null")
        assert files["3"].startswith("socket:")
        assert len(files) == 4
        for line in facts["status"].splitlines():
            if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb", "SigBlk", "SigIgn")):
                assert int(line.split()[1], 16) & ~NOT_OF_THE_GATE == 0, line
        for attempt in ("os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.seteuid(0)"):
            assert executor.evaluate(attempt) == "PermissionError"
        executor.close()
        ended, _ = daemon.receive()
        assert ended == protocol.Ended(ana.uid, executor.pid, 0)


def test_the_directory_of_gpu_locks_belongs_to_the_system_daemon(
    machine: Machine, gate: GateProcess
) -> None:
    status = (gate.run_dir / "gpus").stat()
    assert (status.st_uid, status.st_gid) == (machine.daemon.uid, machine.daemon.gid)
    assert oct(status.st_mode & 0o7777) == oct(0o755)
    assert machine.ana.run("touch", gate.run_dir / "gpus/x").returncode != 0


def test_the_directory_of_a_user_belongs_to_it_with_the_group_of_the_daemon(
    machine: Machine, gate: GateProcess
) -> None:
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        start(daemon, machine.ana)
    status = (gate.users_dir / str(machine.ana.uid)).stat()
    assert (status.st_uid, status.st_gid) == (machine.ana.uid, machine.daemon.gid)
    assert oct(status.st_mode & 0o7777) == oct(0o2750)
    assert machine.ben.run("ls", gate.users_dir / str(machine.ana.uid)).returncode != 0
    assert machine.ben.run("ls", gate.users_dir).returncode != 0
    assert machine.daemon.run("ls", gate.users_dir / str(machine.ana.uid), cwd="/").returncode == 0


def test_gate_and_sockets_are_closed_to_users(machine: Machine, gate: GateProcess) -> None:
    ana = machine.ana
    # Not dumpable: its files in /proc belong to root, and ptrace is forbidden to all but root.
    assert Path(f"/proc/{gate.pid}/environ").stat().st_uid == 0
    for path in (f"/proc/{gate.pid}/mem", gate.state_dir):
        assert ana.run("head", "-c1", path).returncode != 0
    assert (gate.users_socket.stat().st_mode & 0o777) == 0o666
    assert (gate.daemon_socket.stat().st_mode & 0o777) == 0o660
    assert gate.daemon_socket.stat().st_gid == machine.daemon.gid
    assert ana.run("touch", gate.run_dir / "x").returncode != 0
    assert ana.run("mv", gate.users_socket, gate.run_dir / "x").returncode != 0


def test_users_wait_while_there_is_no_system_daemon(machine: Machine, gate: GateProcess) -> None:
    with gate.connect(machine.ana) as client:
        client.sendall(b"early")
        with gate.connect_daemon() as daemon:
            notice, passed = daemon.receive()
            assert notice.uid == machine.ana.uid
            assert passed is not None
            assert passed.recv(5) == b"early"
            passed.close()


def test_a_released_user_must_connect_again(machine: Machine, gate: GateProcess) -> None:
    ana = machine.ana
    with gate.connect_daemon() as daemon:
        first = authorize(gate, daemon, ana)
        second = authorize(gate, daemon, ana)
        assert second.number > first.number
        stale = protocol.Release(ana.uid, first.number)
        assert "connected again" in refusal(daemon, stale)
        daemon.send(protocol.Release(ana.uid, second.number))
        assert "has not connected" in refusal(daemon, protocol.StartExecutor(ana.uid))
        authorize(gate, daemon, ana)
        start(daemon, ana)


def test_a_killed_gate_leaves_executors_and_authorizations(
    machine: Machine, gate: GateProcess
) -> None:
    ana, ben, cleo = machine.people
    daemon = gate.connect_daemon()
    assert daemon.uids == []
    for user in (ana, ben, cleo):
        number = authorize(gate, daemon, user).number
    daemon.send(protocol.Release(cleo.uid, number))
    executor = start(daemon, ana)
    gate.end(signal.SIGKILL)
    with pytest.raises(protocol.PeerClosed):
        daemon.receive()
    daemon.close()
    assert executor.evaluate("1 + 1") == "2"
    gate.start()
    with gate.connect_daemon() as daemon:
        assert daemon.uids == sorted([ana.uid, ben.uid])
        assert executor.evaluate("2 + 2") == "4"
        assert authorize(gate, daemon, ana).number > number
        assert start(daemon, ben).facts["uids"] == [ben.uid] * 3
        why = refusal(daemon, protocol.KillExecutor(ana.uid, executor.pid))
        assert "this gate" in why


def test_authorizations_that_were_sent_survive_a_kill_at_any_point(
    machine: Machine, idle_gate: GateProcess
) -> None:
    """The gate is killed after each number of messages that one session can have."""
    ana, ben = machine.ana, machine.ben
    known: set[int] = set()
    for messages in range(5):
        gate = idle_gate.start()
        daemon = gate.connect_daemon()
        assert set(daemon.uids) == known
        clients = [gate.connect(user) for user in (ana, ben)]
        daemon.send(protocol.StartExecutor(ana.uid))
        daemon.send(protocol.StartExecutor(ben.uid))
        for _ in range(messages):
            notice, peer = daemon.receive()
            if isinstance(notice, protocol.Connection):
                known.add(notice.uid)
            if peer is not None:
                peer.close()
        gate.end(signal.SIGKILL)
        for client in clients:
            client.close()
        # Others may be on disk as well.
        known |= {int(path.name) for path in gate.state_dir.glob("*[0-9]")}
        daemon.close()


def test_sigterm_ends_the_gate_and_nothing_else(machine: Machine, gate: GateProcess) -> None:
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        executor = start(daemon, machine.ana)
        assert gate.end(signal.SIGTERM) == 0
        assert executor.evaluate("1") == "1"


def test_a_second_gate_ends_with_a_sentence(gate: GateProcess) -> None:
    command = [gate.installation.python, "-I", "-m", "stoker.gate", "--config", gate.config_path]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "another gate" in second.stderr
    with gate.connect_daemon():
        pass


def test_an_executor_that_does_not_exist_is_reported(
    machine: Machine, idle_gate: GateProcess
) -> None:
    idle_gate.configure(executor_command=["/usr/bin/python3-that-is-missing"])
    with pytest.raises(AssertionError, match="python3-that-is-missing"):
        idle_gate.start()
    empty = idle_gate.directory / "program"
    empty.write_text("not a program")
    empty.chmod(0o755)
    idle_gate.configure(executor_command=[str(empty)])
    with idle_gate.start().connect_daemon() as daemon:
        authorize(idle_gate, daemon, machine.ana)
        assert "Exec format" in refusal(daemon, protocol.StartExecutor(machine.ana.uid))


def test_the_gate_imports_the_standard_library_only(machine: Machine) -> None:
    code = (
        "import sys, stoker.gate.server, stoker.gate.__main__\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('stoker.')))\n"
    )
    command = [machine.installation.python, "-I", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(found[0].split()) <= {"stoker", "__main__", "sitecustomize", "apport_python_hook"}
    assert all(name.startswith("stoker.gate") for name in found[1].split())
