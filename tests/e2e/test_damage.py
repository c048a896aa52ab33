"""A journal with damage on disk: intact data is used, and the damage is reported."""

import os
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture


def held(box: DaemonFixture, count: int) -> list[str]:
    """Submit held jobs."""
    label = box.submit("--hold", "--each-line", "-", input="exit 3\n" * count)
    first, _, last = label.partition("-")
    return [str(job) for job in range(int(first), int(last or first) + 1)]


def test_a_log_truncated_within_a_commit_loses_no_complete_commit(
    box: DaemonFixture,
) -> None:
    jobs = held(box, 20)
    box.crash()
    with open(box.state / "journal.db-wal", "ab") as wal:
        wal.write(os.urandom(3000))  # half a page of an incomplete commit
    box.up()
    assert box.states(f"{jobs[0]}-{jobs[-1]}") == ["PENDING"] * 20
    box.client.release([jobs[0]])
    assert box.end_of(jobs[0])["result"] == 3


def test_a_log_that_lost_synced_commits_is_reported(box: DaemonFixture) -> None:
    held(box, 5)
    jobs = held(box, 5)
    box.crash()
    wal = box.state / "journal.db-wal"
    os.truncate(wal, wal.stat().st_size - 5000)
    box.up()
    assert "the last events are missing" in box.log
    again = box.submit("true")
    assert box.end_of(again)["state"] == "COMPLETED"
    assert jobs


def test_a_damaged_page_is_survived_and_reported(box: DaemonFixture) -> None:
    jobs = held(box, 300)
    assert box.stoker("daemon", "stop").returncode == 0
    journal = box.state / "journal.db"
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    box.up()
    assert "the journal was damaged" in box.log
    label = box.submit("exit 4")
    assert int(label) > int(jobs[-1])  # ids are never reused
    assert box.end_of(label)["result"] == 4
    assert list(Path(box.state).glob("journal.db?*damaged*")) or list(box.state.glob("*.damaged*"))


def test_ids_that_only_a_lost_log_had_are_not_reused(box: DaemonFixture) -> None:
    held(box, 22)
    assert box.stoker("daemon", "stop").returncode == 0  # writes the WAL into the database
    box.up()
    jobs = held(box, 60)
    assert jobs[-1] == "82"
    box.crash()
    (box.state / "journal.db-wal").unlink()
    assert box.submit("true") == "83"
    assert "had been synced" in box.log


def restored_after_a_run(box: DaemonFixture, note: Path) -> str:
    """Restore a backup in which a job is pending that has run since; return its id."""
    blocker = box.submit("--gpus", "4", "sleep 600")
    box.becomes(blocker, "RUNNING")
    job = box.submit("--gpus", "1", f"echo ran >> {note}")
    backup, journal = box.user / "backup.db", box.state / "journal.db"
    assert box.stoker("db", "backup", backup).returncode == 0
    box.client.cancel([blocker])
    assert box.end_of(job)["state"] == "COMPLETED"
    last = box.result("true")["id"]
    assert box.stoker("daemon", "restart").returncode == 0  # the journal has all exits
    assert box.stoker("daemon", "stop").returncode == 0
    for name in ("-wal", "-shm", ".forced"):  # as earlier documentation said
        Path(f"{journal}{name}").unlink(missing_ok=True)
    journal.write_bytes(backup.read_bytes())
    box.up()
    assert int(box.submit("true")) == last + 1
    return job


def test_a_restored_backup_runs_no_job_twice_and_reuses_no_id(box: DaemonFixture) -> None:
    note = box.user / "note"
    job = restored_after_a_run(box, note)
    assert box.job(job)["state"] == "PENDING"
    assert "held" in box.job(job)["reason_text"]
    assert note.read_text() == "ran\n"
    done = box.stoker("daemon", "status")
    assert "1 pending job is held" in done.stdout
    box.client.release([job])
    assert box.end_of(job)["state"] == "COMPLETED"
