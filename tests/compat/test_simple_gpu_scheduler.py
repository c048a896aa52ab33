"""simple_gpu_scheduler, row by row: what its users rely on, and bugs that they no longer have."""

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, Run, alive, kill, until
from stoker.client.errors import StokerError
from stoker.compat.simple_gpu_scheduler.outputs import OutputCopier
from stoker.compat.simple_gpu_scheduler.slots import parse_slots
from stoker.compat.simple_gpu_scheduler.work import SlotStream
from stoker.compat.simple_gpu_submit import main as submit
from stoker.feed.line_reader import LineReader

DOOR = [
    sys.executable, "-c",
    "from stoker.compat.registry import simple_gpu_scheduler as run; raise SystemExit(run())",
]  # fmt: skip
WAITS = "echo $$ >> pids; until [ -e go ]; do sleep 0.05; done"
TRAIN = """\
import argparse, os
options = argparse.ArgumentParser()
options.add_argument("--lr"); options.add_argument("--output")
options = options.parse_args()
with open(options.output, "w") as file:
    file.write(options.lr + " on " + os.environ["CUDA_VISIBLE_DEVICES"])
"""

Beside = Callable[..., "subprocess.Popen[bytes]"]
RunScheduler = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.e2e


@pytest.fixture
def left_behind() -> Iterator[list[Path]]:
    """Directories outside the home, removed when the last process of the test has gone."""
    found: list[Path] = []
    yield found
    for path in found:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def idle(left_behind: list[Path], home: Path, stoker: Run) -> DaemonFixture:
    """A home in which nothing runs yet."""
    box = DaemonFixture(home, stoker)
    left_behind.append(box.run_dir)
    return box


@pytest.fixture
def run_scheduler(idle: DaemonFixture) -> RunScheduler:
    """The command, run to its end: `run_scheduler("true\\n", "--gpus", "0")`."""

    def run(
        commands: str | bytes, *args: str, env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*DOOR, *args],
            input=commands.encode() if isinstance(commands, str) else commands,
            capture_output=True,
            cwd=idle.user,
            env={**os.environ, **(env or {})},
            timeout=50,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture
def beside(idle: DaemonFixture) -> Iterator[Beside]:
    """The command, running beside the test; ended with it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **more: object) -> "subprocess.Popen[bytes]":
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([*DOOR, *args], cwd=idle.user, **{**options, **more}))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def send(process: "subprocess.Popen[bytes]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.flush()


def pids(box: DaemonFixture, count: int) -> list[int]:
    """The pids that commands wrote down."""

    def there() -> list[int]:
        path = box.user / "pids"
        found = path.read_text().split() if path.exists() else []
        return [int(pid) for pid in found] if len(found) >= count else []

    found: list[int] = until(there)
    return found


def processing(text: str) -> list[tuple[str, str]]:
    """Which commands were announced, and on which GPUs."""
    return re.findall(r"^Processing command `(.*)` on gpu (.*)$", text, re.MULTILINE)


# ------------------------------------------------------------------------- the guide, as written


def test_the_example_of_the_guide(idle: DaemonFixture) -> None:
    idle.script("train_model.py", TRAIN)
    idle.script(
        "gpu_commands.txt",
        "python train_model.py --lr 0.001 --output run_1\n"
        "python train_model.py --lr 0.0005 --output run_2\n"
        "python train_model.py --lr 0.0001 --output run_3\n",
    )
    bin = idle.user / "bin"
    bin.mkdir()
    (bin / "python").symlink_to(sys.executable)
    (bin / "simple_gpu_scheduler").symlink_to(
        Path(sys.executable).with_name("simple_gpu_scheduler")
    )
    done = subprocess.run(
        "simple_gpu_scheduler --gpus 0 1 2 < gpu_commands.txt",
        shell=True, cwd=idle.user, capture_output=True, text=True, timeout=50, check=False,
        env={**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "Processing command `python train_model.py --lr 0.001 --output run_1` on gpu 2",
        "Processing command `python train_model.py --lr 0.0005 --output run_2` on gpu 1",
        "Processing command `python train_model.py --lr 0.0001 --output run_3` on gpu 0",
    ]
    assert (done.stderr, done.returncode) == ("", 0)
    written = [(idle.user / f"run_{number}").read_text() for number in (1, 2, 3)]
    assert written == ["0.001 on 2", "0.0005 on 1", "0.0001 on 0"]


def test_sgs_21_the_queue_file_recipe(idle: DaemonFixture, beside: Beside) -> None:
    queue = idle.script("gpu.queue", "echo old > old\n")
    follow = ["tail", "-f", "-n", "0", "gpu.queue"]
    tail = subprocess.Popen(follow, cwd=idle.user, stdout=subprocess.PIPE)
    assert tail.stdout is not None
    try:
        running = beside("--gpus", "0,1,2", stdin=tail.stdout)
        tail.stdout.close()
        until(lambda: _reads(tail.pid, queue))
        with queue.open("a") as file:
            file.write('printf "a\\nb\\n" | tail -n 1 > logfile\n')
        until((idle.user / "logfile").exists)
        until(lambda: (idle.user / "logfile").read_text() == "b\n")
        tail.terminate()  # the end of the input: what runs is waited for
        out, _ = running.communicate(timeout=30)
    finally:
        tail.kill()
        tail.wait()
    assert running.returncode == 0
    assert processing(out.decode()) == [('printf "a\\nb\\n" | tail -n 1 > logfile', "2")]
    assert not (idle.user / "old").exists()


def _reads(pid: int, path: Path) -> bool:
    """Whether a process has a file open at its end (what is appended now will be seen)."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == str(path):
                info = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
                return int(re.findall(r"pos:\s*(\d+)", info)[0]) == path.stat().st_size
    return False


