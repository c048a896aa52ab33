"""Preemption of jobs without the library: by a signal, or by termination."""

import pytest

from e2e.daemon_fixture import DaemonFixture, until

SAVES = """
n=$(cat saved 2>/dev/null || echo 0)
trap 'echo $n >saved; exit {code}' USR1
echo "begins at $n" >>diary
while [ ! -e done ]; do n=$((n + 1)); sleep 0.05; done
"""


def urgent(box: DaemonFixture) -> str:
    return box.submit("--gpus", 4, "--priority", 5, "true")


def read_log(box: DaemonFixture) -> list[str]:
    path = box.user / "diary"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("code", [75, 0])
def test_a_job_that_saves_on_a_signal_is_preempted_and_resumes(
    box: DaemonFixture, code: int
) -> None:
    job = box.submit("--gpus", 4, "--signal", "USR1@60", SAVES.format(code=code))
    until(lambda: read_log(box) == ["begins at 0"])
    assert box.end_of(urgent(box))["state"] == "COMPLETED"
    until(lambda: len(read_log(box)) == 2)
    assert read_log(box)[-1] == f"begins at {(box.user / 'saved').read_text().strip()}"
    (box.user / "done").touch()
    view = box.end_of(job)
    assert (view["state"], view["attempt"]) == ("COMPLETED", 1)
    assert view["attempts"][0]["cause"].startswith("stopped: job ")


def test_a_job_that_does_not_catch_its_signal_is_not_preempted(box: DaemonFixture) -> None:
    line = "echo begins >>diary; while [ ! -e done ]; do sleep 0.05; done"
    job = box.submit("--gpus", 4, "--signal", "USR1@1", line)
    box.becomes(job, "RUNNING")
    other = urgent(box)
    until(lambda: box.job(job)["training"]["stopping"])
    (box.user / "done").touch()
    view = box.end_of(job)
    assert (view["state"], view["attempt"]) == ("COMPLETED", 0)
    assert read_log(box) == ["begins"]
    assert box.end_of(other)["state"] == "COMPLETED"


def test_a_restartable_job_is_terminated_and_restarted(box: DaemonFixture) -> None:
    line = "echo begins >>diary; while [ ! -e done ]; do sleep 0.05; done"
    job = box.submit("--gpus", 4, "--requeue", line)
    box.becomes(job, "RUNNING")
    assert box.end_of(urgent(box))["state"] == "COMPLETED"
    until(lambda: len(read_log(box)) == 2)
    (box.user / "done").touch()
    assert box.end_of(job)["state"] == "COMPLETED"


def test_a_non_preemptible_job_is_not_preempted(box: DaemonFixture) -> None:
    line = "echo begins >>diary; while [ ! -e done ]; do sleep 0.05; done"
    job = box.submit("--gpus", 4, "--signal", "USR1@1", "--no-requeue", line)
    box.becomes(job, "RUNNING")
    other = urgent(box)
    assert box.job(other)["state"] == "PENDING"
    assert box.job(job)["training"] is None
    (box.user / "done").touch()
    assert box.end_of(job)["attempt"] == 0
    assert read_log(box) == ["begins"]
