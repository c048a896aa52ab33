"""`stoker system install`, `status` and `uninstall` on a copy of this machine's /etc."""

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require
from multiuser.conftest import Machine
from multiuser.machine_copy import MachineCopy, machine_copy

DIRECTORIES = {
    "/etc/stoker": "root 755", "/var/lib/stoker": "stoker 700",
    "/var/lib/stoker-users": "root 711", "/var/lib/stoker-gate": "root 700",
}  # fmt: skip


@pytest.fixture
def copy(machine: Machine, gate_dir: Path) -> Iterator[MachineCopy]:
    require("unshare", "nsenter", "setpriv")
    with machine_copy(gate_dir, machine.installation.command) as copy:
        yield copy


def owner_and_mode(copy: MachineCopy, path: str) -> str:
    return copy.run("stat", "--format", "%U %a", path).stdout.strip()


def test_print_shows_every_change_and_makes_none(copy: MachineCopy) -> None:
    done = copy.stoker("system", "install", "--print")
    assert done.returncode == 0, done.stderr
    for word in ("useradd", "stoker-admin", *DIRECTORIES, "/etc/pam.d/stoker", "pam_limits.so"):
        assert word in done.stdout
    assert copy.run("getent", "passwd", "stoker").returncode != 0
    assert copy.run("ls", "/etc/stoker").returncode != 0


def test_nothing_is_changed_without_a_yes(copy: MachineCopy) -> None:
    done = copy.stoker("system", "install")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert copy.run("getent", "passwd", "stoker").returncode != 0


def test_install_is_complete_and_changes_nothing_the_second_time(copy: MachineCopy) -> None:
    done = copy.stoker("system", "install", "--yes")
    assert done.returncode == 0, done.stderr
    for path, expected in DIRECTORIES.items():
        assert owner_and_mode(copy, path) == expected
    for path in ("/etc/stoker/gate.toml", "/etc/stoker/config.toml", "/etc/pam.d/stoker"):
        assert owner_and_mode(copy, path) == "root 644"
    assert copy.run("readlink", "/usr/local/bin/stoker").stdout.strip() == str(copy.program)
    assert "nologin" in copy.run("getent", "passwd", "stoker").stdout
    again = json.loads(copy.stoker("system", "install", "--json").stdout)
    assert again["changes"] == []
    with pytest.raises(KeyError):
        pwd.getpwnam("stoker")  # the machine itself is as it was


def test_install_repairs_a_directory_and_keeps_settings(copy: MachineCopy) -> None:
    copy.stoker("system", "install", "--yes")
    copy.run("chmod", "777", "/var/lib/stoker")
    copy.run("sh", "-c", "echo 'min_uid = 2000' > /etc/stoker/gate.toml")
    done = copy.stoker("system", "install", "--yes")
    assert done.stdout.count("\n") == 1
    assert owner_and_mode(copy, "/var/lib/stoker") == "stoker 700"
    assert copy.run("cat", "/etc/stoker/gate.toml").stdout == "min_uid = 2000\n"


def test_the_units_are_valid(machine: Machine, copy: MachineCopy, tmp_path: Path) -> None:
    require("systemd-analyze")
    code = "from stoker.cli.system import files; import json; print(json.dumps(files.units()))"
    python = machine.installation.python
    units = json.loads(copy.run(python, "-I", "-c", code).stdout)
    copy.stoker("system", "install", "--yes")
    copy.run("mkdir", "-p", "/etc/systemd/system")
    for path, text in units.items():
        written = tmp_path / os.path.basename(path)
        written.write_text(text)
        copy.run("cp", written, path)
    done = copy.run("systemd-analyze", "verify", *units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_uninstall_keeps_state_and_settings_for_another_install(copy: MachineCopy) -> None:
    copy.stoker("system", "install", "--yes")
    copy.run("sh", "-c", "echo 'min_uid = 2000' > /etc/stoker/gate.toml")
    done = copy.stoker("system", "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert copy.run("ls", "/etc/stoker/gate.toml", "/etc/pam.d/stoker").stdout == ""
    assert owner_and_mode(copy, "/var/lib/stoker") == "stoker 700"
    copy.stoker("system", "install", "--yes")
    assert copy.run("cat", "/etc/stoker/gate.toml").stdout == "min_uid = 2000\n"


def test_purge_removes_everything(copy: MachineCopy) -> None:
    before = copy.run("sh", "-c", "find /etc /var/lib /usr/local/bin | sort").stdout.splitlines()
    copy.stoker("system", "install", "--yes")
    done = copy.stoker("system", "uninstall", "--purge", "--yes")
    assert done.returncode == 0, done.stderr
    after = copy.run("sh", "-c", "find /etc /var/lib /usr/local/bin | sort").stdout.splitlines()
    backups = {f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow")}
    assert set(after) - set(before) <= backups | {"/etc/.pwd.lock"}
    assert copy.run("getent", "passwd", "stoker").returncode != 0
    assert copy.run("getent", "group", "stoker-admin").returncode != 0


def test_only_root_installs(machine: Machine, copy: MachineCopy) -> None:
    for action in ("install", "uninstall", "run"):
        done = copy.stoker("system", action, user=machine.ana)
        assert (done.returncode, "root" in done.stderr) == (5, True), done.stderr


@pytest.mark.parametrize("change", ["chown", "chmod", "closed"])
def test_an_installation_that_is_not_of_root_alone_or_closed_is_refused(
    machine: Machine, copy: MachineCopy, change: str
) -> None:
    code = machine.installation.packages / "stoker/wire.py"
    command = {
        "chown": ("chown", str(machine.ana.uid), code),
        "chmod": ("chmod", "o+w", code),
        "closed": ("chmod", "o-r", code),
    }[change]
    try:
        subprocess.run(command, check=True)
        done = copy.stoker("system", "install", "--print")
    finally:
        os.chown(code, 0, 0)
        code.chmod(0o644)
    assert done.returncode == 1
    assert str(code) in done.stderr
    assert "/opt/stoker" in done.stderr


def test_status_says_what_is_missing(machine: Machine, copy: MachineCopy) -> None:
    done = copy.stoker("system", "status", "--json", user=machine.ana)
    view = json.loads(done.stdout)
    assert (done.returncode, view["gate"], view["daemon"]) == (4, None, None)
    assert "stoker system install" in view["problems"][0]
    copy.stoker("system", "install", "--yes")
    done = copy.stoker("system", "status", user=machine.ana)
    assert "not running" in done.stdout
    submitted = copy.stoker("submit", "true", user=machine.ana)
    assert (submitted.returncode, "not running" in submitted.stderr) == (4, True)
