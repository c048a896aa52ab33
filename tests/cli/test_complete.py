import shutil
import subprocess
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon, view
from stoker.main import main

Captured = pytest.CaptureFixture[str]


def offered(capsys: Captured, *words: str) -> list[str]:
    assert main(["__complete", *words]) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


def test_verbs(home: Path, capsys: Captured) -> None:
    assert offered(capsys, "re") == ["resume", "release", "retry", "reserve"]
    assert "queue" in offered(capsys, "")


def test_options_of_the_verb(home: Path, capsys: Captured) -> None:
    assert offered(capsys, "logs", "--f") == ["--follow"]
    assert "--gpus-min-vram" in offered(capsys, "submit", "--gpu")


def test_jobs_with_what_they_are(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [view(42), view(43, name="two words")]})
    assert main(["__complete", "cancel", ""]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "42\ttrain PENDING" in lines
    assert "train\tPENDING" in lines
    assert offered(capsys, "move", "42", "--before", "4") == ["42", "43"]


def test_without_a_daemon_it_still_answers(home: Path, capsys: Captured) -> None:
    assert offered(capsys, "cancel", "") == ["last", "all"]
    assert not any(home.iterdir())


def test_commands_are_completed_as_files(home: Path, capsys: Captured) -> None:
    assert offered(capsys, "submit", "tr") == ["@files"]
    assert offered(capsys, "daemon", "st") == ["start", "stop", "status"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(shell: str, capsys: Captured) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_an_unknown_shell(capsys: Captured) -> None:
    assert main(["completion", "tcsh"]) == 2
