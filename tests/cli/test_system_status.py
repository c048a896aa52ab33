"""Processes of users, as `stoker system status` and `uninstall` find them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.system import files, status

WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize("is_there", [True, False])
def test_only_processes_with_directories_of_this_installation_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(files, "USERS_STATE", str(tmp_path / "here"))
    monkeypatch.setattr(files, "GATE_CONFIG", str(tmp_path / "gate.toml"))
    parent = tmp_path / ("here" if is_there else "elsewhere")
    directory = parent / str(os.getuid())
    directory.mkdir(parents=True)
    command = [sys.executable, "-c", WAIT, status.MODULE, str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = [each["pid"] for each in status.user_processes(supervisors=True)]
        process.communicate()
    assert (process.pid in found) is is_there
