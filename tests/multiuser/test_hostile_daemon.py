"""A hostile program in the place of the system daemon becomes neither root nor another user."""

import contextlib
import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiuser import users
from multiuser.conftest import Machine
from multiuser.gate_actions import authorize, refusal, start, use_test_executor
from multiuser.gate_process import FakeDaemon, GateProcess, effective_user
from multiuser.users import User
from stoker.gate import protocol
from stoker.gate.protocol import CreateDeviceGroup, KillExecutor, PeerClosed, StartExecutor

AddUser = Callable[..., User]


@pytest.fixture
def idle_gate(idle_gate: GateProcess) -> GateProcess:
    use_test_executor(idle_gate)
    return idle_gate


@pytest.fixture
def add_user(machine: Machine, gate_dir: Path) -> Iterator[AddUser]:
    """`add_user("x", "--shell", "/bin/false")`: a user of this test only."""
    added: list[str] = []

    def add(word: str, *options: str) -> User:
        added.append(users.name_of(word))
        return users.add_user(word, gate_dir, *options)

    yield add
    for name in added:
        users.remove_user(name)


def account(command: str, *arguments: object) -> None:
    with users.account_lock():
        subprocess.run([command, *map(str, arguments)], check=True, capture_output=True)


def refused(gate: GateProcess, user: User) -> str:
    """Return why the gate does not start an executor for a user that has connected."""
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, user)
        return refusal(daemon, StartExecutor(user.uid))


# ----------------------------------------------------------------------- which users


def test_no_executor_of_a_user_that_has_not_connected(machine: Machine, gate: GateProcess) -> None:
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        for uid in (machine.ben.uid, machine.cleo.uid, 2**32 - 2, 123_456_789):
            assert "has not connected" in refusal(daemon, StartExecutor(uid))
    assert not list(users.processes(machine.ben.uid))


@pytest.mark.parametrize("uid", [0, 1, 33, 999, 65534])
def test_no_executor_of_root_or_of_a_uid_of_the_system(gate: GateProcess, uid: int) -> None:
    """Not even when it has connected."""
    user = User("it", uid, uid or 0, Path("/"))
    with gate.connect_daemon() as daemon:
        connection = authorize(gate, daemon, user)
        assert connection.uid == uid
        assert "system" in connection.why
        assert "has not connected" in refusal(daemon, StartExecutor(uid))
    assert not (gate.state_dir / str(uid)).exists()
    assert not (gate.users_dir / str(uid)).exists()


def test_no_executor_of_the_system_daemons_own_user(machine: Machine, gate: GateProcess) -> None:
    with gate.connect_daemon() as daemon:
        assert "system" in authorize(gate, daemon, machine.daemon).why


def test_an_authorized_uid_that_min_uid_now_excludes_gets_no_executor(
    machine: Machine, gate: GateProcess
) -> None:
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
    gate.end()
    use_test_executor(gate, min_uid=machine.ana.uid + 1000)
    gate.start()
    with gate.connect_daemon() as daemon:
        assert machine.ana.uid in daemon.uids
        assert "system" in refusal(daemon, StartExecutor(machine.ana.uid))


@pytest.mark.parametrize("shell", ["/usr/sbin/nologin", "/bin/false"])
def test_no_executor_of_an_account_that_may_not_log_in(
    gate: GateProcess, add_user: AddUser, shell: str
) -> None:
    assert "log in" in refused(gate, add_user("dora", "--shell", shell))


def test_no_executor_of_an_expired_account(gate: GateProcess, add_user: AddUser) -> None:
    user = add_user("dora", "--expiredate", "2020-01-01")
    assert "expired" in refused(gate, user)


def test_no_executor_of_an_account_that_expires_after_it_has_connected(
    gate: GateProcess, add_user: AddUser
) -> None:
    user = add_user("dora")
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, user)
        start(daemon, user).close()
        daemon.receive()
        account("usermod", "--expiredate", "2020-01-01", user.name)
        assert "expired" in refusal(daemon, StartExecutor(user.uid))


def test_no_executor_of_a_deleted_account(gate: GateProcess, add_user: AddUser) -> None:
    user = add_user("dora")
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, user)
        account("userdel", user.name)
        assert "no account" in refusal(daemon, StartExecutor(user.uid))
        assert "no account" in authorize_unknown(gate, daemon)


def authorize_unknown(gate: GateProcess, daemon: FakeDaemon) -> str:
    return authorize(gate, daemon, User("it", 54321, 54321, Path("/"))).why


