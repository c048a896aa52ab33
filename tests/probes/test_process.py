"""The daemon's end of the helper: never blocks, survives whatever the child does."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.nvml import Gpu
from stoker.probes.gpu_reading import Reading, decode, encode
from stoker.probes.probe_client import ProbeProcess, read_once

TIMEOUT = 30


@pytest.fixture
def probe(nvml):
    nvml.set([Gpu(uuid="GPU-a")])
    process = ProbeProcess(nvml.env())
    yield process
    process.close()


def wait(probe: ProbeProcess) -> Reading | None:
    """Return what `receive` says once the pipe has something to say."""
    assert select.select([probe], [], [], TIMEOUT)[0]
    return probe.receive()


def eventually(condition) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_question_is_answered_through_the_pipe(probe):
    assert probe.fileno() == -1
    probe.ask()
    assert probe.waiting_since is not None
    assert probe.receive() is None  # not there yet, and did not wait for it
    reading = wait(probe)
    assert reading is not None
    assert reading.facts[0].uuid == "GPU-a"
    assert probe.waiting_since is None
    assert probe.receive() is None


def test_at_most_one_question_is_outstanding(probe):
    probe.ask()
    asked = probe.waiting_since
    probe.ask()
    assert probe.waiting_since == asked
    assert wait(probe) is not None
    assert not select.select([probe], [], [], 0.2)[0]


def test_a_line_that_arrives_in_pieces_is_put_together(probe):
    probe.start()
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.dup2(read, probe.fileno(), inheritable=False)
    os.close(read)
    probe.ask()
    line = encode(Reading(error="word")) + b"\n"
    for at in range(len(line) - 1):
        os.write(write, line[at : at + 1])
        assert probe.receive() is None
    os.write(write, line[-1:])
    assert probe.receive() == Reading(error="word")
    os.close(write)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"facts":1}\n', b"\xff\n", b"[]\n"])
def test_nonsense_is_an_error_and_the_next_question_gets_a_new_child(probe, line):
    probe.start()
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.dup2(read, probe.fileno(), inheritable=False)
    os.close(read)
    probe.ask()
    os.write(write, line)
    os.close(write)
    reading = probe.receive()
    assert reading is not None
    assert "sent an invalid answer" in (reading.error or "")
    probe.ask()
    assert wait(probe).error is None
    assert probe.generation == 2


def test_a_child_that_dies_under_a_question_is_an_error_and_is_started_again(probe):
    probe.ask()
    os.kill(probe._pid, signal.SIGKILL)
    reading = wait(probe)
    assert reading == Reading(error="the process that reads the GPUs ended without an answer")
    assert (probe.fileno(), probe.waiting_since) == (-1, None)
    probe.ask()
    assert wait(probe).facts[0].uuid == "GPU-a"


def test_a_child_that_dies_between_questions_is_no_news(probe):
    probe.ask()
    assert wait(probe) is not None
    os.kill(probe._pid, signal.SIGKILL)
    assert wait(probe) is None
    assert not probe.running
    probe.ask()
    assert wait(probe).facts[0].uuid == "GPU-a"


def test_asking_a_child_that_has_just_died_starts_another(probe):
    probe.ask()
    assert wait(probe) is not None
    pid = probe._pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    probe.ask()
    assert wait(probe).facts[0].uuid == "GPU-a"
    assert probe.generation == 2


def test_a_driver_that_hangs_is_abandoned_and_asked_again_once_it_is_well(probe, nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="GetMemoryInfo")
    probe.ask()
    assert not select.select([probe], [], [], 1.0)[0]
    pid = probe._pid
    began = time.monotonic()
    probe.abandon()
    assert time.monotonic() - began < 0.5
    assert (probe.running, probe.waiting_since, probe.fileno()) == (False, None, -1)
    nvml.set([Gpu(uuid="GPU-a")])
    probe.ask()
    assert wait(probe).facts[0].uuid == "GPU-a"

    def reaped() -> bool:
        probe.reap()
        return pid not in probe._abandoned

    eventually(reaped)
    assert not Path(f"/proc/{pid}").exists()


def test_reap_does_not_wait_for_a_child_that_will_not_die(probe):
    probe.start()
    probe._abandoned.append(probe._pid)
    probe.reap()
    assert probe._abandoned == [probe._pid]


def test_a_look_at_start_up_gives_up_on_a_driver_that_hangs(nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="any")
    began = time.monotonic()
    assert read_once(1.5, nvml.env()) == Reading(
        error="the NVIDIA driver did not answer within 1.5 s"
    )
    assert time.monotonic() - began < TIMEOUT / 2


def test_the_child_has_a_session_of_its_own_and_none_of_our_descriptors(probe):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    probe.ask()
    assert wait(probe) is not None
    child = Path(f"/proc/{probe._pid}")
    held = {fd.name: os.readlink(fd) for fd in (child / "fd").iterdir()}
    os.close(read)
    os.close(write)
    assert set(held) == {"0", "1", "2"}
    assert held["0"].startswith("pipe:")
    assert held["1"].startswith("pipe:")
    assert held["2"] == "/dev/null"
    assert os.getsid(probe._pid) == probe._pid


def test_signals_that_the_daemon_blocks_are_not_blocked_in_the_child(nvml):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    probe = ProbeProcess(nvml.env())
    try:
        probe.ask()
        assert wait(probe) is not None
        status = Path(f"/proc/{probe._pid}/status").read_text()
        assert "SigBlk:\t0000000000000000" in status
    finally:
        probe.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_the_helper_leaves_when_its_daemon_is_gone(nvml):
    done = subprocess.run(
        [sys.executable, "-m", "stoker.probes.probe_main"],
        input=b"read\nwhat?\nread\n",
        capture_output=True,
        env=nvml.env(),
        timeout=TIMEOUT,
        check=True,
    )
    assert [decode(line) for line in done.stdout.splitlines()] == [
        decode(done.stdout.split()[0])
    ] * 2


def helper(nvml, setup: str) -> subprocess.Popen[bytes]:
    code = f"from stoker.probes import probe_main as helper; helper.{setup}; helper.main()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=nvml.env(),
    )


def test_a_helper_that_hangs_and_that_nobody_ends_ends_itself(nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="any")
    with helper(nvml, "_GIVE_UP = 1") as process:
        process.stdin.write(b"read\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == -signal.SIGALRM


def test_a_helper_whose_library_is_outdated_makes_room_for_a_new_one(nvml):
    nvml.set(init_error=18)
    with helper(nvml, "_OUTDATED = 0") as process:
        process.stdin.write(b"read\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == 0
        assert "different versions" in (decode(process.stdout.read()).error or "")


def test_the_directory_where_the_daemon_stands_lends_no_modules(nvml, tmp_path, monkeypatch):
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "__init__.py").write_text("raise SystemExit('the wrong stoker')")
    monkeypatch.chdir(tmp_path)
    assert read_once(TIMEOUT, nvml.env()).error is None


def test_importing_it_is_cheap(nvml):
    code = (
        "import sys, msgspec; before = set(sys.modules); import stoker.probes.probe_client; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=nvml.env(),
        check=True,
        timeout=TIMEOUT,
    ).stdout.split()
    assert not {"pynvml", "ctypes", "subprocess", "asyncio", "threading"} & set(loaded)
    assert [name for name in loaded if name.startswith("stoker.")] == [
        "stoker.probes",
        "stoker.probes.gpu_reading",
        "stoker.probes.probe_client",
    ]
