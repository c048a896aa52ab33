"""Commands with a real daemon."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.e2e


HEEDS_USR1 = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("got it"))
print("ready")
time.sleep(60)
"""


@pytest.fixture
def four(stoker: Run) -> Run:
    """The command, with a daemon that has four declared GPUs."""
    started = stoker("daemon", "start", "--resources", "{gpu:4,cpu:8,licence:[2]}")
    assert started.returncode == 0, started.stderr
    return stoker


def shown(stoker: Run, label: object) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(stoker("show", label, "--json", check=True).stdout)
    return value


def test_the_first_submission_starts_a_daemon_and_prints_the_id_alone(stoker: Run) -> None:
    done = stoker("submit", "echo", "hello")
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
    assert stoker("wait", "1").returncode == 0
    assert stoker("logs", "1").stdout == "hello\n"
    assert json.loads(stoker("daemon", "status", "--json").stdout)["pid"] > 0


def test_a_job_runs_where_and_as_it_was_submitted(four: Run, home: Path) -> None:
    user = home.parent / "user"
    env = {"SHELL": "/bin/sh", "MY_OWN": "a b"}
    four("submit", "--gpus", "2", 'pwd; echo "$MY_OWN:$CUDA_VISIBLE_DEVICES"', env=env, check=True)
    four("submit", 'echo "[$CUDA_VISIBLE_DEVICES]"', env=env, check=True)
    assert four("wait", "1-2").returncode == 0
    assert four("logs", "1").stdout == f"{user}\na b:0,1\n"
    assert four("logs", "2").stdout == "[]\n"


@pytest.mark.parametrize(
    ("line", "code"), [("exit 3", 3), ("kill -SEGV $$", 139), ("true", 0), ("kill -TERM $$", 143)]
)
def test_run_returns_the_jobs_code(four: Run, line: str, code: int) -> None:
    assert four("run", line).returncode == code


def test_run_shows_the_output_as_it_is(four: Run) -> None:
    done = four("run", "--gpus", "1", "--", "printf", r"a\rb\n")
    assert done.stdout == "a\rb\n".replace("\r", "\n") or done.stdout == "a\rb\n"
    assert done.returncode == 0


def test_a_separate_stderr_is_followed_too(four: Run) -> None:
    done = four("run", "-e", "err.log", "echo out; echo oops >&2")
    assert done.stdout == "out\n"
    assert "oops" in done.stderr


def test_a_time_limit_ends_with_124(four: Run) -> None:
    assert four("run", "--time", "1s", "sleep", "30").returncode == 124


def test_a_script_brings_its_own_options(four: Run, home: Path) -> None:
    script = home.parent / "user" / "train.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --job-name=mine --gpus=2\n#SBATCH --hint=compute\n"
        "#STOKER --label lr\necho $CUDA_VISIBLE_DEVICES $0 $1\n"
    )
    done = four("submit", "train.sh")
    assert done.stdout == "1\n"
    assert "--hint" in done.stderr
    job = shown(four, "mine")
    assert (job["name"], job["labels"], job["request"]["gpus"]) == ("mine", ["lr"], "2")
    assert four("wait", "%lr").returncode == 0
    assert four("logs", "mine").stdout.startswith("0,1 ")
    assert four("submit", "--strict", "train.sh").returncode == 2


def test_many_lines_are_one_range(four: Run) -> None:
    lines = "\n".join(f"echo line {i}" for i in range(400)) + "\n# not this\n\n"
    assert four("submit", "--each-line", "-", input=lines).stdout == "1-400\n"
    assert four("wait", "last", timeout=60).returncode == 0
    assert four("logs", "400").stdout == "line 399\n"


def test_an_array_is_addressed_by_member(four: Run) -> None:
    label = four("submit", "--array", "3-5", "exit $STOKER_ARRAY_INDEX").stdout.strip()
    assert four("wait", label).returncode == 5
    assert shown(four, f"{label}_4")["result"] == 4


