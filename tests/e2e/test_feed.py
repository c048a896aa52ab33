"""`stoker feed`: lines in, jobs done, in the foreground, with a daemon or without."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, until

WAITS = "echo $$ >> pids; until [ -e go ]; do sleep 0.05; done"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, box: DaemonFixture, *args: str) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(box.user)
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "stoker", *args])
        self.pidfd = os.pidfd_open(self.pid)
        self.code: int | None = None

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def read_output(self, seconds: float = 0.05) -> bytes:
        """Read and return all output so far."""
        with contextlib.suppress(OSError):
            while select.select([self.fd], [], [], seconds)[0]:
                self.seen += os.read(self.fd, 65536)
        return self.seen

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; return the exit code."""
        until(lambda: (self.read_output(), select.select([self.pidfd], [], [], 0)[0])[1], seconds)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        os.close(self.fd)


@pytest.fixture
def on_terminal(idle: DaemonFixture) -> Iterator[list[Terminal]]:
    """Terminals that are closed afterwards."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def pids(box: DaemonFixture, count: int) -> list[int]:
    """Wait for the pids that lines wrote; return them."""

    def read_pids() -> list[int]:
        path = box.user / "pids"
        words = path.read_text().split() if path.exists() else []
        return [int(pid) for pid in words] if len(words) >= count else []

    result: list[int] = until(read_pids)
    return result


def states(box: DaemonFixture) -> list[str]:
    """Return the states of all jobs, by id."""
    jobs = box.client.history(limit=1000)["jobs"]
    return [job["state"] for job in sorted(jobs, key=lambda job: job["id"])]


# ------------------------------------------------------------------------- without a daemon


def test_all_lines_run_on_the_named_devices_one_at_a_time_on_each(idle: DaemonFixture) -> None:
    lines = "echo $CUDA_VISIBLE_DEVICES >> seen\n" * 12 + "\n# a remark\n"
    done = idle.stoker("feed", "--gpus", "4,7", input=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "12 done" in done.stderr
    seen = (idle.user / "seen").read_text().split()
    assert sorted(set(seen)) == ["4", "7"]
    assert len(seen) == 12
    assert not idle.answers()
    assert idle.supervisors == []


def test_the_code_is_1_when_a_line_failed_and_the_failure_is_named(idle: DaemonFixture) -> None:
    done = idle.stoker("feed", "--gpus", "0,1", input="true\necho the reason; exit 3\ntrue\n")
    assert done.returncode == 1
    assert "2 done, 1 failed" in done.stderr
    assert "exit 3" in done.stderr
    assert "the reason" in done.stderr


def test_a_machine_without_gpus_runs_lines_on_its_cores(idle: DaemonFixture) -> None:
    done = idle.stoker("feed", input='echo "[$CUDA_VISIBLE_DEVICES]" >> seen\n' * 3)
    assert done.returncode == 0, done.stderr
    assert (idle.user / "seen").read_text() == "[]\n" * 3


def test_no_lines_at_all_are_no_failure(idle: DaemonFixture) -> None:
    assert idle.stoker("feed", "--gpus", "0", input="").returncode == 0


def test_a_feed_that_can_never_be_satisfied_is_rejected(idle: DaemonFixture) -> None:
    done = idle.stoker("feed", "--gpus", "0", "--each", "2", input="true\n")
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1


BAD_LINES = "echo a >> seen\nbad \udcff\nx\0y\n" + "x" * 1_100_000 + "\necho b >> seen\n"
BAD_LINE_MESSAGES = [
    "stoker: line 2 is skipped: it is not valid UTF-8",
    "stoker: line 3 is skipped: it holds a NUL byte",
    "stoker: line 4 is skipped: it is longer than 1 MiB",
]


def feed_badly(box: DaemonFixture) -> None:
    """Feed lines, some of which are invalid."""
    (box.user / "bad").write_bytes(BAD_LINES.encode(errors="surrogateescape"))
    done = box.stoker("feed", "--gpus", "0,1", "bad", env={"ODD": os.fsdecode(b"\xff")})
    assert done.returncode == 1
    *messages, last = [line for line in done.stderr.splitlines() if "variables" not in line]
    assert messages == BAD_LINE_MESSAGES
    assert "2 done, 3 failed" in last
    assert "retry" not in last
    assert sorted((box.user / "seen").read_text().split()) == ["a", "b"]


def test_an_invalid_line_is_skipped_and_the_others_run(idle: DaemonFixture) -> None:
    feed_badly(idle)


def test_with_json_there_is_one_value_at_the_end(idle: DaemonFixture) -> None:
    done = idle.stoker("feed", "--gpus", "0", "--json", input="true\nexit 3\n\0\n")
    assert done.returncode == 1
    reply = json.loads(done.stdout)
    assert (reply["done"], reply["failed"], reply["cancelled"], reply["not_run"]) == (1, 2, 0, 0)
    assert reply["jobs"] == {"first": 1, "last": 2}
    assert reply["failures"][0]["id"] == 2
    assert reply["failures"][0]["cause"] == "exit 3"
    assert Path(reply["failures"][0]["log"]).parent == Path(reply["logs"])
    assert reply["left_out"] == [{"line": 3, "why": "it holds a NUL byte"}]
    assert reply["seconds"] > 0


def test_an_interrupt_from_the_keyboard_ends_all_lines_and_exits_with_130(
    idle: DaemonFixture, on_terminal: list[Terminal]
) -> None:
    idle.script("lines", f"{WAITS}\n" * 5)
    terminal = Terminal(idle, "feed", "--gpus", "0,1", "lines")
    on_terminal.append(terminal)
    running = pids(idle, 2)
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    assert b"0 done, 2 cancelled, 3 not run" in terminal.seen
    assert [pid for pid in running if alive(pid)] == []
    assert states(idle.up()) == ["CANCELLED"] * 5


def test_an_interrupted_feed_cancels_its_own_lines_only(
    idle: DaemonFixture, on_terminal: list[Terminal]
) -> None:
    idle.script("lines", f"{WAITS}\n" * 3)
    terminal = Terminal(idle, "feed", "--gpus", "0,1", "lines")
    on_terminal.append(terminal)
    pids(idle, 2)
    other = idle.submit("echo ready; until [ -e other ]; do sleep 0.05; done; exit 4")
    idle.says(other, "ready")
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    until(idle.answers)
    assert idle.job(other)["state"] == "RUNNING"
    (idle.user / "other").touch()
    assert idle.end_of(other)["result"] == 4


def test_a_second_interrupt_does_not_wait_for_the_grace(
    idle: DaemonFixture, on_terminal: list[Terminal]
) -> None:
    idle.script("lines", f"trap '' TERM; {WAITS}\n")
    terminal = Terminal(idle, "feed", "--gpus", "0", "lines")
    on_terminal.append(terminal)
    (pid,) = pids(idle, 1)
    terminal.type(b"\x03")
    until(lambda: idle.job(1)["state"] == "COMPLETING")
    terminal.type(b"\x03")
    assert terminal.wait(8) == 130  # the grace is ten seconds
    assert not alive(pid)


def test_draining_finishes_running_lines_and_starts_no_more(idle: DaemonFixture) -> None:
    feed = idle.popen("feed", "--gpus", "0,1", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write((f"{WAITS}\n" * 6).encode())
    feed.stdin.flush()
    pids(idle, 2)
    feed.send_signal(signal.SIGUSR1)
    until(lambda: idle.client.jobs()["counts"].get("PENDING", 0) == 0)
    (idle.user / "go").touch()
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 1, stderr
    assert b"2 done, 4 not run" in stderr
    assert sorted(states(idle.up())) == ["CANCELLED"] * 4 + ["COMPLETED"] * 2


def test_draining_without_pending_lines_is_no_failure(idle: DaemonFixture) -> None:
    feed = idle.popen("feed", "--gpus", "0,1", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write((f"{WAITS}\n" * 2).encode())
    feed.stdin.flush()
    pids(idle, 2)
    feed.send_signal(signal.SIGUSR1)
    (idle.user / "go").touch()
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 0, stderr


def test_an_interrupt_while_draining_still_gives_lines_their_grace(idle: DaemonFixture) -> None:
    feed = idle.popen("feed", "--gpus", "0", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    line = "trap 'echo ended > ended; exit' TERM; " + WAITS
    feed.stdin.write(f"{line}\n".encode())
    feed.stdin.flush()
    pids(idle, 1)
    feed.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    feed.send_signal(signal.SIGINT)
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 130, stderr
    assert (idle.user / "ended").exists()


def test_an_endless_input_is_read_a_little_ahead_in_bounded_memory(idle: DaemonFixture) -> None:
    yes = subprocess.Popen(["yes", "true"], stdout=subprocess.PIPE)
    feed = idle.popen("feed", "--gpus", "0,1,2,3", stdin=yes.stdout)
    assert yes.stdout is not None
    yes.stdout.close()

    def reaches(count: int) -> int:
        """Wait until this number of lines has ended; return the pages in memory."""

        def has_ended() -> bool:
            return sum(1 for _ in os.scandir(idle.state / "logs")) >= count

        until((idle.state / "logs").is_dir)
        while not has_ended():
            assert feed.poll() is None
            time.sleep(0.2)
        return int(Path(f"/proc/{feed.pid}/statm").read_text().split()[1])

    try:
        before = reaches(500)
        assert idle.client.daemon()["counts"].get("PENDING", 0) <= 260
        assert (reaches(2500) - before) * 4 < 30_000, "KiB for two thousand lines"
    finally:
        feed.send_signal(signal.SIGINT)
        feed.communicate(timeout=30)
        yes.kill()
        yes.wait()
    assert feed.returncode == 130


def test_jobs_submitted_during_a_feed_continue_with_a_daemon(idle: DaemonFixture) -> None:
    feed = idle.popen("feed", "--gpus", "0", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write(f"{WAITS}\n".encode())
    feed.stdin.close()
    feed.stdin = None
    pids(idle, 1)
    waiting = idle.submit("--gpus", "1", "exit 5")
    running = idle.submit("echo ready; until [ -e other ]; do sleep 0.05; done; exit 6")
    idle.says(running, "ready")
    (idle.user / "go").touch()
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 0, stderr
    assert idle.end_of(waiting)["result"] == 5
    (idle.user / "other").touch()
    assert idle.end_of(running)["result"] == 6
    assert idle.client.daemon()["mode"] == "daemon"


def test_a_line_can_be_retried(idle: DaemonFixture) -> None:
    done = idle.stoker(
        "feed", "--gpus", "0", "--retries", "2", input="exit $((1 - STOKER_ATTEMPT))\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_killed_supervisor_does_not_stop_a_feed(idle: DaemonFixture) -> None:
    feed = idle.popen("feed", "--gpus", "0,1", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write((f"{WAITS}\n" * 2 + "true\n" * 4).encode())
    feed.stdin.close()
    feed.stdin = None
    pids(idle, 2)
    for pid in idle.supervisors:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    (idle.user / "go").touch()
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 0, stderr


# ---------------------------------------------------------------------- beside a daemon


def test_beside_a_daemon_the_lines_are_queued_there_on_the_named_devices(
    box: DaemonFixture,
) -> None:
    daemon = box.pid
    done = box.stoker("feed", "--gpus", "1,3", input="echo $CUDA_VISIBLE_DEVICES >> seen\n" * 6)
    assert done.returncode == 0, done.stderr
    assert set((box.user / "seen").read_text().split()) <= {"1", "3"}
    assert box.pid == daemon
    done = box.stoker("feed", input="true\nexit 3\n")
    assert done.returncode == 1
    assert "exit 3" in done.stderr


def test_beside_a_daemon_invalid_lines_are_skipped_with_the_same_messages(
    box: DaemonFixture,
) -> None:
    feed_badly(box)


def test_beside_a_daemon_a_device_that_it_lacks_is_rejected(box: DaemonFixture) -> None:
    done = box.stoker("feed", "--gpus", "0,9", input="touch ran\n")
    assert done.returncode == 3
    assert done.stderr == "stoker: The running daemon has no GPU 9; it has: 0, 1, 2, 3.\n"
    assert not (box.user / "ran").exists()
    assert states(box) == []


def test_beside_a_daemon_the_number_of_running_lines_is_shown(
    box: DaemonFixture, on_terminal: list[Terminal]
) -> None:
    box.script("lines", f"{WAITS}\n" * 5)
    terminal = Terminal(box, "feed", "--gpus", "0,1", "lines")
    on_terminal.append(terminal)
    until(lambda: b"2 running" in terminal.read_output())
    (box.user / "go").touch()
    assert terminal.wait() == 0


def test_beside_a_daemon_without_gpus_lines_run_on_its_cores(idle: DaemonFixture) -> None:
    idle.start("{cpu:4}")
    done = idle.stoker("feed", input="true\n")
    assert done.returncode == 0, done.stderr
    assert "this machine has no GPU" in done.stderr


def test_beside_a_daemon_an_interrupt_cancels_its_own_lines_only(
    box: DaemonFixture, on_terminal: list[Terminal]
) -> None:
    other = box.submit("echo ready; exec sleep 300")
    box.says(other, "ready")
    box.script("lines", f"{WAITS}\n" * 5)
    terminal = Terminal(box, "feed", "--gpus", "0,1", "lines")
    on_terminal.append(terminal)
    running = pids(box, 2)
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    assert b"0 done, 2 cancelled, 3 not run" in terminal.seen
    assert [pid for pid in running if alive(pid)] == []
    assert box.job(other)["state"] == "RUNNING"
    assert states(box).count("CANCELLED") == 5


def test_beside_a_daemon_a_feed_survives_the_daemons_end(box: DaemonFixture) -> None:
    feed = box.popen("feed", "--gpus", "0,1", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write((f"{WAITS}\n" * 2 + "exit 0\n" * 4).encode())
    feed.stdin.close()
    feed.stdin = None
    pids(box, 2)
    box.crash()
    (box.user / "go").touch()
    _, stderr = feed.communicate(timeout=40)
    assert feed.returncode == 0, stderr


def test_beside_a_daemon_a_feed_can_be_drained(box: DaemonFixture) -> None:
    feed = box.popen("feed", "--gpus", "0,1", stdin=subprocess.PIPE)
    assert feed.stdin is not None
    feed.stdin.write((f"{WAITS}\n" * 6).encode())
    feed.stdin.flush()
    pids(box, 2)
    feed.send_signal(signal.SIGUSR1)
    until(lambda: box.client.jobs()["counts"].get("PENDING", 0) == 0)
    (box.user / "go").touch()
    _, stderr = feed.communicate(timeout=30)
    assert feed.returncode == 1, stderr
    assert b"2 done, 4 not run" in stderr
