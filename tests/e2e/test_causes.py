"""Causes of the ends of jobs."""

import time

import pytest

from e2e.daemon_fixture import DaemonFixture


@pytest.mark.parametrize(
    ("line", "state", "cause", "code"),
    [
        ("exit 3", "FAILED", "exit 3", 3),
        ("kill -SEGV $$", "FAILED", "killed by SIGSEGV", 139),
        ("kill -KILL $$", "FAILED", "killed by SIGKILL", 137),
        ("kill -35 $$", "FAILED", "killed by signal 35", 163),
        ("exit 127", "FAILED", "exit 127", 127),
        ("echo 'CUDA out of memory.'; exit 1", "OUT_OF_MEMORY", "CUDA out of memory", 1),
        ("echo 'CUDA out of memory' ; exit 0", "COMPLETED", "done", 0),
    ],
)  # fmt: skip
def test_an_end_has_its_cause_and_its_code(
    box: DaemonFixture, line: str, state: str, cause: str, code: int
) -> None:
    job = box.result(line, env={"SHELL": "/bin/sh"})
    assert (job["state"], job["cause"], job["result"]) == (state, cause, code)
    assert box.stoker("wait", job["id"]).returncode == code


def test_a_cuda_error_is_found_in_a_separate_error_file_and_at_the_end_of_a_long_log(
    box: DaemonFixture,
) -> None:
    job = box.result("-e", "err", "seq 100000; echo 'RuntimeError: CUDA out of memory' >&2; exit 1")
    assert job["cause"] == "CUDA out of memory"


def test_a_time_limit_is_named_and_gives_124(box: DaemonFixture) -> None:
    job = box.result("--time", "1s", "sleep", "60")
    assert (job["state"], job["cause"], job["result"]) == ("TIMEOUT", "time limit", 124)


def test_a_cancelled_job_gives_143(box: DaemonFixture) -> None:
    job = box.submit("echo ready; sleep 60")
    box.says(job, "ready")
    assert box.stoker("cancel", job).returncode == 0
    assert box.stoker("wait", job).returncode == 143
    assert (box.job(job)["state"], box.job(job)["cause"]) == ("CANCELLED", "cancelled")


def test_a_missing_directory_is_rejected_at_submit_and_named_at_start(box: DaemonFixture) -> None:
    code, text = box.refused("--chdir", "nowhere", "true")
    assert code == 2
    assert "nowhere" in text
    directory = box.user / "gone"
    directory.mkdir()
    job = box.submit("--hold", "true", cwd=directory)
    directory.rmdir()
    box.client.release([job])
    ended = box.end_of(job)
    assert (ended["state"], ended["cause"]) == (
        "FAILED",
        f"the directory {directory} does not exist",
    )


def test_a_missing_and_a_non_executable_program_are_reported(box: DaemonFixture) -> None:
    refused = box.stoker("submit", "no-such-program", "x")
    assert (refused.returncode, "no-such-program" in refused.stderr) == (2, True)
    (script := box.script("soon-gone", "true")).chmod(0o755)
    job = box.submit("--hold", "--", "./soon-gone", "x")
    script.unlink()
    box.client.release([job])
    view = box.end_of(job)
    assert (view["state"], view["cause"]) == ("FAILED", "./soon-gone: not found")
    box.script("plain", "not a program")
    job = box.result("--", "./plain", "x")
    assert job["state"] == "FAILED"
    assert box.result("true")["state"] == "COMPLETED"


def test_an_output_file_that_cannot_be_opened_is_named(box: DaemonFixture) -> None:
    (box.user / "file").touch()
    job = box.result("-o", "file/place.txt", "true")
    assert job["state"] == "FAILED"
    assert "file/place.txt" in job["cause"]


def test_exit_75_requeues_the_job_with_the_next_attempt_number(box: DaemonFixture) -> None:
    job = box.submit("echo $STOKER_ATTEMPT >> attempts; [ $STOKER_ATTEMPT -ge 2 ] || exit 75")
    ended = box.end_of(job)
    assert (ended["state"], ended["attempt"]) == ("COMPLETED", 2)
    assert (box.user / "attempts").read_text() == "0\n1\n2\n"


def test_retries_depend_on_the_cause(box: DaemonFixture) -> None:
    other = box.submit("--retries", "2", "--retry-on", "oom", "echo x >> other; exit 3")
    memory = box.submit(
        "--retries", "1", "--retry-on", "oom", "echo x >> memory; echo CUDA out of memory; exit 1"
    )
    code = box.submit("--retries", "1", "--retry-on", "exit:3", "echo x >> code; exit 3")
    killed = box.submit("--retries", "1", "--retry-on", "signal", "echo x >> killed; kill -9 $$")
    time_out = box.submit(
        "--retries", "1", "--retry-on", "timeout", "--time", "1s", "echo x >> late; exec sleep 60"
    )
    for job in (other, memory, code, killed, time_out):
        box.end_of(job)
    assert (box.user / "other").read_text() == "x\n"
    for name in ("memory", "code", "killed", "late"):
        assert (box.user / name).read_text() == "x\nx\n", name


def test_a_job_is_warned_before_its_time_is_up_and_can_save_its_work(box: DaemonFixture) -> None:
    job = box.submit(
        "--time", "4s", "--signal", "USR1@3",
        "trap 'echo saved; exit 75' USR1; echo ready $STOKER_ATTEMPT; "
        "[ $STOKER_ATTEMPT = 1 ] && exit 0; while :; do sleep 0.05; done",
    )  # fmt: skip
    ended = box.end_of(job)
    assert (ended["state"], ended["attempt"]) == ("COMPLETED", 1)
    first = box.stoker("logs", "--attempt", "0", job).stdout.splitlines()
    assert (first[0], first[-1]) == ("ready 0", "saved")


def test_exit_77_means_skipped_and_is_no_failure(box: DaemonFixture) -> None:
    job = box.result("exit 77")
    assert (job["state"], job["cause"], job["result"]) == ("COMPLETED", "skipped (exit 77)", 0)


def test_a_deadline_ends_a_job_that_is_pending_for_too_long(box: DaemonFixture) -> None:
    job = box.submit("--hold", "--deadline", "now+1", "true")
    ended = box.end_of(job)
    assert ended["state"] == "DEADLINE"


def test_the_time_spent_paused_does_not_count_against_the_limit(box: DaemonFixture) -> None:
    job = box.submit("--time", "2s", "echo ready; sleep 1")
    box.says(job, "ready")
    box.client.pause([job])
    time.sleep(2.5)
    box.client.resume([job])
    assert box.end_of(job)["state"] == "COMPLETED"
