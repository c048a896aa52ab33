"""Claims and exit logs: an attempt starts at most once, and its exit is never lost."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from stoker.core.model.job import AttemptId
from stoker.executors.local.claims import (
    ExitLog,
    claim_path,
    create_claim,
    read_claim,
    revoke_empty_claim,
)
from stoker.executors.local.supervisor import start_ticks


def test_of_a_slow_supervisor_and_a_new_daemon_one_gets_the_claim(tmp_path: Path) -> None:
    for attempt in range(50):
        path = claim_path(str(tmp_path), AttemptId(7, attempt))
        got: list[bool] = []
        ready = threading.Barrier(2)

        def race(claim: Callable[[str], bool]) -> None:
            ready.wait()  # noqa: B023 - both threads end within this round
            got.append(claim(path))  # noqa: B023

        threads = [threading.Thread(target=race, args=(claim,)) for claim in (create_claim, create)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [False, True]


def create(path: str) -> bool:
    """Create a claim like a supervisor."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def test_a_revoked_claim_is_never_seen_incomplete(tmp_path: Path) -> None:
    path = claim_path(str(tmp_path), AttemptId(1, 2))
    assert read_claim(path) is None
    assert create_claim(path)
    claim = read_claim(path)
    assert claim is not None
    assert claim.revoked
    assert claim.pid is None
    assert not create_claim(path)
    assert os.listdir(tmp_path) == ["1.2"]


def test_a_claim_has_the_process_of_an_attempt_and_its_exit(tmp_path: Path) -> None:
    me, ticks = os.getpid(), start_ticks(os.getpid())
    path = tmp_path / "3.0"
    path.write_text(f"pid {me} {ticks} 12.5 1700000000.25 keeper {me} {ticks}\n")
    claim = read_claim(str(path))
    assert claim is not None
    assert claim.is_alive
    assert claim.started == (12.5, 1700000000.25)
    with path.open("a") as file:
        file.write("exit 768 13.000 1700000001.000\n")
    claim = read_claim(str(path))
    assert claim is not None
    assert (claim.status, claim.ended_at) == (768, 1700000001.0)


def test_a_later_process_with_the_same_pid_is_not_that_of_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "3.0"
    path.write_text(f"pid {os.getpid()} 1 12.5 1.0 keeper 1 1\n")
    claim = read_claim(str(path))
    assert claim is not None
    assert not claim.is_alive


def test_lines_truncated_by_a_full_disk_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "3.0"
    path.write_text("pid 12 34 1")
    claim = read_claim(str(path))
    assert claim is not None
    assert claim.started is None
    (tmp_path / "exits").mkdir()
    (tmp_path / "exits" / "77").write_text("1.0 exit 0 5.0 6.0\n2.0 exit 25\n3.1 exi")
    assert ExitLog(str(tmp_path / "exits")).read() == {"1.0": (0, 6.0)}


def test_a_claim_has_the_reason_of_a_failed_start(tmp_path: Path) -> None:
    path = tmp_path / "3.0"
    path.write_text("failed python4: not found\n")
    claim = read_claim(str(path))
    assert claim is not None
    assert claim.failed == "python4: not found"


def test_a_claim_is_revoked_only_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "3.0"
    path.write_text("keeper 12 34\n")
    assert not revoke_empty_claim(str(path))
    claim = read_claim(str(path))
    assert claim is not None
    assert (claim.revoked, claim.supervisor) == (False, (12, 34))
    path.write_text("taken\nkeeper 12 34\n")
    claim = read_claim(str(path))
    assert claim is not None
    assert (claim.revoked, claim.supervisor) == (True, None)


def test_the_exit_log_of_an_unfinished_attempt_is_kept(tmp_path: Path) -> None:
    """Its supervisor wrote it and ended after the exit logs were last read."""
    exits = ExitLog(str(tmp_path))
    (tmp_path / "999999999").write_text("1.0 exit 0 5.0 6.0\n")
    assert exits.read() == {"1.0": (0, 6.0)}
    with (tmp_path / "999999999").open("a") as file:
        file.write("2.0 exit 0 5.0 7.0\n")
    exits.remove_ended(current=set(), unfinished={AttemptId(2, 0)})
    assert exits.read() == {"1.0": (0, 6.0), "2.0": (0, 7.0)}
    exits.remove_ended(current=set(), unfinished={AttemptId(3, 0)})
    assert exits.read() == {}


def test_a_zombie_is_no_living_supervisor(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write("stoker-superv")
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        (tmp_path / str(child)).touch()
        assert Path(f"/proc/{child}/comm").read_text() == "stoker-superv\n"
        assert ExitLog(str(tmp_path)).supervisors() == set()
    finally:
        os.waitpid(child, 0)


def test_exit_logs_of_ended_supervisors_are_removed_and_others_kept(tmp_path: Path) -> None:
    for name in ("999999999", str(os.getpid()), "5"):
        (tmp_path / name).write_text("1.0 exit 0 5.0 6.0\n")
    ExitLog(str(tmp_path)).remove_ended(current={5})
    assert os.listdir(tmp_path) == ["5"]
