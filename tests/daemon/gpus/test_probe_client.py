"""The probe client never blocks and survives everything that the probe process does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fakes.nvml import Gpu
from probes.probe_loop import TIMEOUT, ProbeLoop
from stoker.daemon.gpus import probe_client
from stoker.daemon.gpus.probe_client import read_once
from stoker.probes.gpu_reading import Reading

decode_reading = msgspec.json.Decoder(Reading).decode


@pytest.fixture
def probe(nvml):
    nvml.set([Gpu(uuid="GPU-a")])
    loop = ProbeLoop(nvml.env())
    yield loop
    loop.close()


def replace_child(probe: ProbeLoop, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Make the next child run this code instead of the probe."""
    monkeypatch.setattr(probe_client, "COMMAND", ("-c", f"import sys, time, os\n{code}"))


def test_a_question_is_answered_through_the_pipe(probe):
    probe.ask()
    assert probe.probe.requested_at is not None
    assert not probe.readings  # it did not wait for the answer
    reading = probe.wait()
    assert reading is not None
    assert reading.facts[0].uuid == "GPU-a"
    assert probe.probe.requested_at is None


def test_at_most_one_question_is_open(probe):
    probe.ask()
    requested_at = probe.probe.requested_at
    probe.ask()
    assert probe.probe.requested_at == requested_at
    assert probe.wait() is not None
    assert probe.wait(0.2) is None


def test_a_line_that_arrives_in_pieces_is_joined(probe, monkeypatch):
    line = msgspec.json.encode(Reading(error="joined")) + b"\n"
    replace_child(
        probe, monkeypatch,
        f"sys.stdin.readline()\nfor byte in {list(line)!r}:\n"
        "    os.write(1, bytes([byte])); time.sleep(0.001)\ntime.sleep(60)",
    )  # fmt: skip
    assert probe.read() == Reading(error="joined")


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"facts":1}\n', b"\xff\n", b"[]\n"])
def test_an_invalid_answer_is_an_error_and_the_next_question_gets_a_new_child(
    probe, monkeypatch, line
):
    with monkeypatch.context() as patch:
        replace_child(probe, patch, f"sys.stdin.readline(); os.write(1, {line!r}); time.sleep(60)")
        assert "sent an invalid answer" in (probe.read().error or "")
    assert probe.read().error is None
    assert len(probe.pids) == 2


def test_a_child_that_dies_under_a_question_is_an_error_and_is_started_again(probe):
    probe.ask()
    os.kill(probe.pid, signal.SIGKILL)
    reading = probe.wait()
    assert reading is not None
    assert (reading.error or "").startswith(
        "the process that reads the GPUs ended without an answer: "
    )
    assert (probe.pid, probe.probe.requested_at) == (0, None)
    assert probe.read().facts[0].uuid == "GPU-a"


def test_a_child_that_dies_between_questions_causes_no_reading(probe):
    assert probe.read() is not None
    os.kill(probe.pid, signal.SIGKILL)
    assert probe.wait(1.0) is None
    assert not probe.probe.process.is_running
    assert probe.read().facts[0].uuid == "GPU-a"


def test_asking_a_child_that_has_just_died_starts_another(probe):
    assert probe.read() is not None
    pid = probe.pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    assert probe.read().facts[0].uuid == "GPU-a"
    assert len(probe.pids) == 2


def test_a_child_that_cannot_be_started_is_an_error(probe, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    probe.ask()
    (reading,) = probe.readings
    assert "it cannot be started: No such file" in (reading.error or "")
    assert probe.probe.requested_at is None


def test_a_query_of_a_hanging_driver_is_abandoned_and_repeated_once_it_works(probe, nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="GetMemoryInfo")
    probe.ask()
    assert probe.wait(1.0) is None
    pid = probe.pid
    began = time.monotonic()
    probe.probe.abandon()
    assert time.monotonic() - began < 0.5
    assert (probe.pid, probe.probe.requested_at) == (0, None)
    nvml.set([Gpu(uuid="GPU-a")])
    assert probe.read().facts[0].uuid == "GPU-a"
    eventually(probe.probe.process.reap)
    assert not Path(f"/proc/{pid}").exists()


def test_reap_does_not_wait_for_a_child_that_will_not_die(probe):
    probe.ask()
    probe.probe.process._killed.append(probe.pid)
    assert not probe.probe.process.reap()
    probe.probe.process._killed.clear()


def eventually(condition) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_reading_gives_up_on_a_driver_that_hangs(nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="any")
    began = time.monotonic()
    assert read_once(1.5, nvml.env()) == Reading(
        error="the NVIDIA driver did not answer within 1.5 s"
    )
    assert time.monotonic() - began < TIMEOUT / 2


def test_the_child_has_a_session_of_its_own_and_none_of_our_descriptors(probe):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    assert probe.read() is not None
    child = Path(f"/proc/{probe.pid}")
    held = {fd.name: os.readlink(fd) for fd in (child / "fd").iterdir()}
    os.close(read)
    os.close(write)
    assert set(held) == {"0", "1", "2"}
    assert all(target.startswith("pipe:") for target in held.values())
    assert os.getsid(probe.pid) == probe.pid


def test_signals_that_the_daemon_blocks_are_not_blocked_in_the_child(nvml):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    probe = ProbeLoop(nvml.env())
    try:
        assert probe.read() is not None
        status = Path(f"/proc/{probe.pid}/status").read_text()
        assert "SigBlk:\t0000000000000000" in status
    finally:
        probe.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_the_probe_ends_when_its_daemon_is_gone(nvml):
    done = subprocess.run(
        [sys.executable, "-m", "stoker.probes.probe_main"],
        input=b"read\nwhat?\nread\n",
        capture_output=True,
        env=nvml.env(),
        timeout=TIMEOUT,
        check=True,
    )
    assert [decode_reading(line) for line in done.stdout.splitlines()] == [
        decode_reading(done.stdout.split()[0])
    ] * 2


def helper(nvml, setup: str) -> subprocess.Popen[bytes]:
    code = f"from stoker.probes import probe_main as helper; helper.{setup}; helper.main()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=nvml.env(),
    )


def test_a_probe_that_hangs_ends_itself(nvml):
    nvml.set([Gpu(uuid="GPU-a")], hang="any")
    with helper(nvml, "_READ_TIMEOUT_SECONDS = 1") as process:
        process.stdin.write(b"read\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == -signal.SIGALRM


def test_a_probe_with_an_outdated_library_ends_for_a_new_one(nvml):
    nvml.set(init_error=18)
    with helper(nvml, "_OUTDATED_SECONDS = 0") as process:
        process.stdin.write(b"read\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT) == 0
        assert "different versions" in (decode_reading(process.stdout.read()).error or "")


def test_modules_in_the_working_directory_are_not_imported(nvml, tmp_path, monkeypatch):
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "__init__.py").write_text("raise SystemExit('the wrong stoker')")
    monkeypatch.chdir(tmp_path)
    assert read_once(TIMEOUT, nvml.env()).error is None


def test_importing_it_is_cheap(nvml):
    code = (
        "import sys, msgspec; before = set(sys.modules); import stoker.daemon.gpus.probe_client; "
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
    assert not {"pynvml", "ctypes", "asyncio"} & set(loaded)
