"""One daemon per state: its start, stop and replacement while jobs run."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, alive, as_json, kill, until
from stoker.executors.local.supervisor_client import SUPERVISORS


def test_eight_concurrent_starts_create_one_daemon_and_all_return_its_pid(
    idle: DaemonFixture,
) -> None:
    starts = [idle.popen("daemon", "start", "--json") for _ in range(8)]
    ends = [(*start.communicate(timeout=60), start.returncode) for start in starts]
    assert [code for _, _, code in ends] == [0] * 8, ends
    assert {json.loads(out)["pid"] for out, _, _ in ends} == {idle.pid}
    assert len(idle.supervisors) == SUPERVISORS


def test_concurrent_submissions_without_a_daemon_create_one_daemon_and_all_jobs(
    idle: DaemonFixture,
) -> None:
    submits = [idle.popen("submit", f"exit {n}") for n in range(8)]
    labels = [submit.communicate(timeout=60)[0].decode().strip() for submit in submits]
    assert sorted(map(int, labels)) == list(range(1, 9))
    results = sorted(idle.end_of(label)["result"] for label in labels)
    assert results == list(range(8))
    until(lambda: len(idle.supervisors) == SUPERVISORS)


def test_a_second_daemon_in_the_foreground_leaves_the_first_alone(box: DaemonFixture) -> None:
    first = box.pid
    second = box.popen("daemon", "run")
    assert second.wait(30) == 0
    second.communicate()
    assert box.pid == first


def test_a_submission_while_the_daemon_is_ending_gets_a_new_one(box: DaemonFixture) -> None:
    for _ in range(5):
        old = box.pid
        os.kill(old, signal.SIGTERM)
        label = box.submit("true")
        assert box.end_of(label)["state"] == "COMPLETED"
        until(lambda old=old: not alive(old))
        box.up()


def test_stopping_leaves_jobs_running_and_the_next_daemon_recovers_them(box: DaemonFixture) -> None:
    flag = box.user / "go"
    job = box.submit("--gpus", "2", f"echo ready; until [ -e {flag} ]; do sleep 0.05; done; exit 5")
    box.says(job, "ready")
    pid, daemon = box.pid_of(job), box.pid
    done = box.stoker("daemon", "stop")
    assert done.returncode == 0
    assert "continues" in done.stderr
    assert alive(pid)
    assert not alive(daemon)
    box.start()
    adopted = box.job(job)
    assert (adopted["state"], adopted["pid"]) == ("RUNNING", pid)
    assert box.gpus()["1"]["jobs"][0]["id"] == int(job)
    flag.touch()
    assert box.end_of(job)["result"] == 5


def test_a_job_that_ended_while_no_daemon_ran_has_its_code_and_its_time(box: DaemonFixture) -> None:
    job = box.submit("echo ready; sleep 0.3; exit 9")
    box.says(job, "ready")
    pid = box.pid_of(job)
    box.stoker("daemon", "stop", check=True)
    until(lambda: not alive(pid))
    time.sleep(1.0)
    ended = box.up().end_of(job)
    assert ended["result"] == 9
    assert ended["elapsed"] < 1.0


def test_restart_keeps_the_declared_devices_and_the_jobs(box: DaemonFixture) -> None:
    job = box.submit("--gpus", "1", "echo ready; sleep 60")
    box.says(job, "ready")
    before = box.pid
    assert box.stoker("daemon", "restart").returncode == 0
    assert box.pid != before
    assert sorted(box.gpus()) == ["0", "1", "2", "3"]
    assert box.job(job)["state"] == "RUNNING"
    box.client.kill([job])
    assert box.end_of(job)["state"] == "CANCELLED"


def test_draining_starts_no_job_and_ends_after_the_running_jobs(box: DaemonFixture) -> None:
    flag = box.user / "go"
    job = box.submit("--exclusive", f"echo ready; until [ -e {flag} ]; do sleep 0.05; done")
    box.says(job, "ready")
    waits = box.submit("--exclusive", "true")
    daemon = box.pid
    stopping = box.popen("daemon", "stop", "--drain")
    until(lambda: box.client.daemon() and stopping.poll() is None)
    flag.touch()
    assert stopping.wait(30) == 0
    stopping.communicate()
    until(lambda: not alive(daemon))
    box.up()
    assert box.job(job)["state"] == "COMPLETED"
    assert box.end_of(waits)["state"] == "COMPLETED"


def test_stop_cancel_ends_running_jobs(box: DaemonFixture) -> None:
    job = box.submit("echo ready; sleep 60")
    box.says(job, "ready")
    pid = box.pid_of(job)
    assert box.stoker("daemon", "stop", "--cancel").returncode == 0
    assert not alive(pid)
    assert box.up().job(job)["state"] == "CANCELLED"


def test_stop_cancel_starts_no_job_in_place_of_those_it_ends(box: DaemonFixture) -> None:
    array = box.submit("--exclusive", "--array", "0-2", "echo ready; exec sleep 300")
    first, *others = box.jobs(array)
    box.says(first["label"], "ready")
    assert box.stoker("daemon", "stop", "--cancel").returncode == 0
    box.stoker("daemon", "start", check=True)
    assert [job["attempt"] for job in others] == [0, 0]
    assert box.job(first["label"])["state"] == "CANCELLED"
    box.becomes(others[0]["id"], "RUNNING")


def test_the_supervisor_exits_after_the_daemon_once_no_job_is_left(box: DaemonFixture) -> None:
    box.result("true")
    supervisors = box.supervisors
    box.stoker("daemon", "stop", check=True)
    until(lambda: not any(map(alive, supervisors)))


def test_a_daemon_that_may_exit_when_idle_does_so_but_not_while_jobs_exist(
    idle: DaemonFixture,
) -> None:
    done = idle.stoker("daemon", "start", "--idle-exit", "1.5", "--gpus", "0")
    assert done.returncode == 0, done.stderr
    idle.submit("--hold", "true")
    daemon = idle.pid
    time.sleep(2)
    assert alive(daemon)
    idle.client.cancel(["all"])
    until(lambda: not alive(daemon))


def test_an_idle_daemon_uses_no_cpu_time(box: DaemonFixture) -> None:
    box.result("--gpus", "1", "true")
    box.client.gpus()
    time.sleep(1.5)

    def work() -> tuple[int, int]:
        ticks = switches = 0
        for pid in (box_pid, *box.supervisors):
            for task in Path(f"/proc/{pid}/task").iterdir():
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
                status = (task / "status").read_text()
                switches += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        return ticks, switches

    box_pid = box.pid
    time.sleep(0.5)
    before = work()
    time.sleep(3)
    after = work()
    assert after[0] - before[0] <= 2
    assert after[1] - before[1] < 10


def test_hooks_run_when_a_job_ends_and_when_the_queue_is_empty(idle: DaemonFixture) -> None:
    output_file = idle.user / "told"
    names = ("EVENT", "JOB_ID", "JOB_NAME", "STATE", "CODE", "CAUSE", "LOG")
    facts = " ".join(f"$STOKER_{name}" for name in names)
    (idle.home / "config.toml").write_text(
        f"""on_end = 'echo "{facts}" >> {output_file}'\n"""
        f"""on_empty = 'echo "$STOKER_EVENT" >> {output_file}'\n"""
    )
    box = idle.start()
    job = box.submit("-J", "bad", "exit 3")
    box.end_of(job)
    until(
        lambda: output_file.exists() and len(output_file.read_text().splitlines()) == 2
    )  # in either order
    text = output_file.read_text()
    assert f"end {job} bad FAILED 3 exit 3 {box.job(job)['log']}\n" in text
    assert text.splitlines().count("empty") == 1


def test_a_job_can_have_its_own_hook(box: DaemonFixture) -> None:
    output_file = box.user / "told"
    box.result(
        "--on-end",
        f"echo $STOKER_STATE > {output_file}.part; mv {output_file}.part {output_file}",
        "true",
    )
    until(output_file.exists)
    assert output_file.read_text() == "COMPLETED\n"


def test_show_has_the_exit_code_and_the_output_of_the_hook(box: DaemonFixture) -> None:
    job = box.result("--on-end", "seq 3000; echo oops \x1b >&2; exit 4", "true")["label"]

    def hook() -> dict[str, Any]:
        view: dict[str, Any] = as_json(box.stoker("show", job, "--json"))["hook"] or {}
        return view

    until(lambda: hook().get("exit_code") is not None)
    assert hook()["exit_code"] == 4
    assert hook()["output"].endswith("2999\n3000\noops \x1b\n")
    assert len(hook()["output"]) == 4096
    shown = box.stoker("show", job).stdout
    assert "hook            exit code 4" in shown
    assert shown.splitlines()[-1].strip() == "oops ?"


def test_the_outcome_of_a_hook_is_kept_without_a_daemon(box: DaemonFixture) -> None:
    go = box.user / "go"
    job = box.result(
        "--on-end", f"echo begun; until [ -e {go} ]; do sleep 0.05; done; exit 7", "true"
    )["label"]
    until(lambda: "has not ended" in box.stoker("show", job).stdout)
    box.crash()
    go.touch()
    box.up()
    until(lambda: "hook            exit code 7" in box.stoker("show", job).stdout)


def test_an_unknown_state_is_answered_with_the_states(box: DaemonFixture) -> None:
    done = box.stoker("queue", "--state", "runing")
    assert done.returncode == 2
    assert "There is no state 'RUNING'; the states are PENDING, " in done.stderr


def test_an_invalid_configuration_is_reported_in_one_sentence(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text("gpus = [0\n")
    done = idle.stoker("submit", "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "config.toml" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_in_the_config_is_named(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text("gpu = 1\n")
    done = idle.stoker("daemon", "start")
    assert done.returncode == 2
    assert "'gpu' is not a known setting" in done.stderr


def test_daemon_status_names_the_daemon_that_answers(box: DaemonFixture) -> None:
    status = as_json(box.stoker("daemon", "status", "--json"))
    assert status["pid"] == box.lock_pid
    assert status["mode"] == "daemon"
    kill(status["pid"])
    assert box.stoker("daemon", "status").returncode == 4


def test_a_wait_continues_over_a_restart(box: DaemonFixture) -> None:
    flag = box.user / "go"
    job = box.submit(f"until [ -e {flag} ]; do sleep 0.05; done; exit 5")
    waiting = box.popen("wait", job)
    until(lambda: has_socket(waiting.pid))
    assert box.stoker("daemon", "restart").returncode == 0
    flag.touch()
    _, stderr = waiting.communicate(timeout=30)
    assert (waiting.returncode, stderr) == (5, b"stoker: job 1 (until) FAILED: exit 5\n")


def has_socket(pid: int) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link).startswith("socket:"):
                return True
    return False


def test_named_devices_outlive_a_restart_like_declared_ones(
    box: DaemonFixture,
) -> None:
    assert box.stoker("daemon", "restart", "--gpus", "5,6").returncode == 0
    flag = box.user / "go"
    line = f"touch {flag}ing; until [ -e {flag} ]; do sleep 0.05; done"
    assert box.stoker("daemon", "stop").returncode == 0
    lines = box.user / "lines"
    lines.write_text(f"{line}\n")
    feeding = box.popen("feed", "--gpus", "0", str(lines))
    until((box.user / "going").exists)
    kill(feeding.pid)
    feeding.communicate()
    box.up()
    assert set(box.gpus()) == {"0", "5", "6"}
    flag.touch()
