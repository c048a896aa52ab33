"""Jobs under the system daemon open their own GPUs and no others, whatever is killed in between."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ON_CI
from multiuser.conftest import Machine
from multiuser.gate_process import GateProcess, device_root
from multiuser.system_daemon import SystemDaemon
from multiuser.test_system_crashes import kill_all, kill_daemon, kill_executors, kill_gate
from multiuser.users import User
from stoker.gate import devices

GPUS = range(4)
OPEN = """
import errno, os, sys, time
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
time.sleep(float(sys.argv[1]))
"""
"""Tries to open devices: ENXIO says that it may, and that there is no driver."""
MAY, MAY_NOT = "ENXIO", "EPERM"


@pytest.fixture
def gpus(gate_dir: Path) -> list[Path]:
    """Character devices with the numbers of NVIDIA's GPUs 0 to 3."""
    if devices.find_root() is None:
        (pytest.fail if ON_CI else pytest.skip)("needs the devices controller of cgroup version 1")
    paths = [gate_dir / f"nvidia{minor}" for minor in GPUS]
    for minor, path in enumerate(paths):
        os.mknod(path, 0o666 | 0o020000, os.makedev(devices.NVIDIA_MAJOR, minor))
        path.chmod(0o666)
    return paths


@pytest.fixture
def system(gpus: list[Path], gate: GateProcess) -> Iterator[SystemDaemon]:
    """A running gate and a running system daemon with four declared GPUs."""
    daemon = SystemDaemon(gate)
    daemon.configure(gpus="0,1,2,3")
    try:
        yield daemon.start()
    finally:
        daemon.close()


def line(gpus: list[Path], seconds: float = 0, then: str = "") -> str:
    """Return a line in which a grandchild tries to open all GPUs."""
    paths = " ".join(map(str, gpus))
    return f"(/usr/bin/python3 -I -c '{OPEN}' {seconds} {paths}){then}; exit 3"


def allowed(*minors: int) -> str:
    return "".join(f"{MAY if minor in minors else MAY_NOT}\n" for minor in GPUS)


def groups(system: SystemDaemon, user: User) -> list[str]:
    root = Path(str(device_root(system.gate.directory)))
    return sorted(path.name for path in root.glob(f"user-{user.uid}/*/"))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_job_opens_its_own_gpus_and_no_other(
    machine: Machine, system: SystemDaemon, gpus: list[Path]
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    first = ana.submit(line(gpus, 100), options={"gpus": "2"})
    ana.until(first, "RUNNING")
    second = ben.run(line(gpus), options={"gpus": "1"})
    without = ben.run(line(gpus))
    until(lambda: ana.log(first).count("\n") == len(GPUS))
    own = [int(name) for name in ana.show(first)["devices"]["gpu"]]
    other = [int(name) for name in second["devices"]["gpu"]]
    assert (len(own), len(other)) == (2, 1)
    assert not set(own) & set(other)
    assert ana.log(first) == allowed(*own)
    assert ben.log(second["id"]) == allowed(*other)
    assert ben.log(without["id"]) == allowed()
    assert groups(system, machine.ana) == [f"{first}.0"]
    until(lambda: not groups(system, machine.ben))
    ana.ask("POST", "/cancel", {"select": [str(first)]})
    ana.wait(first)
    until(lambda: not groups(system, machine.ana))
    [node] = ana.ask("GET", "/nodes")["nodes"]
    assert node["notes"] == []


def test_jobs_that_share_a_gpu_both_open_it(
    machine: Machine, system: SystemDaemon, gpus: list[Path]
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    system.end()
    system.configure(gpus="1=24G")
    system.start()
    options = {"epochs": "3", "gpu_memory": "8G", "single_gpu": True}
    first = ana.submit(line(gpus, 100), options=options)
    second = ben.submit(line(gpus, 100), options=options)
    for client, job in ((ana, first), (ben, second)):
        client.until(job, "RUNNING")
        until(lambda client=client, job=job: client.log(job).count("\n") == len(GPUS))  # type: ignore[misc]
        assert client.log(job) == allowed(1)


@pytest.mark.parametrize("kill", [kill_gate, kill_daemon, kill_executors, kill_all])
def test_groups_outlive_a_kill_and_are_removed_after_the_end(
    machine: Machine,
    system: SystemDaemon,
    gpus: list[Path],
    kill: Callable[[Machine, SystemDaemon], None],
) -> None:
    ana, go = system.client(machine.ana), system.gate.directory / "go"
    wait = f"until [ -e {go} ]; do sleep 0.1; done; "
    job = ana.submit(wait + line(gpus), options={"gpus": "1"})
    ana.until(job, "RUNNING")
    kill(machine, system)
    queued = [ana.submit(line(gpus), options={"gpus": "1"}) for _ in range(6)]
    kill(machine, system)
    go.touch()
    views = ana.wait(job, *queued)
    assert views[0]["attempt"] == 0  # a start that no supervisor had is made again, with a new one
    for view in views:
        assert view["exit_code"] == 3, (view, system.log())
        assert ana.log(view["id"]) == allowed(int(view["devices"]["gpu"][0]))
    until(lambda: not groups(system, machine.ana))


def test_a_group_of_a_job_that_ended_gives_access_to_nothing(
    machine: Machine, system: SystemDaemon, gpus: list[Path]
) -> None:
    ana, root = system.client(machine.ana), device_root(system.gate.directory)
    job = ana.submit("sleep 100", options={"gpus": "1"})
    ana.until(job, "RUNNING")
    group = f"{root}/user-{machine.ana.uid}/{job}.0"
    go = system.gate.directory / "go"
    stays = f"echo 0 >{group}/cgroup.procs; until [ -e {go} ]; do sleep 0.1; done; "
    second = ana.submit(stays + line(gpus))
    until(lambda: len(Path(f"{group}/cgroup.procs").read_text().split()) > 1)
    ana.ask("POST", "/cancel", {"select": [str(job)]})
    ana.wait(job)
    until(lambda: "busy" in system.gate.log())
    go.touch()
    ana.wait(second)
    assert ana.log(second) == allowed()
    until(lambda: not groups(system, machine.ana))


def test_unknown_groups_are_removed_when_the_gate_starts(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, root = system.client(machine.ana), device_root(system.gate.directory)
    assert root is not None
    ana.run("true")
    for name in ("99.0", "other"):
        devices.create(root, machine.ana.uid, name, [[devices.NVIDIA_MAJOR, 0]])
    kill_gate(machine, system)
    until(lambda: not groups(system, machine.ana))


def test_without_the_controller_jobs_start_and_the_node_says_so(
    machine: Machine, idle_gate: GateProcess, gpus: list[Path]
) -> None:
    idle_gate.configure(device_groups="/proc/none")
    system = SystemDaemon(idle_gate.start())
    system.configure(gpus="0,1")
    try:
        ana = system.start().client(machine.ana)
        view = ana.run(line(gpus), options={"gpus": "1"})
        assert ana.log(view["id"]) == allowed(*GPUS)
        [node] = ana.ask("GET", "/nodes")["nodes"]
        assert node["notes"] == ["GPUs are not isolated: every job can open those of others"]
        assert "every job can open all GPUs: /proc/none" in idle_gate.log()
    finally:
        system.close()
