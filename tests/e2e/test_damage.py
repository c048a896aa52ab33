"""A journal that the disk has spoilt: what is whole goes on, and it is said."""

import os
from pathlib import Path

from e2e.box import Box, until


def held(box: Box, count: int) -> list[str]:
    """Jobs that wait."""
    label = box.submit("--hold", "--each-line", "-", input="exit 3\n" * count)
    first, _, last = label.partition("-")
    return [str(job) for job in range(int(first), int(last or first) + 1)]


def test_a_log_cut_in_the_middle_of_a_commit_loses_nothing_that_was_whole(box: Box) -> None:
    jobs = held(box, 20)
    box.crash()
    with open(box.state / "journal.db-wal", "ab") as wal:
        wal.write(os.urandom(3000))  # half a page of a commit that never was
    box.up()
    assert box.states(f"{jobs[0]}-{jobs[-1]}") == ["PENDING"] * 20
    box.client.release([jobs[0]])
    assert box.end_of(jobs[0])["result"] == 3


def test_a_log_shorter_than_what_was_once_on_disk_is_reported(box: Box) -> None:
    held(box, 5)
    jobs = held(box, 5)
    box.crash()
    wal = box.state / "journal.db-wal"
    os.truncate(wal, wal.stat().st_size - 5000)
    box.up()
    assert "the last events before a crash are missing" in box.log
    again = box.submit("true")
    assert box.end_of(again)["state"] == "COMPLETED"
    assert jobs


def test_a_spoilt_page_is_survived_and_said(box: Box) -> None:
    jobs = held(box, 300)
    assert box.stoker("daemon", "stop").returncode == 0
    journal = box.state / "journal.db"
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    done = box.stoker("queue", "--json")
    assert done.returncode == 0, done.stderr
    said = until(lambda: box.log)
    assert "stoker: " in said
    label = box.submit("exit 4")
    assert int(label) > int(jobs[-1])  # a number once given out is not given out again
    assert box.end_of(label)["result"] == 4
    assert list(Path(box.state).glob("journal.db?*damaged*")) or list(box.state.glob("*.damaged*"))
