"""What a daemon writes to its log, and `stoker daemon log`."""

import os
import signal
import subprocess

from e2e.daemon_fixture import DaemonFixture, as_json, kill, until


def test_start_rejection_restart_and_stop_each_have_a_line(box: DaemonFixture) -> None:
    first = box.pid
    assert box.stoker("submit", "--gpus", "9", "true").returncode != 0
    assert box.stoker("daemon", "restart").returncode == 0
    assert box.stoker("daemon", "stop").returncode == 0
    lines = box.stoker("daemon", "log", check=True).stdout.splitlines()
    expected = [
        f"INFO stoker.daemon.bootstrap: started: stoker 0.1.0, pid {first}",
        "INFO stoker.daemon.http.codec: refused POST /v1/jobs: ",
        "INFO stoker.daemon.routes.admin: restart requested (mode leave)",
        "INFO stoker.daemon.control.daemon: stopping; jobs that continue to run: 0",
        "INFO stoker.daemon.bootstrap: started: ",
        "INFO stoker.daemon.routes.admin: stop requested (mode leave)",
        "INFO stoker.daemon.control.daemon: stopping; ",
    ]
    for text in expected:  # in this order
        while lines and text not in lines[0]:
            lines.pop(0)
        assert lines, f"no line has: {text}"


def test_a_signal_and_a_lost_job_have_lines(box: DaemonFixture) -> None:
    job = box.submit("--no-requeue", "exec sleep 60")
    pid = box.pid_of(job)
    box.crash()
    for supervisor in box.supervisors:
        kill(supervisor)
    kill(pid)
    box.up()
    until(lambda: f"WARNING stoker.daemon.daemon_log: job {job}.0 is lost: " in box.log)
    os.kill(box.pid, signal.SIGTERM)
    until(lambda: "received SIGTERM" in box.log)


def test_level_is_configurable(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text('[log]\nlevel = "debug"\n')
    idle.start()
    idle.result("true")
    assert "DEBUG stoker.daemon.daemon_log: ProcessExited job 1" in idle.log
    (idle.home / "config.toml").write_text('[log]\nlevel = "warning"\n')
    before = idle.log
    assert idle.stoker("daemon", "restart").returncode == 0
    assert "started" not in idle.log.removeprefix(before)


def test_a_start_that_fails_is_in_the_log(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text("grace = 'soon'\n")
    assert idle.stoker("daemon", "start").returncode == 2
    assert "ERROR stoker.daemon: the daemon stops: " in idle.log


def test_a_supervisor_that_crashes_leaves_a_traceback(box: DaemonFixture) -> None:
    victim = box.supervisors[0]
    kill(victim, signal.SIGSEGV)
    until(lambda: f"supervisor process {victim} died" in box.log)
    assert "Fatal Python error: Segmentation fault" in box.log


def test_daemon_log_shows_the_last_lines_and_follows(box: DaemonFixture) -> None:
    done = box.stoker("daemon", "log", "-n", "1", check=True)
    assert done.stdout.count("\n") == 1
    assert "started" in done.stdout
    assert len(as_json(box.stoker("daemon", "log", "--json"))["lines"]) >= 1
    with box.popen("daemon", "log", "-f", stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert b"started" in follower.stdout.readline()
        os.rename(box.state / "daemon.log", box.state / "daemon.log.1")  # as a rotation does
        box.stoker("submit", "--gpus", "9", "true")
        assert b"refused" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 130


def test_a_missing_log_is_reported(idle: DaemonFixture) -> None:
    done = idle.stoker("daemon", "log")
    assert done.returncode == 3
    assert "no daemon has run here" in done.stderr
