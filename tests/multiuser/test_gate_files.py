"""What the gate does when something else is in the place of its files and directories."""

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from multiuser import users
from multiuser.conftest import Machine
from multiuser.gate_actions import authorize, refusal, start, use_test_executor
from multiuser.gate_process import GateProcess
from stoker.gate import trust
from stoker.gate.config import Config, ConfigError, parse
from stoker.gate.protocol import StartExecutor
from stoker.gate.records import Records


@pytest.fixture
def idle_gate(idle_gate: GateProcess) -> GateProcess:
    use_test_executor(idle_gate)
    return idle_gate


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "file", "socket", "directory"])
def test_something_in_the_place_of_the_directory_of_a_user_is_left_as_it_is(
    machine: Machine, gate: GateProcess, kind: str
) -> None:
    """The gate neither follows it, nor changes its owner, nor waits for it."""
    ana, ben = machine.ana, machine.ben
    place = gate.users_dir / str(ana.uid)
    victim = gate.directory / "victim"
    victim.mkdir(mode=0o700)
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, ana)
        match kind:
            case "link":
                place.symlink_to(victim)
            case "dangling":
                place.symlink_to(gate.directory / "missing")
            case "fifo":
                os.mkfifo(place)
            case "file":
                place.touch(mode=0o600)
            case "socket":
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(str(place))
            case "directory":
                place.mkdir(mode=0o700)
                os.chown(place, ben.uid, ben.gid)
        before = [(path.lstat().st_uid, path.lstat().st_mode) for path in (place, victim)]
        why = refusal(daemon, StartExecutor(ana.uid))
        assert "is not a directory" in why or "belongs to" in why
        assert before == [(path.lstat().st_uid, path.lstat().st_mode) for path in (place, victim)]
        assert not (gate.directory / "missing").exists()
        assert not list(users.processes(ana.uid))
        authorize(gate, daemon, ben)


def test_a_directory_after_an_interrupted_creation_is_completed(
    machine: Machine, gate: GateProcess
) -> None:
    place = gate.users_dir / str(machine.ana.uid)
    place.mkdir(mode=0o700)
    with gate.connect_daemon() as daemon:
        authorize(gate, daemon, machine.ana)
        start(daemon, machine.ana)
    assert place.stat().st_uid == machine.ana.uid
    assert stat.S_IMODE(place.stat().st_mode) == 0o2750


def test_a_link_that_replaces_the_directory_while_starts_go_on_is_never_followed(
    machine: Machine, gate: GateProcess
) -> None:
    """Only root can do this; whatever wins the race, the target keeps its owner and mode."""
    ana = machine.ana
    place = gate.users_dir / str(ana.uid)
    victim = gate.directory / "victim"
    victim.mkdir(mode=0o700)
    swap = (
        "import os, sys\n"
        "place, victim = sys.argv[1:]\n"
        "while True:\n"
        "    os.symlink(victim, place + '.x'); os.rename(place + '.x', place); os.unlink(place)\n"
    )
    swapper = subprocess.Popen(["/usr/bin/python3", "-c", swap, place, victim])
    try:
        with gate.connect_daemon() as daemon:
            authorize(gate, daemon, ana)
            for _ in range(40):
                daemon.ask(StartExecutor(ana.uid))
                users.end_processes(ana.uid)
                if place.is_dir() and not place.is_symlink():
                    # As long as a directory is there, rename fails and the swapper has ended.
                    break
    finally:
        swapper.kill()
        swapper.wait()
    assert (victim.stat().st_uid, stat.S_IMODE(victim.stat().st_mode)) == (0, 0o700)


@pytest.mark.parametrize("name", ["run", "users", "gate"])
@pytest.mark.parametrize("kind", ["link", "writable", "owned", "fifo"])
def test_a_gate_does_not_use_directories_that_others_could_change(
    machine: Machine, idle_gate: GateProcess, name: str, kind: str
) -> None:
    place = idle_gate.directory / name
    other = idle_gate.directory / "other"
    other.mkdir()
    match kind:
        case "link":
            place.symlink_to(other)
        case "writable":
            place.mkdir()
            place.chmod(0o777)
        case "owned":
            place.mkdir()
            os.chown(place, machine.ana.uid, 0)
        case "fifo":
            os.mkfifo(place)
    with pytest.raises(AssertionError, match="is not used"):
        idle_gate.start()
    assert not list(other.iterdir())