def test_an_impossible_request_is_rejected_with_exit_code_6(four: Run) -> None:
    done = four("submit", "--gpus", "9", "true")
    assert done.returncode == 6
    assert done.stdout == ""
    assert done.stderr.startswith("stoker: ")
    assert json.loads(four("submit", "--json", "--gpus", "9", "true").stdout)["error"]["exit"] == 6
    assert json.loads(four("queue", "--json").stdout)["jobs"] == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("submit", "--mem", "much", "true"), 2),
        (("submit", "--time", "soon", "true"), 2),
        (("show", "99"), 3),
        (("wait", "99"), 3),
        (("cancel", "nosuchname"), 3),
        (("logs", "7-3"), 2),
        (("drain", "17"), 3),
        (("edit", "1"), 2),
    ],
)
def test_bad_input_has_its_code_and_changes_nothing(
    four: Run, argv: tuple[str, ...], code: int
) -> None:
    done = four(*argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("stoker: ")
    assert done.stderr.count("\n") == 1


def test_a_failure_stays_listed_until_it_was_shown(four: Run) -> None:
    four("submit", "-J", "bad", "echo last words; exit 3")
    assert four("wait", "bad").returncode == 3
    for _ in range(2):
        listing = four().stdout
        assert "FAILED" in listing
        assert "exit 3" in listing
        assert "last words" in listing
    four("logs", "bad")
    assert "bad" not in four().stdout


def test_why_a_job_waits(four: Run) -> None:
    four("submit", "--gpus", "4", "sleep", "60")
    four("submit", "--gpus", "2", "true")
    text = four("why", "2", check=True).stdout
    assert "Job 2 is PENDING" in text
    assert "gpu" in text.lower()
    assert json.loads(four("why", "2", "--json").stdout)["state"] == "PENDING"
    assert "(Resources)" in four().stdout


def test_hold_release_move_edit_and_priority(four: Run) -> None:
    four("submit", "--gpus", "4", "sleep", "60")
    for name in "abc":
        four("submit", "--gpus", "4", "-J", name, "true")
    assert four("move", "c", "--first").returncode == 0
    assert four("edit", "b", "--priority", "5").returncode == 0
    assert four("hold", "a").returncode == 0

    def order() -> list[str]:
        views = json.loads(four("queue", "--json").stdout)["jobs"]
        return [view["name"] for view in views if view["state"] == "PENDING"]

    assert order()[:2] == ["b", "c"]
    assert shown(four, "a")["reason"] == "JobHeldUser"
    assert four("release", "a").returncode == 0
    assert four("release", "a").returncode == 1
    assert shown(four, "b")["priority"] == 5


def test_cancel_and_kill(four: Run) -> None:
    four("submit", "sleep", "60")
    four("submit", sys.executable, "-u", "-c", HEEDS_USR1)
    four("submit", "--hold", "true")
    until(lambda: "ready" in four("logs", "2").stdout)
    assert four("kill", "-s", "USR1", "2").returncode == 0
    assert four("wait", "2").returncode == 1
    assert "got it" in four("logs", "2").stdout
    assert four("cancel", "all").returncode == 0
    assert four("wait", "1").returncode == 143
    assert four("cancel", "1").returncode == 1
    assert shown(four, "3")["state"] == "CANCELLED"


def test_pause_and_resume(four: Run, home: Path) -> None:
    go = home.parent / "user" / "go"
    four("submit", f"until [ -e {go} ]; do sleep 0.05; done")
    until(lambda: shown(four, 1)["state"] == "RUNNING")
    assert four("pause", "1").returncode == 0
    assert shown(four, 1)["state"] == "SUSPENDED"
    go.touch()
    assert four("wait", "--timeout", "1", "1").returncode == 101
    assert four("resume", "1").returncode == 0
    assert four("wait", "--timeout", "20", "1").returncode == 0


def test_retry_failed(four: Run, home: Path) -> None:
    mark = home.parent / "user" / "mark"
    four("submit", f"test -e {mark}")
    four("submit", "true")
    assert four("wait", "1-2").returncode == 1
    mark.touch()
    done = four("retry", "--failed")
    assert (done.returncode, done.stderr) == (0, "stoker: requeued 1\n")
    assert four("wait", "1").returncode == 0
    assert shown(four, 1)["attempt"] == 1


def test_dependencies_that_can_never_be_met_end_a_wait(four: Run) -> None:
    four("submit", "false")
    four("submit", "-d", "afterok:1", "true")
    done = four("wait", "2")
    assert done.returncode == 1
    assert "never" in done.stderr


def test_wait_for_any(four: Run) -> None:
    four("submit", "sleep", "60")
    four("submit", "sleep 0.1; exit 4")
    assert four("wait", "--any", "1-2").returncode == 4


def test_gpus_nodes_and_drain(four: Run) -> None:
    four("submit", "--gpus", "0.5", "-J", "half", "sleep", "60")
    until(lambda: shown(four, 1)["state"] == "RUNNING")
    lines = four("gpus").stdout.splitlines()
    assert len(lines) == 5
    assert "half" in lines[1]
    assert "(0.5)" in lines[1]
    assert four("drain", "3").returncode == 0
    assert "drained" in four("gpus").stdout
    assert four("undrain", "3").returncode == 0
    assert len(four("nodes").stdout.splitlines()) == 2
    nodes = json.loads(four("nodes", "--json").stdout)["nodes"]
    assert nodes[0]["resources"]["gpu"] == {**nodes[0]["resources"]["gpu"], "total": "4"}


def test_history(four: Run) -> None:
    four("submit", "-J", "good", "true")
    four("submit", "-J", "bad", "false")
    four("wait", "1-2")
    assert [line.split()[1] for line in four("history", "--no-header").stdout.splitlines()] == [
        "good",
        "bad",
    ]
    views = json.loads(four("history", "--state", "failed", "--json").stdout)["jobs"]
    assert [view["name"] for view in views] == ["bad"]
    assert four("history", "--since", "2090-01-01").stdout == ""
    assert four("history", "--name", "good", "--format", "{label}:{result}").stdout == "1:0\n"


def test_logs_tail_and_follow(four: Run) -> None:
    four("submit", "seq 1 100; sleep 0.5; echo end; exit 2")
    followed = four("logs", "-f", "1")
    assert followed.returncode == 2
    assert followed.stdout == "".join(f"{i}\n" for i in range(1, 101)) + "end\n"
    assert four("logs", "--tail", "2", "1").stdout == "100\nend\n"


def test_a_dry_run_queues_nothing(four: Run) -> None:
    done = four("submit", "--dry-run", "--gpus", "1", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert "would start now" in done.stderr
    assert json.loads(four("--json").stdout)["jobs"] == []


def test_a_backup_is_a_database(four: Run, home: Path) -> None:
    four("submit", "true")
    assert four("db", "backup", home / "copy.db").returncode == 0
    assert (home / "copy.db").read_bytes().startswith(b"SQLite format 3")


def test_jobs_and_followers_outlive_a_restart(four: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", "echo one; sleep 3; echo two; exit 7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: "one" in four("logs", "1").stdout)
    before = json.loads(four("daemon", "status", "--json").stdout)["pid"]
    assert four("daemon", "restart").returncode == 0
    assert json.loads(four("daemon", "status", "--json").stdout)["pid"] != before
    out, err = process.communicate(timeout=30)
    assert (out, process.returncode) == ("one\ntwo\n", 7), err


def test_waiting_continues_when_the_daemon_is_killed(four: Run) -> None:
    four("submit", "sleep 2; exit 5")
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "wait", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.5)
    os.kill(json.loads(four("daemon", "status", "--json").stdout)["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 5, err


def test_jobs_continue_while_the_daemon_is_stopped(four: Run) -> None:
    four("submit", "sleep", "60")
    until(lambda: shown(four, 1)["state"] == "RUNNING")
    pid = shown(four, 1)["pid"]
    done = four("daemon", "stop")
    assert done.returncode == 0
    assert done.stderr.startswith("stoker: ")
    assert four("daemon", "status").returncode == 4
    os.kill(pid, 0)
    assert four("queue").returncode == 4  # a view starts no daemon
    assert four("daemon", "start").returncode == 0
    assert shown(four, 1)["state"] == "RUNNING"


def test_an_array_is_few_lines(four: Run) -> None:
    four("submit", "--array", "0-9%2", "-J", "grid", "sleep 60", check=True)
    four("submit", "--array", "0-4", "-c", "0.1", "-J", "fails", "echo no data; exit 3", check=True)
    until(lambda: "5 FAILED" in four("queue").stdout)
    lines = four("queue").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1_0", "1_1", "1_[2-9%2]"]
    assert lines[5].startswith("11_[0-4] fails  5 FAILED: exit 3, ")
    assert lines[6] == "    | no data"
    assert len(lines) == 8
    assert four("cancel", "1_[2-9%2]").returncode == 0
    assert "1_[2" not in four("queue").stdout
    four("queue", "--seen", check=True)
    assert "FAILED" not in four("queue").stdout


def test_two_first_submissions_at_once_share_one_daemon(stoker: Run) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "stoker", "submit", "true"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    ids = sorted(process.communicate(timeout=30)[0].strip() for process in processes)
    assert ids == ["1", "2", "3", "4"]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
