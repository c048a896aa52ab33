"""PAM, cgroups, GPUs and rates: what the gate sets up around a user executor."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ON_CI
from multiuser import users
from multiuser.conftest import Machine
from multiuser.gate_actions import authorize, refusal, start, use_test_executor
from multiuser.gate_process import FakeDaemon, GateProcess
from multiuser.users import User
from stoker.gate import devices, protocol
from stoker.gate.protocol import CreateDeviceGroup, RemoveDeviceGroup, StartExecutor
from stoker.gate.rate import BURST, PER_SECOND, ConnectionRate

Start = Callable[..., FakeDaemon]


@pytest.fixture
def started_gate(machine: Machine, idle_gate: GateProcess) -> Start:
    """`started_gate(pam_service="x")`: the system daemon's end, when ana has connected."""

    def run(**settings: object) -> FakeDaemon:
        use_test_executor(idle_gate, **settings)
        daemon = idle_gate.start().connect_daemon()
        authorize(idle_gate, daemon, machine.ana)
        return daemon

    return run


# ---------------------------------------------------------------------------------- PAM


@pytest.fixture
def pam_service(gate_dir: Path) -> Iterator[Callable[[str], str]]:
    """Create a PAM service with these lines; return its name."""
    name = f"stoker-test-{os.getpid()}"
    path = Path("/etc/pam.d") / name

    def create(lines: str) -> str:
        path.write_text(lines)
        return name

    yield create
    path.unlink(missing_ok=True)


def test_limits_of_pam_apply_to_the_executor(
    machine: Machine, started_gate: Start, pam_service: Callable[[str], str], gate_dir: Path
) -> None:
    limits = gate_dir / "limits.conf"
    limits.write_text(f"{machine.ana.name} hard nofile 321\n{machine.ana.name} soft nofile 123\n")
    service = pam_service(
        f"account required pam_permit.so\nsession required pam_limits.so conf={limits}\n"
    )
    executor = start(started_gate(pam_service=service), machine.ana)
    assert executor.facts["open_files"] == [123, 321]
    assert executor.facts["uids"] == [machine.ana.uid] * 3


def test_an_account_that_pam_refuses_gets_no_executor(
    machine: Machine, started_gate: Start, pam_service: Callable[[str], str]
) -> None:
    service = pam_service("account required pam_deny.so\nsession required pam_permit.so\n")
    daemon = started_gate(pam_service=service)
    assert "PAM refused" in refusal(daemon, StartExecutor(machine.ana.uid))
    assert not list(users.processes(machine.ana.uid))


def test_a_pam_session_that_fails_gets_no_executor(
    machine: Machine, started_gate: Start, pam_service: Callable[[str], str]
) -> None:
    service = pam_service("account required pam_permit.so\nsession required pam_deny.so\n")
    daemon = started_gate(pam_service=service)
    assert "(session)" in refusal(daemon, StartExecutor(machine.ana.uid))


def test_a_pam_module_that_asks_a_question_gets_no_answer(
    machine: Machine, started_gate: Start, pam_service: Callable[[str], str]
) -> None:
    service = pam_service("account required pam_unix.so\nsession required pam_permit.so\n")
    daemon = started_gate(pam_service=service)
    assert start(daemon, machine.ana).facts["uids"] == [machine.ana.uid] * 3


def test_without_a_pam_service_the_limits_are_those_the_gate_was_started_with(
    machine: Machine, started_gate: Start
) -> None:
    executor = start(started_gate(pam_service="stoker-test-missing"), machine.ana)
    assert executor.facts["open_files"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))


# ------------------------------------------------------------------------------ cgroups


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of version 2."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        path = mount / f"stoker-test-{os.getpid()}"
        if (mount / "cgroup.procs").exists() and os.access(mount, os.W_OK):
            with contextlib.suppress(OSError):
                path.mkdir()
                break
    else:
        (pytest.fail if ON_CI else pytest.skip)("needs cgroup version 2 that can be written")
    yield path
    for group in (*path.glob("*/*/"), *path.glob("*/"), path):
        group.rmdir()


