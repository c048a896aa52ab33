"""Behaviour on a terminal and at ^C, with a real pseudo-terminal."""

import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, chunked, view
from stoker.cli import output
from stoker.cli.output.progress import elapsed
from stoker.cli.session import live as watch

RUNNING = {"state": "RUNNING", "state_code": "R", "node": "box"}


class OnTerminal:
    """The command with a terminal of its own for stdin, stdout and stderr."""

    def __init__(self, *argv: str, size: tuple[int, int] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        if size is not None:
            termios.tcsetwinsize(theirs, size)
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self._ours, (lines, columns))
        self.process.send_signal(signal.SIGWINCH)  # it is not the terminal's foreground process

    def until(self, text: bytes, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come; what came: {self.seen!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.seen += os.read(self._ours, 65536)

    def ends(self) -> int:
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while self.process.poll() is None or select.select([self._ours], [], [], 0)[0]:
                if select.select([self._ours], [], [], 0.1)[0]:
                    self.seen += os.read(self._ours, 65536)
        code = self.process.wait(10)
        os.close(self._ours)
        return code


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def endless(fake: FakeDaemon) -> FakeDaemon:
    """A daemon with a job that does not end."""
    never = threading.Event()

    def wait_for_ever(_: Any) -> None:
        never.wait(30)

    fake.answers["POST /v1/jobs"] = (200, {"first": 5, "count": 1, "label": "5", "warnings": []})
    fake.answers["GET /v1/jobs/5/log"] = wait_for_ever
    fake.answers["POST /v1/cancel"] = (200, {"done": [], "skipped": []})
    return fake


def following(fake: FakeDaemon) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", "sleep", "9"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    soon(lambda: any("/log" in target for _, target, _ in fake.requests))
    time.sleep(0.05)
    return process


def test_interrupting_run_leaves_the_job_running(endless: FakeDaemon) -> None:
    with following(endless) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "job 5 continues" in err
    assert not endless.bodies("/v1/cancel")


def test_interrupting_twice_cancels_it(endless: FakeDaemon) -> None:
    with following(endless) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 130
    assert endless.bodies("/v1/cancel") == [{"select": ["5"]}]


@pytest.mark.parametrize(("answer", "code"), [(b"n\r", 1), (b"y\r", 0)])
def test_cancelling_all_jobs_asks_for_confirmation(
    fake: FakeDaemon, answer: bytes, code: int
) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [view(1)], "more": 11})
    done = [{"id": 1, "label": "1", "state": "CANCELLED"}]
    fake.answers["POST /v1/cancel"] = (200, {"done": done, "skipped": []})
    terminal = OnTerminal("cancel", "all")
    terminal.until(b"Cancel 12 jobs? [y/N]")
    terminal.type(answer)
    assert terminal.ends() == code
    assert len(fake.bodies("/v1/cancel")) == 1 - code


@pytest.mark.parametrize(("answer", "code"), [(b"n\r", 1), (b"y\r", 0)])
def test_a_time_limit_that_ends_running_jobs_asks_for_confirmation(
    fake: FakeDaemon, answer: bytes, code: int
) -> None:
    fake.answers["POST /v1/edit"] = (200, {"overdue": ["7", "8"], "done": [], "skipped": []})
    terminal = OnTerminal("edit", "7-9", "--time", "1h")
    terminal.until(b"7-8 already ran longer than that: this ends them as timed out. Continue?")
    terminal.type(answer)
    assert terminal.ends() == code
    sent = [body.get("dry_run", False) for body in fake.bodies("/v1/edit")]
    assert sent == [True, False][: 2 - code]


def test_yes_skips_the_confirmation(fake: FakeDaemon) -> None:
    fake.answers["POST /v1/cancel"] = (200, {"done": [], "skipped": []})
    assert OnTerminal("cancel", "-y", "all").ends() == 0


def test_a_queue_on_a_terminal_has_colour_and_a_summary(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [view(1, **RUNNING, name="n" * 200)], "more": 5,
                                          "counts": {"RUNNING": 1, "PENDING": 5}})  # fmt: skip
    terminal = OnTerminal()
    assert terminal.ends() == 0
    assert b"\x1b[32mR\x1b[0m" in terminal.seen
    assert b"n" * 90 not in terminal.seen
    assert b"1 running, 5 pending" in terminal.seen
    assert b"limit=100" in fake.requests[0][1].encode()


def test_watching_redraws_and_leaves_the_terminal_as_it_was(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [view(1)], "more": 0, "counts": {}})
    fake.answers["GET /v1/gpus"] = (200, {"gpus": []})
    terminal = OnTerminal("--watch", "0.1")
    terminal.until(watch.ENTER_SCREEN.encode())
    soon(lambda: len(fake.requests) >= 6)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 0
    assert terminal.seen.endswith(watch.LEAVE_SCREEN.encode())


def test_watching_follows_the_size_of_the_terminal_and_outlives_the_daemon(
    fake: FakeDaemon,
) -> None:
    views = [view(number, **RUNNING) for number in range(1, 31)]
    fake.answers["GET /v1/jobs"] = (200, {"jobs": views, "more": 7, "counts": {"RUNNING": 37}})
    fake.answers["GET /v1/gpus"] = (200, {"gpus": []})
    terminal = OnTerminal("--watch", "600", size=(12, 80))
    terminal.until("… 29 more jobs".encode())
    assert len(fake.requests) == 2
    terminal.resize(8, 80)
    terminal.until("… 33 more jobs".encode())
    assert len(fake.requests) == 2, "another size is no reason to ask the daemon"
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 0
    terminal = OnTerminal("--watch", "0.1", size=(12, 80))
    terminal.until("… 29 more jobs".encode())
    fake.close()
    terminal.until(b"No daemon is running.")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 0


