"""What the processes of a hung attempt are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.events import AlarmRaised
from stoker.core.model.alarm import Alarm
from stoker.daemon.alarms import evidence
from stoker.daemon.alarms.evidence import EvidenceCollector, describe
from stoker.daemon.runtime.reactor import EpollReactor

HUNG = "import sys, time; print('up', flush=True); time.sleep(1000)"
EVENT = AlarmRaised(at=1.0, alarm=Alarm(kind="hung", since=0.0, text="", job=1))


@pytest.fixture
def job() -> Iterator[int]:
    """A shell in a session of its own that waits for a Python program."""
    line = f'"{sys.executable}" -c "{HUNG}"; true'
    process = subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def py_spy(directory: Path, text: str) -> None:
    program = directory / "py-spy"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_every_process_is_described(
    job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without py-spy
    lines = describe(job).splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.partition(" ")[0] for line in heads] == ["sh", "python"] or "python" in heads[1]
    assert heads[0].startswith(f"sh (pid {job}): sleeping")
    assert all("1 threads" in line for line in heads)


def test_the_stack_of_a_python_process_is_shown(
    job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy(
        tmp_path,
        """echo "Python v3.11"; echo; echo 'Thread 7 (idle): "MainThread"'
        printf '    all_reduce (dist.py:3)\\033[1m\\n'""",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    text = describe(job)
    assert '  Thread 7 (idle): "MainThread"\n      all_reduce (dist.py:3)' in text
    assert "\x1b" not in text
    assert "Python v3.11" not in text


@pytest.mark.parametrize("script", ["exec sleep 1000", "echo Thread 1; exit 1"])
def test_a_tool_that_hangs_or_fails_is_given_up(
    job: int, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "STACK_SECONDS", 0.2)
    py_spy(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    text = describe(job)
    assert "Thread" not in text
    assert f"sh (pid {job})" in text


def collected(pid: int) -> list[AlarmRaised]:
    """The alarm that was held back."""
    reactor = EpollReactor()
    woken: list[bool] = []
    collector = EvidenceCollector(reactor, lambda: woken.append(True))
    assert collector.collect(EVENT, pid)
    assert not collector.collect(EVENT, pid)
    assert collector.take() == []
    while not woken:
        reactor.wait(30.0)
    return collector.take()


def test_an_alarm_is_raised_with_its_evidence(job: int) -> None:
    (event,) = collected(job)
    assert f"sh (pid {job})" in event.alarm.evidence
    assert (event.at, event.alarm.kind) == (1.0, "hung")


def test_an_alarm_is_raised_without_evidence_that_takes_too_long(
    job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy(tmp_path, "exec sleep 1000")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(evidence, "TIMEOUT_SECONDS", 0.1)
    (event,) = collected(job)
    assert event.alarm == EVENT.alarm


def test_the_evidence_of_a_process_that_has_ended_is_empty() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    (event,) = collected(child.pid)
    assert event.alarm == EVENT.alarm