# ---------------------------------------------------------------------------------- its options


def test_sgs_01_the_help_names_its_one_option(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("", "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--gpus" in done.stdout
    assert "SIGUSR1" in done.stdout
    assert run_scheduler("", "--gpus", "0", "--help").stdout == done.stdout


@pytest.mark.parametrize(
    ("args", "word"),
    [((), "Which GPUs"), (("--gpus",), "no GPU"), (("--gpus", ""), "no GPU|empty"),
     (("--gpus", ","), "no GPU"), (("--gpus", "0", ""), "empty"), (("--gpus", "0,,1"), "empty"),
     (("--gpus", "0-3"), "range"), (("--gpus", "0,0", "1"), "twice"), (("--gpus", "0 1"), "quotes"),
     (("--gpus", "0", "--gpus", "1"), "twice"), (("--gpus", "0", "-f", "x"), "no option -f"),
     (("x", "--gpus", "0"), "Unexpected argument")],
    ids=str,
)  # fmt: skip
def test_sgs_02_bad_input_is_one_line_and_2_and_nothing_runs(
    idle: DaemonFixture, run_scheduler: RunScheduler, args: tuple[str, ...], word: str
) -> None:
    done = run_scheduler("touch ran\n", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("simple_gpu_scheduler: ")
    assert re.search(word, done.stderr)
    assert not (idle.user / "ran").exists()
    assert list(idle.home.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [(("0,1,2",), "012"), (("0", "1", "2"), "012"), (("0,", "1,", "2"), "012"),
     (("0,1,2,",), "012"), (("0, 1 , 2",), "012"), (("0", ",", "1"), "01"), (("-1",), ["-1"]),
     (("0,1", "2,3"), ["0,1", "2,3"]), (("abc", "GPU-5ae2-11"), ["abc", "GPU-5ae2-11"]),
     (("0", "0"), "00")],
    ids=str,
)  # fmt: skip
def test_sgs_03_how_gpus_are_named(args: tuple[str, ...], expected: list[str]) -> None:
    assert [slot.name for slot in parse_slots(["--gpus", *args])] == list(expected)


def test_sgs_04_a_group_is_given_to_one_command(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("echo sees $CUDA_VISIBLE_DEVICES\n" * 2, "--gpus", "0,1", "2,3")
    assert [gpu for _, gpu in processing(done.stdout)] == ["2,3", "0,1"]
    assert sorted(re.findall("^sees (.*)$", done.stdout, re.MULTILINE)) == ["0,1", "2,3"]


def test_sgs_05_superfluous_commas_of_a_list_with_blanks(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("echo [$CUDA_VISIBLE_DEVICES]\n", "--gpus", "0,", "1,", "2")
    assert processing(done.stdout) == [("echo [$CUDA_VISIBLE_DEVICES]", "2")]
    assert done.stdout.endswith("[2]\n")


def test_sgs_06_names_are_taken_as_they_are_and_a_gpu_may_be_named_twice(
    idle: DaemonFixture, run_scheduler: RunScheduler, beside: Beside
) -> None:
    done = run_scheduler(
        "echo sees $CUDA_VISIBLE_DEVICES\n" * 2, "--gpus", "abc", "GPU-8932f937-d72c"
    )
    assert "sees abc\n" in done.stdout
    assert "sees GPU-8932f937-d72c\n" in done.stdout
    running = beside("--gpus", "0", "0", "0")
    send(running, f"{WAITS}; test $CUDA_VISIBLE_DEVICES = 0\n" * 4)
    assert len(pids(idle, 3)) == 3
    (idle.user / "go").touch()
    out, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (0, b"")
    assert [gpu for _, gpu in processing(out.decode())] == ["0"] * 4


def test_sgs_07_the_last_gpu_is_handed_out_first(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0", "1", "2")
    first, third = "until [ -e over ]; do sleep 0.05; done", f"{WAITS}; true"
    send(running, f"{first}\n{WAITS}\n")
    pids(idle, 1)
    (idle.user / "over").touch()
    until(lambda: [job["command"] for job in idle.client.jobs()["jobs"]] == [WAITS])
    send(running, f"{third}\n")
    pids(idle, 2)
    (idle.user / "go").touch()
    out, _ = running.communicate(timeout=30)
    # A GPU that was given back is the next one.
    assert processing(out.decode()) == [(first, "2"), (WAITS, "1"), (third, "2")]


def test_sgs_08_the_message_to_the_letter_and_nothing_else(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("true\n", "--gpus", "0")
    assert done.stdout == "Processing command `true` on gpu 0\n"
    assert done.stderr == ""


# ------------------------------------------------------------------------------------- commands


def test_sgs_09_commands_run_in_the_users_shell(
    idle: DaemonFixture, run_scheduler: RunScheduler
) -> None:
    shell = idle.script("my-shell", '#!/bin/sh\necho "my shell: $@"\n')
    shell.chmod(0o755)
    done = run_scheduler("echo a > b\n", "--gpus", "0", env={"SHELL": str(shell)})
    assert done.stdout.endswith("my shell: -c echo a > b\n")


def test_sgs_10_the_environment_is_ours_and_only_the_gpu_differs(
    run_scheduler: RunScheduler,
) -> None:
    done = run_scheduler(
        "echo $CUDA_VISIBLE_DEVICES $MINE ${gpu}{gpu}\n", "--gpus", "0",
        env={"CUDA_VISIBLE_DEVICES": "5", "MINE": "x{gpu}"},
    )  # fmt: skip
    assert done.stdout.splitlines()[1:] == ["0 x{gpu} {gpu}"]


def test_sgs_11_blank_lines_and_remarks_are_passed_over_and_counted(
    idle: DaemonFixture, run_scheduler: RunScheduler
) -> None:
    commands = b"  echo a  \r\n\n# c \\\n   \nbad \xff\necho last"
    done = run_scheduler(commands, "--gpus", "0")
    assert [command for command, _ in processing(done.stdout)] == ["  echo a", "echo last"]
    assert done.stdout.count("\na\n") == 1
    assert done.stdout.endswith("last\n")
    assert "line 5 is skipped" in done.stderr
    assert done.returncode == 1


def test_a_line_that_no_shell_could_be_given_is_left_out(run_scheduler: RunScheduler) -> None:
    done = run_scheduler(
        ": " + "x" * 131_069 + "\n: " + "x" * 131_070 + "\necho on\n", "--gpus", "0"
    )
    assert [command[:4] for command, _ in processing(done.stdout)] == [": xx", "echo"]
    assert "longer than 128 KiB" in done.stderr
    assert (done.stderr.count("\n"), done.returncode) == (1, 1)


def test_sgs_13_the_exit_code_says_that_a_command_failed(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("true\nsh -c 'exit 3'\ntrue\n", "--gpus", "0", "1")
    assert done.returncode == 1
    assert re.fullmatch(
        r"simple_gpu_scheduler: `sh -c 'exit 3'` failed on gpu [01]: exit 3\n", done.stderr
    )
    assert run_scheduler("true\n", "--gpus", "0").returncode == 0
    assert run_scheduler("", "--gpus", "0").returncode == 0


def test_sgs_14_at_the_end_of_the_input_it_waits_for_what_runs(
    idle: DaemonFixture, beside: Beside
) -> None:
    running = beside("--gpus", "0")
    send(running, f"{WAITS}; echo finished\n")
    assert running.stdin is not None
    running.stdin.close()
    running.stdin = None
    (pid,) = pids(idle, 1)
    assert running.poll() is None
    (idle.user / "go").touch()
    out, _ = running.communicate(timeout=30)
    assert out.endswith(b"finished\n")
    assert running.returncode == 0
    assert not alive(pid)
    assert not idle.answers()


def test_sgs_15_a_command_cannot_eat_the_queue(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0")
    send(running, "head -c 40; cat; touch first\n")
    until((idle.user / "first").exists)
    out, _ = running.communicate(b"echo second\necho third\n", timeout=30)
    assert [command for command, _ in processing(out.decode())][1:] == ["echo second", "echo third"]
    assert out.endswith(b"third\n")


def test_sgs_18_a_process_left_behind_does_not_outlive_its_command_in_silence(
    idle: DaemonFixture, run_scheduler: RunScheduler
) -> None:
    done = run_scheduler("sleep 300 & echo $! > pids\n", "--gpus", "0")
    assert done.returncode == 0
    assert "left 1 process behind" in done.stderr
    assert not alive(pids(idle, 1)[0])


# --------------------------------------------------------------------------------- what is shown


def test_sgs_19_commands_run_without_a_reader(idle: DaemonFixture, beside: Beside) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    running = beside("--gpus", "0", stdout=writer)
    os.close(writer)
    _, said = running.communicate(b"echo a >> ran\necho b >> ran\n", timeout=30)
    assert (idle.user / "ran").read_text() == "a\nb\n"
    assert (running.returncode, said) == (0, b"")


def test_sgs_19_commands_run_with_closed_streams(idle: DaemonFixture) -> None:
    command = [*DOOR, "--gpus", "0"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command],
        input=b"echo a; echo a >> ran\n", cwd=idle.user, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert (idle.user / "ran").read_text() == "a\n"


def test_sgs_20_lines_of_several_commands_are_never_torn(run_scheduler: RunScheduler) -> None:
    command = "for n in $(seq 4); do head -c 250000 /dev/zero | tr '\\0' {0}; echo; done"
    big = "\n".join(command.format(letter) for letter in "abc")
    small = "\nfor n in $(seq 300); do echo dddd; echo eeee >&2; done\n"
    done = run_scheduler(big + small, "--gpus", "0", "1", "2", "3")
    assert done.returncode == 0
    shown = [line for line in done.stdout.splitlines() if not line.startswith("Processing")]
    assert sorted(shown) == sorted(
        [letter * 250_000 for letter in "abc" for _ in range(4)] + ["dddd"] * 300
    )
    assert done.stderr == "eeee\n" * 300


def test_stdout_and_stderr_stay_apart_and_a_last_line_without_an_end_is_shown(
    run_scheduler: RunScheduler,
) -> None:
    done = run_scheduler("printf out; printf err >&2\n", "--gpus", "0")
    assert done.stdout == "Processing command `printf out; printf err >&2` on gpu 0\nout\n"
    assert done.stderr == "err\n"


def test_where_both_go_to_the_same_place_their_order_is_kept(
    idle: DaemonFixture, beside: Beside
) -> None:
    running = beside("--gpus", "0", stderr=subprocess.STDOUT)
    line = b"for n in 1 2 3; do echo out $n; echo err $n >&2; done; exit 3"
    out, _ = running.communicate(line, timeout=30)
    *shown, last = out.decode().splitlines()[1:]
    assert shown == [f"{stream} {n}" for n in (1, 2, 3) for stream in ("out", "err")]
    assert last.endswith("failed on gpu 0: exit 3")


def test_what_a_command_prints_is_shown_while_it_runs(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0")
    send(running, f"echo epoch 1; {WAITS}; echo epoch 2\n")
    assert running.stdout is not None
    seen = b""
    while b"epoch 1\n" not in seen:
        assert select.select([running.stdout], [], [], 30)[0]
        seen += os.read(running.stdout.fileno(), 4096)
    (idle.user / "go").touch()
    out, _ = running.communicate(timeout=30)
    assert out == b"epoch 2\n"


def test_a_stalled_reader_does_not_stop_running_commands(
    idle: DaemonFixture, beside: Beside
) -> None:
    running = beside("--gpus", "0")
    send(running, "head -c 3000000 /dev/zero | tr '\\0' '\\n'; touch printed\necho second\n")
    until((idle.user / "printed").exists)
    assert idle.client.daemon()["mode"] == "feed"  # it answers, though nobody reads what it says
    out, _ = running.communicate(timeout=30)
    assert out.count(b"\n") == 3_000_000 + 3
    assert out.count(b"\nsecond\n") == 1


# -------------------------------------------------------------------------------------- signals


class Terminal:
    """The command on a terminal of its own, as a person has it."""

    def __init__(self, box: DaemonFixture, *args: str) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(box.user)
            os.execv(DOOR[0], [*DOOR, *args])
        self.pidfd = os.pidfd_open(self.pid)

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def shows(self, text: bytes) -> bool:
        with contextlib.suppress(OSError):
            while select.select([self.fd], [], [], 0.02)[0]:
                self.seen += os.read(self.fd, 65536)
        return text in self.seen

    def code(self) -> int:
        until(lambda: self.shows(b"") and select.select([self.pidfd], [], [], 0)[0])
        self.shows(b"")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(idle: DaemonFixture) -> Iterator[Terminal]:
    found = Terminal(idle, "--gpus", "0", "1")
    yield found
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        signal.pidfd_send_signal(found.pidfd, signal.SIGKILL)
        os.waitpid(found.pid, 0)
    os.close(found.pidfd)
    os.close(found.fd)


def test_sgs_16_interrupted_from_the_keyboard_it_leaves_nothing_running(
    idle: DaemonFixture, terminal: Terminal
) -> None:
    until(lambda: terminal.shows(b"^D when done"))
    terminal.type(f"(sleep 300 & echo $! >> pids; wait); {WAITS}\n".encode() * 3)
    running = pids(idle, 2)
    terminal.type(b"\x03")
    assert terminal.code() == 130
    assert b"commands: 2 cancelled, 1 not run" in terminal.seen
    assert b"Traceback" not in terminal.seen
    assert [pid for pid in running if alive(pid)] == []
    assert not idle.answers()


def test_sgs_16_a_second_interrupt_does_not_wait_for_the_grace(
    idle: DaemonFixture, terminal: Terminal
) -> None:
    until(lambda: terminal.shows(b"^D when done"))
    terminal.type(f"trap '' TERM INT; {WAITS}\n".encode())
    (pid,) = pids(idle, 1)
    terminal.type(b"\x03")
    until(lambda: idle.job(1)["state"] == "COMPLETING")
    terminal.type(b"\x03")
    assert terminal.code() == 130
    assert not alive(pid)


def test_sgs_17_terminated_it_leaves_no_orphan(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0", "1")
    send(running, f"(sleep 300 & echo $! >> pids; wait)\n{WAITS}\n{WAITS}\n")
    found = pids(idle, 2)
    running.terminate()
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 143
    assert [pid for pid in found if alive(pid)] == []
    assert len(processing(out.decode())) == 2


def test_sgs_24_drained_it_finishes_what_runs_and_starts_no_more(
    idle: DaemonFixture, beside: Beside
) -> None:
    running = beside("--gpus", "0")
    send(running, f"{WAITS}; echo finished\n" + "touch ran\n" * 3)
    pids(idle, 1)
    running.send_signal(signal.SIGUSR1)
    assert running.stderr is not None
    said = running.stderr.readline()
    assert b"draining" in said
    (idle.user / "go").touch()
    out, rest = running.communicate(timeout=30)
    assert running.returncode == 0, rest
    assert out.endswith(b"finished\n")
    assert rest == b"simple_gpu_scheduler: commands: 3 not run\n"
    assert not (idle.user / "ran").exists()


def test_sgs_24_drained_it_still_says_that_a_command_failed(
    idle: DaemonFixture, beside: Beside
) -> None:
    commands = idle.script("commands", f"{WAITS}; exit 4\n" + "touch ran\n" * 300)
    with commands.open("rb") as file:
        running = beside("--gpus", "0", stdin=file)
    pids(idle, 1)
    running.send_signal(signal.SIGUSR1)
    (idle.user / "go").touch()
    _, said = running.communicate(timeout=30)
    assert running.returncode == 1
    assert b"commands: 300 not run" in said
    assert b"exit 4" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_of_a_file_without_end_it_says_only_that_there_was_more(
    idle: DaemonFixture, beside: Beside, number: signal.Signals
) -> None:
    commands = idle.script("commands", f"{WAITS}\n")
    os.truncate(commands, 1 << 40)
    with commands.open("rb") as file:
        running = beside("--gpus", "0", stdin=file)
    pids(idle, 1)
    running.send_signal(number)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert said == b"simple_gpu_scheduler: commands: 1 cancelled, the rest not run\n"


def test_signals_are_handled_while_the_input_is_idle(idle: DaemonFixture, beside: Beside) -> None:
    with open("/dev/zero", "rb") as file:
        running = beside("--gpus", "0", stdin=file)
    assert running.stderr is not None
    assert running.stderr.readline().endswith(b"line 1 is skipped: it is longer than 1 MiB\n")
    running.terminate()
    _, said = running.communicate(timeout=30)
    assert running.returncode == 143
    assert said == b"simple_gpu_scheduler: commands: the rest not run\n"


@pytest.mark.parametrize("daemon", [False, True])
def test_it_outlives_its_terminal_and_says_once_that_it_drains(
    idle: DaemonFixture, beside: Beside, daemon: bool
) -> None:
    if daemon:
        idle.start("{gpu:1,cpu:4}")
    running = beside("--gpus", "0")
    send(running, f"{WAITS}; echo finished\n")
    pids(idle, 1)
    running.send_signal(signal.SIGHUP)
    running.send_signal(signal.SIGUSR1)
    assert running.stderr is not None
    assert b"draining" in running.stderr.readline()
    running.send_signal(signal.SIGUSR1)
    (idle.user / "go").touch()
    out, rest = running.communicate(timeout=30)
    assert (running.returncode, rest) == (0, b"")
    assert out.endswith(b"finished\n")


def test_a_stream_that_takes_nothing_at_first_gets_all_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = OutputCopier(str(tmp_path))
    written = [b""]

    def write(fd: int, data: memoryview) -> int:
        if len(written) == 1:
            written.append(b"")
            raise BlockingIOError
        written.append(bytes(data))
        return len(data)

    outputs.say("the last word")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(os, "write", write)
    try:
        outputs.finish()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert b"".join(written) == b"the last word\n"


def test_only_an_empty_log_of_errors_is_removed_when_its_command_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = OutputCopier(str(tmp_path))
    monkeypatch.setattr(outputs, "apart", True)
    for id in (1, 2, 3):
        outputs.follow(id)
        for stream in ("out", "err"):
            (tmp_path / f"{id}.{stream}").touch()
    outputs.turn()
    (tmp_path / "2.err").write_text("no\n")
    outputs.over(1)
    outputs.over(2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["1.out", "2.err", "2.out", "3.err", "3.out"]


def test_a_directory_name_that_is_not_text_gives_one_line(idle: DaemonFixture) -> None:
    odd = os.fsencode(idle.user) + b"/\xff"
    os.mkdir(odd)
    for command in (
        [*DOOR, "--gpus", "0"],
        [sys.executable, "-m", "stoker", "submit", "true"],
        [sys.executable, "-m", "stoker", "feed"],
    ):
        done = subprocess.run(command, cwd=odd, input=b"true\n", capture_output=True, check=False)
        assert done.returncode == 2
        assert b"is not valid UTF-8" in done.stderr
        assert done.stderr.count(b"\n") == 1


def test_thousands_of_gpus_and_one_named_often() -> None:
    slots = parse_slots(["--gpus", *map(str, range(20_000)), *["7"] * 9])
    assert slots[7].options["share"] == slots[-1].options["share"] == "0.100"
    assert slots[8].options["share"] == "1.000"


# ------------------------------------------------------------------------------------- the queue


def test_sgs_22_very_many_commands(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("true\n" * 400, "--gpus", "0", "1", "2", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(processing(done.stdout)) == 400


def test_sgs_23_a_line_is_continued_behind_a_backslash(run_scheduler: RunScheduler) -> None:
    done = run_scheduler("echo a \\\n  b \\\n  c\necho 'd\\\\'\n", "--gpus", "0")
    assert [command for command, _ in processing(done.stdout)] == [
        "echo a   b   c",
        "echo 'd\\\\'",
    ]
    assert "\na b c\n" in done.stdout


PYTHON_SCRIPT = """\
#!/usr/bin/env python3
import os, sys
print("python", os.environ["CUDA_VISIBLE_DEVICES"], len(FILLER))
sys.exit(3)
"""


def test_sgs_23_a_script_is_one_job_on_one_gpu(
    idle: DaemonFixture, run_scheduler: RunScheduler
) -> None:
    queue = idle.script("gpu.queue", "")
    idle.script("train.sh", "cd /\nfor n in 1 2; do\n  echo $PWD $n\ndone\n")
    # Longer than what a shell could be given as one word.
    idle.script("big.py", PYTHON_SCRIPT.replace("import", f"FILLER = '{'x' * 200_000}'\nimport"))
    for script in ("train.sh", "big.py"):
        assert submit([str(queue), str(idle.user / script)]) == 0
    queue.write_bytes(b"echo a\n" + queue.read_bytes() + b"echo b\n")
    done = run_scheduler(queue.read_bytes(), "--gpus", "0,1")
    shown = [command for command, _ in processing(done.stdout)]
    assert shown == ["echo a", "train.sh", "big.py", "echo b"]
    assert "\n/ 1\n/ 2\n" in done.stdout
    assert re.search(r"^python [01] 200000$", done.stdout, re.MULTILINE)
    assert re.fullmatch(r"simple_gpu_scheduler: `big.py` failed on gpu [01]: exit 3\n", done.stderr)


def test_sgs_25_an_endless_input_is_read_only_a_little_ahead(
    idle: DaemonFixture, beside: Beside
) -> None:
    yes = subprocess.Popen(["yes", WAITS], stdout=subprocess.PIPE)
    assert yes.stdout is not None
    running = beside("--gpus", "0", "1", stdin=yes.stdout)
    yes.stdout.close()
    try:
        pids(idle, 2)
        assert idle.client.jobs()["counts"] == {"RUNNING": 2}  # no line is queued without a GPU
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    finally:
        yes.kill()
        yes.wait()
    assert running.returncode == 130
    (left,) = re.findall(rb"2 cancelled, (\d+) not run", said)
    assert int(left) < 3000


def test_while_it_runs_stoker_shows_its_commands(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0", "1,2")
    send(running, f"{WAITS}\n")
    pids(idle, 1)
    (job,) = idle.client.jobs()["jobs"]
    assert (job["command"], job["devices"]["gpu"]) == (WAITS, ["1", "2"])
    (idle.user / "go").touch()
    running.communicate(timeout=30)
    assert running.returncode == 0


def test_killed_outright_it_loses_what_was_not_started_and_nothing_else(
    idle: DaemonFixture, beside: Beside
) -> None:
    running = beside("--gpus", "0")
    send(running, f"{WAITS}; exit 4\ntouch never\n")
    (pid,) = pids(idle, 1)
    kill(running.pid)
    assert alive(pid)
    idle.up()
    (idle.user / "go").touch()
    assert idle.end_of(1)["result"] == 4
    assert [job["id"] for job in idle.client.history()["jobs"]] == [1]


def test_stopped_from_elsewhere_it_says_so(idle: DaemonFixture, beside: Beside) -> None:
    running = beside("--gpus", "0")
    send(running, f"{WAITS}\ntouch never\n")
    (pid,) = pids(idle, 1)
    assert idle.stoker("daemon", "stop").returncode == 0
    _, said = running.communicate(timeout=30)
    assert running.returncode == 1
    assert b"stopped by another command" in said
    assert alive(pid)


def test_a_line_that_cannot_be_stored_is_retried_or_fails_for_good(
    tmp_path: Path,
) -> None:
    (tmp_path / "lines").write_text("echo a\necho b\n")
    lines = LineReader(os.open(tmp_path / "lines", os.O_RDONLY), joins_lines=True)
    work = SlotStream(lines, parse_slots(["--gpus", "0"]), OutputCopier(str(tmp_path)))
    lot = work.next_batch(0)
    assert lot is not None
    assert work.on_rejected(lot, StokerError("The disk is full.", 4, "disk_full")) is None
    assert work.free_slots(0, 0) == 0
    assert work.next_update() is not None
    assert work.exit_code == 0
    lot = work.next_batch(0)
    assert lot is not None
    assert lot.what == {"line": "echo a"}
    work.on_rejected(lot, StokerError("No.", 6, "impossible"))
    assert work.exit_code == 1
    lot = work.next_batch(0)
    assert lot is not None
    end = work.on_rejected(lot, StokerError("The disk is on fire.", 4, "unavailable"))
    assert end is not None
    assert (end.exit_code, end.message.startswith("The disk is on fire. ")) == (1, True)
    assert bytes(work.outputs.err.waiting).splitlines() == [
        b"simple_gpu_scheduler: The disk is full. Trying again later.",
        b"simple_gpu_scheduler: `echo a` is not run: No.",
    ]
    os.close(lines.fd)


BROKEN = """\
import os
from stoker.store.port import StoreError
from stoker.store.sqlite import SqliteStore as Store
commit = Store.commit
def fail(self, *args, **more):
    if os.path.exists("pids"):
        raise StoreError("The journal cannot be written to.")
    return commit(self, *args, **more)
Store.commit = fail
from stoker.compat.registry import simple_gpu_scheduler as run
raise SystemExit(run())
"""


def test_when_nothing_can_be_recorded_any_more_it_ends_and_what_runs_is_continued(
    idle: DaemonFixture,
) -> None:
    command = [sys.executable, "-c", BROKEN, "--gpus", "0", "1"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=idle.user, **streams) as running:  # type: ignore[call-overload]
        send(running, f"{WAITS}\n")
        (pid,) = pids(idle, 1)
        _, said = running.communicate(b"true\ntrue\n", timeout=30)
    assert running.returncode == 1
    assert said.endswith(
        b"cannot be written to. Running commands continue; the others are not run.\n"
    )
    assert alive(pid)
    idle.up()
    (idle.user / "go").touch()
    assert idle.end_of(1)["state"] == "COMPLETED"


# ------------------------------------------------------------------------------- beside a daemon


def test_beside_a_daemon_it_is_the_same_and_the_ledger_holds(
    idle: DaemonFixture, beside: Beside
) -> None:
    idle.start("{gpu:2,cpu:4}")
    other = idle.submit("--gpus", "1", "--use-gpus", "0", "until [ -e other ]; do sleep 0.05; done")
    idle.becomes(other, "RUNNING")
    running = beside("--gpus", "0", "1")
    send(running, "echo on $CUDA_VISIBLE_DEVICES; exit 3\n" * 2)
    assert running.stdout is not None
    seen = b""
    while seen.count(b"\n") < 3:
        assert select.select([running.stdout], [], [], 30)[0]
        seen += os.read(running.stdout.fileno(), 4096)
    assert b"\non 1\n" in seen
    assert b"on 0\n" not in seen  # announced, but somebody else's job has that GPU
    (idle.user / "other").touch()
    out, said = running.communicate(timeout=30)
    assert (out, running.returncode) == (b"on 0\n", 1)
    assert said.count(b": exit 3\n") == 2
    assert idle.answers()


def test_beside_a_daemon_that_does_not_know_a_device_it_is_taken_on_trust(
    idle: DaemonFixture, run_scheduler: RunScheduler
) -> None:
    idle.start("{cpu:2}")
    done = run_scheduler("echo $CUDA_VISIBLE_DEVICES\n", "--gpus", "abc,7")
    assert done.stdout.splitlines()[1:] == ["7"]
    done = run_scheduler("echo $CUDA_VISIBLE_DEVICES\n", "--gpus", "8", "abc,7")
    assert done.stdout.splitlines()[1:] == ["abc,7"]
    assert set(idle.gpus()) == {"abc", "7"}


def test_beside_a_daemon_an_interrupt_ends_its_own_commands_only(
    idle: DaemonFixture, beside: Beside
) -> None:
    idle.start("{gpu:2,cpu:4}")
    other = idle.submit("exec sleep 300")
    idle.becomes(other, "RUNNING")
    running = beside("--gpus", "0", "1")
    send(running, f"{WAITS}\n" * 3)
    found = pids(idle, 2)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert [pid for pid in found if alive(pid)] == []
    assert idle.job(other)["state"] == "RUNNING"


def test_a_second_scheduler_uses_the_first_ones_daemon_and_outlives_it(
    idle: DaemonFixture, beside: Beside
) -> None:
    first, second = beside("--gpus", "0"), None
    send(first, f"{WAITS}\n")
    pids(idle, 1)
    second = beside("--gpus", "1")
    send(second, "echo before\n")
    assert second.stdout is not None
    seen = b""
    while b"before\n" not in seen.replace(b"echo before", b""):
        assert select.select([second.stdout], [], [], 30)[0]
        seen += os.read(second.stdout.fileno(), 4096)
    (idle.user / "go").touch()
    first.communicate(timeout=30)
    assert first.returncode == 0
    out, said = second.communicate(b"echo after\n", timeout=40)
    assert out.endswith(b"after\n")
    assert (second.returncode, said) == (0, b"")
