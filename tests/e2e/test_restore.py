"""A backup is restored while jobs run: none is lost or run twice, no GPU is allocated twice."""

import shutil
import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, as_json, until

WAITS = "echo x >> {count}; echo ready; while [ ! -e {flag} ]; do sleep 0.05; done; exit {code}"


class Waiting:
    """A job that ends with a code on request."""

    def __init__(self, box: DaemonFixture, code: int, *options: object) -> None:
        name = f"{code}-{time.monotonic_ns()}"
        self.flag, self.count = box.user / f"go-{name}", box.user / f"count-{name}"
        line = WAITS.format(count=self.count, flag=self.flag, code=code)
        self.box, self.id = box, box.submit(*options, line)

    def running(self) -> "Waiting":
        """Wait until it runs; return it."""
        until(self.count.exists)
        self.box.becomes(self.id, "RUNNING")
        return self

    def ends(self) -> tuple[str, int]:
        """Let it end; return its state and code."""
        self.flag.touch()
        ended = self.box.end_of(self.id)
        return ended["state"], ended["result"]

    @property
    def runs(self) -> int:
        """Return how often it was started."""
        return len(self.count.read_text().splitlines())


def backup(box: DaemonFixture) -> Path:
    path = box.user / "backup.db"
    assert box.stoker("db", "backup", path).returncode == 0
    return path


def restore(box: DaemonFixture, path: Path, watermark: bool = True) -> None:
    """Restore as in the guide, but while jobs run."""
    assert box.stoker("daemon", "stop").returncode == 0
    journal = box.state / "journal.db"
    shutil.copy(path, journal)
    for name in ("-wal", "-shm", *(() if watermark else (".watermark",))):
        journal.with_name(journal.name + name).unlink(missing_ok=True)
    box.up()


@pytest.mark.parametrize("watermark", [True, False])
def test_running_jobs_that_are_not_in_the_backup_keep_their_ids(
    box: DaemonFixture, watermark: bool
) -> None:
    old = Waiting(box, 3, "--gpus", "1").running()
    copy = backup(box)
    over = Waiting(box, 0).running()
    assert over.ends() == ("COMPLETED", 0)
    new = Waiting(box, 4, "--gpus", "2", "--name", "late").running()
    pid = box.pid_of(new.id)
    restore(box, copy, watermark)
    assert alive(pid)
    job = box.job(new.id)
    assert (job["state"], job["name"], job["pid"]) == ("RUNNING", "late", pid)
    assert [gpu["state"] for gpu in box.gpus().values()] == ["busy", "busy", "busy", "free"]
    assert int(box.submit("--hold", "true")) > int(new.id)
    status = as_json(box.stoker("daemon", "status", "--json"))
    assert any(f"job {new.id} was found running" in text for text in status["warnings"])
    # The GPUs of both are allocated only once.
    two = box.submit("--gpus", "2", "true")
    assert box.job(two)["state"] == "PENDING"
    assert new.ends() == ("FAILED", 4)
    assert box.end_of(two)["state"] == "COMPLETED"
    assert old.ends() == ("FAILED", 3)
    assert (old.runs, new.runs) == (1, 1)


def test_a_job_that_was_pending_in_the_backup_and_runs_is_not_started_again(
    box: DaemonFixture,
) -> None:
    job = Waiting(box, 0, "--hold", "--gpus", "1")
    copy = backup(box)
    box.client.release([job.id])
    job.running()
    restore(box, copy)
    assert box.job(job.id)["state"] == "RUNNING"
    assert box.gpus()["0"]["state"] == "busy"
    assert job.ends() == ("COMPLETED", 0)
    assert job.runs == 1


def test_an_exit_after_the_backup_is_recorded_again(box: DaemonFixture) -> None:
    job = Waiting(box, 5, "--hold")
    copy = backup(box)
    box.client.release([job.id])
    job.running()
    assert job.ends() == ("FAILED", 5)
    restore(box, copy)
    ended = box.job(job.id)
    assert (ended["state"], ended["result"], ended["attempt"]) == ("FAILED", 5, 0)
    assert job.runs == 1


def test_a_later_attempt_than_that_of_the_backup_continues(box: DaemonFixture) -> None:
    job = Waiting(box, 9, "--gpus", "1", "--retries", "1", "--retry-on", "exit:9").running()
    copy = backup(box)
    job.flag.touch()
    until(lambda: box.job(job.id)["attempt"] == 1)
    job.flag.unlink()
    until(lambda: job.runs == 2 and box.job(job.id)["state"] == "RUNNING")
    restore(box, copy)
    view = box.job(job.id)
    assert (view["state"], view["attempt"]) == ("RUNNING", 1)
    assert [gpu["state"] for gpu in box.gpus().values()].count("busy") == 1
    job.flag.touch()
    until(lambda: box.job(job.id)["state"] in ("FAILED", "PENDING"))
    assert job.runs == 2


def test_without_a_run_directory_the_devices_are_known_from_the_processes(
    box: DaemonFixture,
) -> None:
    copy = backup(box)
    job = Waiting(box, 0, "--gpus", "2").running()
    assert box.stoker("daemon", "stop").returncode == 0
    shutil.rmtree(box.run_dir)
    restore(box, copy)
    assert box.job(job.id)["state"] == "RUNNING"
    assert [gpu["state"] for gpu in box.gpus().values()].count("busy") == 2
    assert job.ends() == ("COMPLETED", 0)
    assert job.runs == 1


def test_a_restored_journal_after_a_drain_has_nothing_to_recover(box: DaemonFixture) -> None:
    copy = backup(box)
    job = Waiting(box, 0).running()
    stopping = box.popen("daemon", "stop", "--drain")
    until(lambda: box.client.daemon()["draining"])
    job.flag.touch()
    assert stopping.wait(30) == 0
    stopping.communicate()
    restore(box, copy)
    assert box.refused("--array", "0-1", "-d", f"afterok:{job.id}", "true")[0] != 0
    assert int(box.submit("--hold", "true")) > int(job.id)