def test_a_gate_does_not_use_settings_that_others_could_change(
    machine: Machine, idle_gate: GateProcess
) -> None:
    path = idle_gate.config_path
    os.chown(path, machine.ana.uid, 0)
    with pytest.raises(AssertionError, match="belongs to uid"):
        idle_gate.start()
    os.chown(path, 0, 0)
    path.chmod(0o666)
    with pytest.raises(AssertionError, match="can be written"):
        idle_gate.start()
    path.chmod(0o644)
    idle_gate.directory.chmod(0o777)
    with pytest.raises(AssertionError, match="can be written"):
        idle_gate.start()


def test_a_gate_does_not_run_a_program_that_others_could_change(
    machine: Machine, idle_gate: GateProcess
) -> None:
    program = machine.ana.home / "program"
    program.write_text("#!/bin/sh\n")
    idle_gate.configure(executor_command=[str(program)])
    with pytest.raises(AssertionError, match="is not used"):
        idle_gate.start()


def test_variables_of_the_caller_reach_neither_gate_nor_executor(
    machine: Machine, idle_gate: GateProcess
) -> None:
    evil = idle_gate.directory / "evil"
    (evil / "stoker").mkdir(parents=True)
    marker = idle_gate.directory / "marker"
    for file in ("stoker/__init__.py", "sitecustomize.py", "json.py", "usercustomize.py"):
        (evil / file).write_text(f"open({str(marker)!r}, 'w').close()\n")
    (evil / "rc").write_text(f"touch {marker}\n")
    env = {
        "PYTHONPATH": str(evil), "PYTHONSTARTUP": str(evil / "json.py"), "PYTHONHOME": str(evil),
        "BASH_ENV": str(evil / "rc"), "ENV": str(evil / "rc"), "STOKER_HOME": str(evil),
        "SECRET": "x" * 100_000,
    }  # fmt: skip
    idle_gate.start(env)
    code = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
    ana = machine.ana
    with idle_gate.connect_daemon() as daemon:
        huge = {**env, "LD_PRELOAD": str(evil / "missing.so"), "PYTHONHOME": "/usr"}
        ana.run("/usr/bin/python3", "-I", "-c", code, idle_gate.users_socket, env=huge, check=True)
        notice, _ = daemon.receive()
        assert notice.uid == ana.uid
        names = set(start(daemon, ana).facts["environment"])
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
    assert not marker.exists()


# ------------------------------------------------------------------------ without a gate


def test_records_survive_a_write_that_was_interrupted(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    records.authorize(1000, "ana")
    records.authorize(1001, "ben")
    records.release(1001)
    (tmp_path / "1002.new").write_text("cl")
    again = Records(str(tmp_path))
    assert again.authorized() == [1000]
    assert again.name_of(1001) is None
    again.authorize(1001, "emil")
    assert again.name_of(1001) == "ben"


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "1000").write_text("")
    with pytest.raises(ConfigError, match="1000 is damaged"):
        Records(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"min_udi": 1}, "unknown setting"),
        ({"min_uid": "1000"}, "min_uid"),
        ({"min_uid": True}, "min_uid"),
        ({"min_uid": 0}, "allow_root"),
        ({"deny_users": "ana"}, "deny_users"),
        ({"deny_users": [1]}, "deny_users"),
        ({"run_dir": "run"}, "absolute"),
        ({"executor_command": []}, "executor_command"),
        ({"executor_command": ["python3"]}, "executor_command"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(settings)


def test_settings_have_defaults() -> None:
    assert parse({}) == Config()
    assert parse({"allow_groups": ["lab"]}).allow_groups == ("lab",)


def test_a_path_is_trusted_if_only_root_can_change_it(machine: Machine, gate_dir: Path) -> None:
    assert trust.reason_against("/usr/bin/env") is None
    assert trust.reason_against(str(gate_dir)) is None
    assert "belongs to" in str(trust.reason_against(str(machine.ana.home / "x")))
    link = gate_dir / "link"
    link.symlink_to(machine.ana.home)
    assert "belongs to" in str(trust.reason_against(str(link)))
    loop = gate_dir / "loop"
    loop.symlink_to(loop)
    assert "too many links" in str(trust.reason_against(str(loop)))
    assert "No such file" in str(trust.reason_against(str(gate_dir / "missing")))
