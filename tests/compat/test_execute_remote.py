"""execute_remote, row by row, over a real sshd."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.batch_env import BatchEnv, Terminal, shared_env
from e2e.daemon_fixture import until

__all__ = ["shared_env"]


@pytest.fixture
def env(shared_env: BatchEnv) -> Iterator[BatchEnv]:
    yield shared_env
    shared_env.tidy()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("ls",), "required: --machine"),
        (("--machine", "m.yaml"), "No command given"),
        (("--machine", "m.yaml", "ls", "-l"), "no option -l"),
        (("--machine", "m.yaml", "ls", "x"), "Put the whole command in quotes"),
        (("--machine", "m.yaml", "  "), "The command is empty"),
        (("--machine", "m.yaml", "--job-name", "../x", "ls"), "cannot be the name of a directory"),
        (("--machine",), "--machine needs a value"),
    ],
)
def test_mls_40_invalid_arguments_are_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "compat", "execute_remote", *words],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "home").exists()


def test_mls_41_a_directory_goes_along(env: BatchEnv) -> None:
    (env.user / "d").mkdir()
    (env.user / "d" / "file").touch()
    done = env.remote("--copy-forward", "d", "ls d; ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "file\nd\n", "")


def test_mls_41_the_directory_is_uploaded_by_default(env: BatchEnv) -> None:
    (env.user / "file").touch()
    assert env.remote("ls").stdout == "file\none.yaml\n"
    assert env.remote("ls", "--copy-forward").stdout == ""


def test_mls_42_what_is_named_comes_back(env: BatchEnv) -> None:
    done = env.remote("--copy-backwards", "out.txt", "echo x>out.txt; echo y>other.txt")
    assert done.returncode == 0, done
    (name,) = env.results()
    assert os.listdir(env.user / "job_results" / name) == ["out.txt"]
    assert env.result(f"{name}/out.txt") == "x\n"


def test_mls_43_a_name_of_24_digits(env: BatchEnv) -> None:
    assert env.remote("true").returncode == 0
    (name,) = env.results()
    assert re.fullmatch("[0-9A-F]{24}", name)


def test_mls_44_results_are_never_overwritten(env: BatchEnv) -> None:
    assert env.remote("--job-name", "mine", "true").returncode == 0
    assert env.results() == ["mine"]
    done = env.remote("--job-name", "mine", "touch $HOME/again")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "execute_remote: results for job 'mine' already exist, move or remove files before"
        " continuing\n"
    )
    assert not (env.one.home / "again").exists()


def test_mls_44_a_name_that_is_in_use_is_refused(env: BatchEnv) -> None:
    line = "echo begun; until [ -e $HOME/go ]; do sleep 0.05; done"
    words = ("execute_remote", "--machine", env.file(env.one), "--job-name", "mine", line)
    first = env.start(*words)
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    done = env.remote("--job-name", "mine", "touch $HOME/again")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "execute_remote: job 'mine' is being run by another command; wait until it ends, "
        "or choose another --job-name\n"
    )
    (env.one.home / "go").touch()
    first.communicate(timeout=40)
    assert first.returncode == 0
    assert not (env.one.home / "again").exists()
    assert env.results() == ["mine"]


def test_missing_results_are_reported(env: BatchEnv) -> None:
    done = env.remote("--copy-backwards", "reslts", "true")
    assert done.returncode == 0
    assert done.stderr == (
        "execute_remote: --copy-backwards reslts: the command wrote nothing there\n"
    )


def test_mls_45_the_code_and_both_streams_are_the_commands_own(env: BatchEnv) -> None:
    done = env.remote("echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert env.nodes() == []


def test_mls_45_a_machine_that_is_not_reached(env: BatchEnv) -> None:
    bad = env.file(env.one, "bad.yaml", port=9)
    done = env.run("execute_remote", "--machine", bad, "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not connect to machines: [{" in done.stderr
    assert not (env.user / "job_results").exists()


def test_the_machine_is_seen_as_it_is(env: BatchEnv) -> None:
    (env.one.home / ".bashrc").write_text("greet() { echo hello $1; }\n")
    done = env.remote("greet ${CUDA_VISIBLE_DEVICES-all}; echo '{gpu}'")
    assert done.stdout == "hello all\n{gpu}\n"


def test_mls_45_output_is_live_and_ctrl_c_ends_the_command_there(env: BatchEnv) -> None:
    line = "echo begun; echo x > kept; sleep 6666; true"
    words = ("execute_remote", "--machine", env.file(env.one), "--copy-backwards", "kept", line)
    terminal = Terminal(env, *words)
    try:
        terminal.until("begun")
        until(lambda: env.one.pids("sleep 6666"))
        terminal.press("\x03")
        assert terminal.end() == 1
    finally:
        terminal.close()
    assert "Traceback" not in terminal.said
    assert env.one.pids("sleep 6666") == []
    (name,) = env.results()
    assert env.result(f"{name}/kept") == "x\n"


def test_verbose_says_which_job_it_is(env: BatchEnv) -> None:
    done = env.remote("--verbose", "true")
    assert re.fullmatch(r"execute_remote: job \d+ on ssh://\S+: true\n", done.stderr)