def test_the_executor_is_in_a_cgroup_of_its_user_and_can_create_groups_in_it(
    machine: Machine, started_gate: Start, cgroup: Path
) -> None:
    executor = start(started_gate(cgroup=str(cgroup)), machine.ana)
    group = cgroup / f"user-{machine.ana.uid}"
    assert (group / "cgroup.procs").read_text().split() == [str(executor.pid)]
    machine.ana.run("mkdir", group / "job", check=True)
    procs = group / "job" / "cgroup.procs"
    move = f"open({str(procs)!r}, 'w').write(str(os.getpid()))"
    executor.evaluate(move)
    assert procs.read_text().split() == [str(executor.pid)]
    assert machine.ben.run("mkdir", group / "ben").returncode != 0
    escape = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0')"
    assert executor.evaluate(escape) == "PermissionError"
    users.end_processes(machine.ana.uid)


# --------------------------------------------------------------------------------- GPUs


@pytest.fixture
def device_groups() -> Iterator[Path]:
    """A directory for device groups."""
    root = devices.find_root()
    if root is None:
        (pytest.fail if ON_CI else pytest.skip)("needs the devices controller of cgroup version 1")
    path = Path(f"{root}-test-{os.getpid()}")
    yield path
    for group in (*path.glob("*/*/"), *path.glob("*/"), path):
        group.rmdir()


@pytest.fixture
def gpus(gate_dir: Path) -> list[Path]:
    """Character devices with the numbers of NVIDIA's GPUs 0 to 3 and of their control device."""
    paths = [gate_dir / f"nvidia{minor}" for minor in (0, 1, 2, 3, 255)]
    for path in paths:
        os.mknod(path, 0o666 | 0o020000, os.makedev(195, int(path.name.removeprefix("nvidia"))))
        path.chmod(0o666)
    return paths


OPEN = """
import errno, os, sys
if sys.argv[1]:
    with open(sys.argv[1], "w") as procs:
        procs.write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("open", end=" ")
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
"""
"""Joins a group; tries to open devices: ENXIO says that it may, and that there is no driver."""


def opened(user: User, group: str, paths: list[Path]) -> list[str]:
    procs = f"{group}/cgroup.procs" if group else ""
    command = ["/usr/bin/python3", "-I", "-c", OPEN, procs, *paths, "/dev/null", "/dev/urandom"]
    return user.run(*command, check=True).stdout.split()


def group_of(daemon: FakeDaemon, user: User, name: str, *minors: int) -> str:
    request = CreateDeviceGroup(user.uid, name, [[195, minor] for minor in minors])
    answer, _ = daemon.ask(request)
    assert isinstance(answer, protocol.DeviceGroup)
    assert (answer.uid, answer.name, answer.why) == (user.uid, name, "")
    return answer.path


def test_a_job_can_open_the_gpus_it_was_given_and_no_other(
    machine: Machine, started_gate: Start, device_groups: Path, gpus: list[Path]
) -> None:
    ana = machine.ana
    daemon = started_gate(device_groups=str(device_groups))
    free = ["ENXIO", "ENXIO", "ENXIO", "ENXIO", "ENXIO", "open", "open"]
    assert opened(ana, "", gpus) == free
    first = group_of(daemon, ana, "12.1", 0, 2)
    second = group_of(daemon, ana, "13.1")
    assert opened(ana, first, gpus) == ["ENXIO", "EPERM", "ENXIO", "EPERM", *free[4:]]
    assert opened(ana, second, gpus) == ["EPERM"] * 4 + free[4:]
    assert opened(ana, "", gpus) == free
    # The same name again, with other GPUs, as after a restart.
    assert group_of(daemon, ana, "12.1", 3) == first
    assert opened(ana, first, gpus) == ["EPERM"] * 3 + free[3:]