def test_interrupting_a_command_is_an_exit_code_and_no_death_by_signal(
    fake: FakeDaemon,
) -> None:
    never = threading.Event()
    fake.answers["POST /v1/wait"] = lambda _: never.wait(30) and None
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "stoker", "wait", "-Q", "1"])
    soon(lambda: fake.bodies("/v1/wait"))
    os.write(fd, b"\x03")
    status = os.waitpid(pid, 0)[1]
    seen = os.read(fd, 65536)
    os.close(fd)
    never.set()
    assert os.waitstatus_to_exitcode(status) == 130  # a death by the signal would be -2
    assert seen.strip() in (b"", b"^C")


def test_wait_shows_progress(fake: FakeDaemon) -> None:
    replies = iter([False, True])

    def wait(_: Any) -> tuple[int, Any]:
        finished = next(replies)
        jobs = [view(1, result=0), view(2, result=0 if finished else None)]
        return 200, {"finished": finished, "jobs": jobs, "stuck": []}

    fake.answers["POST /v1/wait"] = wait
    terminal = OnTerminal("wait", "1-2")
    assert terminal.ends() == 0
    assert b"1 of 2 jobs done" in terminal.seen


def test_a_terminal_is_joined_to_the_jobs(fake: FakeDaemon, home: Path) -> None:
    path = home / "attach.sock"
    got: list[bytes] = []

    def job_side() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb", buffering=0) as stream:
                got.append(stream.readline())
                stream.write(b"prompt> ")
                got.append(stream.read(3) or b"")

    thread = threading.Thread(target=job_side, daemon=True)
    thread.start()
    soon(path.exists)
    running = view(5, **RUNNING, attach=str(path))
    fake.answers = {
        "POST /v1/jobs": (200, {"first": 5, "count": 1, "label": "5", "warnings": []}),
        "GET /v1/jobs": (200, {"jobs": [running]}),
        "POST /v1/wait": (200, {"finished": True, "jobs": [view(5, result=7)]}),
    }
    terminal = OnTerminal("run", "--pty", "--gpus", "1")
    terminal.until(b"prompt> ")
    terminal.type(b"\x03ab")
    assert terminal.ends() == 7
    thread.join(5)
    assert got[0] == b"24 80\n"
    assert got[1].startswith(b"\x03")
    body = fake.bodies("/v1/jobs")[0]
    assert body["options"] == {"pty": True, "gpus": "1"}
    assert body["environment"]["TERM"] == "xterm"
    assert "line" in body["what"]


def test_pty_needs_a_terminal(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--pty", "sh"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


class Slow:
    """An answer that waits until it is let go."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.go = answer, threading.Event()

    def __call__(self, _: Any) -> Any:
        assert self.go.wait(30)
        return self.answer


CANCELLED = (200, {"done": [{"id": 1, "label": "1", "state": "CANCELLED"}], "skipped": []})
SUBMITTED = (200, {"first": 1, "last": 3, "count": 3, "label": "1-3", "warnings": []})


@pytest.mark.parametrize(
    ("argv", "path", "answer", "text"),
    [
        (("submit", "--each-line", "lines"), "POST /v1/jobs", SUBMITTED, b"submitting 3 jobs, 1 s"),
        (("cancel", "1-100000"), "POST /v1/cancel", CANCELLED, b"cancelling, 1 s"),
        (
            ("what-if", "--policy", "sjf"),
            "GET /v1/nodes",
            (200, {"nodes": []}),
            b"the history, 1 s",
        ),
    ],
)
def test_a_slow_command_shows_progress_on_a_terminal(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...], path: str, answer: Any, text: bytes,
) -> None:  # fmt: skip
    (home / "lines").write_text("a\nb\nc\n")
    monkeypatch.chdir(home)
    fake.answers[path] = slow = Slow(answer)
    terminal = OnTerminal(*argv)
    terminal.until(text)
    slow.go.set()
    terminal.ends()
    assert b"\r\x1b[K" in terminal.seen.rpartition(text)[2], "the line is left empty"


@pytest.mark.parametrize(("terminal", "json"), [(False, False), (True, True)])
def test_nothing_is_drawn_into_a_pipe_or_with_json(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, json: bool
) -> None:
    started: list[object] = []
    monkeypatch.setattr(output, "is_terminal", lambda _: terminal)
    monkeypatch.setattr(output, "wants_json", json)
    monkeypatch.setattr("_thread.start_new_thread", lambda *args: started.append(args))
    with elapsed("waiting"):
        pass
    assert started == []


def test_the_upload_that_a_command_waits_for_is_shown_until_the_first_output(
    fake: FakeDaemon,
) -> None:
    text = "sending 312 of 900 MB to gpu1, about 40 s left"
    sending = view(1, state="CONFIGURING", reason_text=text, uploads=[{"text": text}])
    fake.answers["POST /v1/jobs"] = (200, {"first": 1, "last": 1, "count": 1, "label": "1"})
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [sending], "more": 0})
    fake.answers["GET /v1/jobs/1/log"] = slow = Slow(chunked(b"hello\n"))
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [view(1, result=0)]})
    terminal = OnTerminal("run", "-Q", "true")
    terminal.until(f"job 1: {text}".encode())
    slow.go.set()
    assert terminal.ends() == 0
    assert terminal.seen.endswith(b"\r\x1b[Khello\r\n")