def test_an_account_that_was_given_the_uid_of_another_one_does_not_get_its_files(
    gate: GateProcess, add_user: AddUser
) -> None:
    dora = add_user("dora")
    with gate.connect_daemon() as daemon:
        number = authorize(gate, daemon, dora).number
        start(daemon, dora).close()
        daemon.receive()
        daemon.send(protocol.Release(dora.uid, number))
        account("userdel", dora.name)
        emil = add_user("emil", "--uid", str(dora.uid))
        authorize(gate, daemon, emil)
        assert "belonged to" in refusal(daemon, StartExecutor(emil.uid))
        # An administrator has looked at it.
        gate.end()
        (gate.state_dir / str(dora.uid)).unlink()
        gate.start()
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, emil)
        assert start(daemon, emil).facts["environment"]["USER"] == emil.name


def test_deny_users_and_allow_groups(
    machine: Machine, idle_gate: GateProcess, add_user: AddUser
) -> None:
    ana, ben, cleo = machine.people
    dora = add_user("dora", "--groups", ben.name)
    use_test_executor(idle_gate, deny_users=[ana.name], allow_groups=[ana.name, ben.name, "none"])
    idle_gate.start()
    with idle_gate.connect_daemon() as daemon:
        for user in (ana, ben, cleo, dora):
            authorize(idle_gate, daemon, user)
        assert "deny_users" in refusal(daemon, StartExecutor(ana.uid))
        assert "allow_groups" in refusal(daemon, StartExecutor(cleo.uid))
        start(daemon, ben)
        assert sorted(start(daemon, dora).facts["groups"]) == sorted([dora.gid, ben.gid])


def test_root_runs_jobs_only_if_the_settings_allow_it(idle_gate: GateProcess) -> None:
    root = User("root", 0, 0, Path("/root"))
    use_test_executor(idle_gate, allow_root=True)
    idle_gate.start()
    with idle_gate.connect_daemon() as daemon:
        assert authorize(idle_gate, daemon, root).why == ""
        assert start(daemon, root).facts["uids"] == [0, 0, 0]


# --------------------------------------------------------------------- forged packets


@pytest.mark.parametrize(
    "packet",
    [
        b'{"start_executor":{"uid":4294967295}}',
        b'{"start_executor":{"uid":-1}}',
        b'{"start_executor":{"uid":1000,"gid":0}}',
        b'{"start_executor":{"uid":1000,"uid":0}}',
        b'{"connection":{"uid":0,"pid":1,"number":1,"why":""}}',
        b'{"create_device_group":{"uid":1000,"name":"../../memory","devices":[]}}',
        b"[" * 4000,
        b"\x00",
        b" " * 5000,
    ],
)
def test_a_forged_packet_ends_the_connection_and_nothing_else(
    machine: Machine, gate: GateProcess, packet: bytes
) -> None:
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        daemon.socket.send(packet)
        with pytest.raises((PeerClosed, ConnectionResetError)):
            daemon.receive()
    with gate.connect_daemon() as daemon:
        start(daemon, machine.ana)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_descriptors_of_the_system_daemon_are_refused_and_closed(
    machine: Machine, gate: GateProcess, count: int
) -> None:
    """Also a socket that the system daemon connected to a listener of a user."""
    ana = machine.ana
    path = str(ana.home / f"listener{count}")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as forged:
        with effective_user(ana):
            listener.bind(path)
            listener.listen()
        forged.connect(path)
        assert protocol.credentials(forged)[1] == ana.uid
        with gate.connect_daemon() as daemon:
            before = descriptors(gate.pid)
            socket.send_fds(
                daemon.socket, [protocol.encode(StartExecutor(ana.uid))], [forged.fileno()] * count
            )
            with pytest.raises((PeerClosed, ConnectionResetError)):
                daemon.receive()
        with gate.connect_daemon() as daemon:
            assert ana.uid not in daemon.uids
            assert descriptors(gate.pid) == before
            assert "has not connected" in refusal(daemon, StartExecutor(ana.uid))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_system_daemon_that_sends_and_never_reads_stops_itself_only(
    machine: Machine, gate: GateProcess
) -> None:
    """The gate does not read further requests before it got rid of its answers."""
    with gate.connect_daemon() as daemon:
        daemon.socket.setblocking(False)
        request = protocol.encode(StartExecutor(machine.ana.uid))
        with pytest.raises(BlockingIOError):
            fill(daemon.socket, request)
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        start(daemon, machine.ana)


def fill(peer: socket.socket, packet: bytes) -> None:
    for _ in range(100_000):
        peer.send(packet)


def test_a_flood_of_requests_starts_no_more_than_a_few_executors(
    machine: Machine, gate: GateProcess
) -> None:
    ana = machine.ana
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, ana)
        answers = [daemon.ask(StartExecutor(ana.uid))[0] for _ in range(50)]
        started = [answer for answer in answers if isinstance(answer, protocol.Executor)]
        assert len(started) == 4
        assert len(list(users.processes(ana.uid))) == 4


# ----------------------------------------------------------------- other processes