def test_device_groups_are_for_the_processes_of_their_user(
    machine: Machine, started_gate: Start, device_groups: Path, gpus: list[Path]
) -> None:
    daemon = started_gate(device_groups=str(device_groups))
    group = group_of(daemon, machine.ana, "12.1", 0)
    procs = Path(group) / "cgroup.procs"
    join = ["sh", "-c", 'echo $$ >"$0"', procs]
    assert machine.ben.run(*join).returncode != 0
    victim = machine.ben.popen("sleep", "600")
    assert machine.ana.run("sh", "-c", f"echo {victim.pid} >{procs}").returncode != 0
    victim.kill()
    victim.wait()
    for file in ("devices.allow", "devices.deny", "tasks"):
        write = ["sh", "-c", 'echo "a *:* rwm" >"$0"', f"{group}/{file}"]
        assert machine.ana.run(*write).returncode != 0
    assert machine.ana.run("mkdir", f"{group}/below").returncode != 0


def test_a_device_group_is_removed_when_its_processes_have_ended(
    machine: Machine, started_gate: Start, device_groups: Path
) -> None:
    ana = machine.ana
    daemon = started_gate(device_groups=str(device_groups))
    group = group_of(daemon, ana, "12.1", 0)
    job = ana.popen(
        "sh", "-c", f"echo $$ >{group}/cgroup.procs && echo in && exec sleep 600", stdout=-1
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "in\n"
    assert "busy" in refusal(daemon, RemoveDeviceGroup(ana.uid, "12.1"))
    job.kill()
    job.communicate()
    daemon.send(RemoveDeviceGroup(ana.uid, "12.1"))
    daemon.send(RemoveDeviceGroup(ana.uid, "12.1"))
    group_of(daemon, ana, "13.1")
    assert not Path(group).exists()


@pytest.mark.parametrize("device", [[1, 3], [8, 0], [195, 254], [195, 255], [10, 200]])
def test_other_devices_than_gpus_cannot_be_given(
    machine: Machine, started_gate: Start, device_groups: Path, device: list[int]
) -> None:
    device_groups.mkdir()
    daemon = started_gate(device_groups=str(device_groups))
    answer, _ = daemon.ask(CreateDeviceGroup(machine.ana.uid, "12.1", [device]))
    assert isinstance(answer, protocol.DeviceGroup)
    assert "not an NVIDIA GPU" in answer.why
    assert not list(device_groups.glob("user-*/"))


def test_without_the_controller_there_is_no_device_group(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n")
    assert devices.find_root(str(mounts)) is None
    with pytest.raises(devices.DeviceGroupError, match="not mounted"):
        devices.prepare(None)
    mounts.write_text("cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n")
    assert devices.find_root(str(mounts)) == "/sys/fs/cgroup/devices/stoker"


# ---------------------------------------------------------------------------- rates


def test_a_user_that_connects_too_often_is_limited_and_others_are_not() -> None:
    rate = ConnectionRate()
    allowed = [rate.allows(1000, 5.0) for _ in range(2 * int(BURST))]
    assert sum(allowed) == BURST
    assert rate.allows(1001, 5.0)
    assert sum(rate.allows(1000, 6.0) for _ in range(2 * int(BURST))) == PER_SECOND
    assert [rate.is_reported(1000, now) for now in (5.0, 6.0, 16.0)] == [False, True, False]


def test_a_flood_of_connections_of_one_user_does_not_lock_out_another(
    machine: Machine, started_gate: Start, idle_gate: GateProcess
) -> None:
    """More connections than a user may have in a burst, sent before the first is read."""
    daemon = started_gate()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    try:
        for _ in range(2500):
            idle_gate.connect(machine.ana)
        idle_gate.connect(machine.ben)
        seen = 0
        while daemon.receive()[0].uid != machine.ben.uid:
            seen += 1
        assert seen <= 2500
        assert len(os.listdir(f"/proc/{idle_gate.pid}/fd")) < 100
    finally:
        idle_gate.opened.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