def test_only_the_user_of_the_system_daemon_may_be_it(machine: Machine, gate: GateProcess) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        with effective_user(machine.ana), pytest.raises(PermissionError):
            peer.connect(str(gate.daemon_socket))
        peer.settimeout(30)
        peer.connect(str(gate.daemon_socket))  # root may, by the mode of the socket
        with pytest.raises((PeerClosed, ConnectionResetError)):
            protocol.receive_notice(peer)


def test_there_is_one_system_daemon_at_a_time(machine: Machine, gate: GateProcess) -> None:
    with gate.connect_daemon() as daemon:
        with pytest.raises((PeerClosed, ConnectionResetError)):
            gate.connect_daemon()
        authorize(gate, daemon, machine.ana)
    with gate.connect_daemon():
        pass


def test_only_processes_that_the_gate_started_for_that_user_are_killed(
    machine: Machine, gate: GateProcess
) -> None:
    ana, ben = machine.ana, machine.ben
    other = ana.popen("sleep", "600")
    with gate.connect_daemon() as daemon:
        for user in (ana, ben):
            authorize(gate, daemon, user)
        executor = start(daemon, ana)
        for uid, pid in (
            (ben.uid, executor.pid), (0, 1), (ana.uid, 1), (ana.uid, os.getpid()),
            (ana.uid, other.pid), (ana.uid, gate.pid), (ana.uid, 0),
        ):  # fmt: skip
            assert "no executor" in refusal(daemon, KillExecutor(uid, pid))
        assert executor.evaluate("1") == "1"
        assert other.poll() is None
        ended, _ = daemon.ask(KillExecutor(ana.uid, executor.pid))
        assert ended == protocol.Ended(ana.uid, executor.pid, -9)
        assert "no executor" in refusal(daemon, KillExecutor(ana.uid, executor.pid))
    other.kill()
    other.wait()


def test_a_user_without_descriptors_or_processes_left_hurts_only_itself(
    machine: Machine, gate: GateProcess
) -> None:
    """Connections that are never used cost the gate nothing once they are handed over."""
    with gate.connect_daemon() as daemon:
        before = descriptors(gate.pid)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        try:
            for _ in range(900):
                gate.connect(machine.ana)
                daemon.receive()
            with gate.connect(machine.ben):
                notice, _ = daemon.receive()
        finally:
            gate.opened.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert notice.uid == machine.ben.uid
        assert descriptors(gate.pid) <= before + 1


def test_no_device_group_of_a_user_that_has_not_connected(
    machine: Machine, gate: GateProcess
) -> None:
    with gate.connect_daemon() as daemon:
        answer, _ = daemon.ask(CreateDeviceGroup(machine.ana.uid, "1.0", []))
        assert isinstance(answer, protocol.DeviceGroup)
        assert (answer.path, "has not connected" in answer.why) == ("", True)


# ------------------------------------------------------------------------------ fuzzing

UIDS = st.sampled_from([0, 1, 999, 65534, 2**32 - 2]) | st.integers(1000, 2**32 - 2)


def requests(ana: int, ben: int) -> st.SearchStrategy[bytes]:
    """Return packets: well-formed requests about ana, ben and others, and other bytes."""
    uid = st.sampled_from([ana, ben]) | UIDS
    pid = st.integers(0, 2**31 - 1)
    devices = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)).map(list), max_size=3)
    name = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,5}", fullmatch=True)
    well_formed = st.one_of(
        st.builds(StartExecutor, uid),
        st.builds(KillExecutor, uid, pid),
        st.builds(protocol.Release, st.just(ben) | UIDS, st.integers(0, 2**63 - 1)),
        st.builds(CreateDeviceGroup, st.just(ben) | UIDS, name, devices),
        st.builds(protocol.RemoveDeviceGroup, uid, name),
    )
    return well_formed.map(protocol.encode) | st.binary(min_size=1, max_size=4200)


def test_whatever_is_sent_nothing_runs_as_a_user_that_has_not_connected(
    machine: Machine, gate: GateProcess
) -> None:
    ana, ben = machine.ana, machine.ben
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, ana)

    @settings(max_examples=100)
    @given(st.lists(requests(ana.uid, ben.uid), min_size=1, max_size=10))
    def send_all(packets: list[bytes]) -> None:
        with gate.connect_daemon() as daemon:
            assert daemon.uids == [ana.uid]
            for packet in packets:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    daemon.socket.send(packet)
            daemon.socket.shutdown(socket.SHUT_WR)
            while True:  # the gate answers everything before it sees the end
                try:
                    notice, peer = daemon.receive()
                except (PeerClosed, ConnectionResetError):
                    break
                if isinstance(notice, protocol.Executor):
                    assert notice.uid == ana.uid
                if peer is not None:
                    peer.close()
        assert not list(users.processes(ben.uid))

    send_all()
    assert gate.process is not None
    assert gate.process.poll() is None
