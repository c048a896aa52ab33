"""Starts that fail: an obstacle that may pass is retried, and no attempt is taken for lost."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors.recording_sink import RecordingSink
from specs import launch_of
from stoker.core.events import Event, ForeignUseChanged, StartCancelled, StartFailed
from stoker.core.launch.launch import Launch
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.local import supervisor_pool
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import COMPLETE
from stoker.executors.port import SHORTAGE_SECONDS, AttemptId
from virtual_reactor import VirtualReactor

ATTEMPT = AttemptId(7, 2)
PLACEMENT = Placement("here", (DeviceAllocation("gpu", "0", 1000),))


class RecordingSupervisor:
    """A supervisor client that only records messages."""

    pid = 1

    def __init__(self) -> None:
        self.starting = 0
        self.sent: list[tuple[object, ...]] = []
        self.unsent = b""
        self.wire = self
        self.sock = self

    def send(self, *message: object) -> None:
        self.sent.append(message)

    def send_environment(self, hash: str, environment: Callable[[str], dict[str, str]]) -> None:
        environment(hash)

    def flush(self) -> bool:
        return False

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def launch(tmp_path: Path, **more: Any) -> Launch:
    given = {
        "attempt": 2, "argv": ("/bin/true",), "extra": {"STOKER_TOKEN": "t.7.2"},
        "out": str(tmp_path / "out"), "gpus": ("GPU-a",), "placement": PLACEMENT,
    }  # fmt: skip
    return launch_of(**{**given, **more})


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalExecutor:
    run = tmp_path / "state" / "run"
    for name in (run, tmp_path / "exits", tmp_path / "scripts"):
        name.mkdir(parents=True)
    (run / COMPLETE).touch()
    monkeypatch.setattr(supervisor_pool, "SUPERVISORS", 1)
    places = ExecutorPaths(
        str(run), str(tmp_path / "exits"), str(tmp_path / "scripts"), str(tmp_path)
    )
    executor: Any = LocalExecutor(
        places, "t", [RecordingSupervisor()], VirtualReactor(),  # type: ignore[list-item]
        lambda _: b"A=1", lambda _: b"#!/bin/sh\n",
        gpu_locks=GpuLocks(str(tmp_path / "gpus"), report=lambda _: None),
    )  # fmt: skip
    executor.open(RecordingSink())
    return executor  # type: ignore[no-any-return]


def reported(executor: LocalExecutor) -> list[Event]:
    """Return the events that an executor has reported."""
    assert isinstance(executor._sink, RecordingSink)
    return executor._sink.events


def close(executor: LocalExecutor) -> None:
    """Close an executor as a daemon does whose journal has no running attempt."""
    executor.close()
    executor.clear_run_directory()


def proves_no_start(executor: LocalExecutor) -> bool:
    """Return whether the next daemon can conclude that an attempt without a claim never started."""
    return os.path.exists(f"{executor.paths.run}/{COMPLETE}")


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Make the creation of files fail with this error."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **names: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_gpu_that_cannot_be_locked_cancels_the_start(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "gpus").mkdir()
    refuse(monkeypatch, code)
    executor.start(launch(tmp_path))
    cancelled, marked = reported(executor)
    assert isinstance(cancelled, StartCancelled)
    assert (cancelled.job, cancelled.attempt) == ATTEMPT
    assert cancelled.delay > 0, "a job that may use any GPU would be planned again at once"
    assert os.strerror(code) in cancelled.why
    assert isinstance(marked, ForeignUseChanged)
    assert (marked.node, marked.device) == ("here", "0")
    assert executor.attempts == {}
    assert executor.supervisors.clients[0].sent == []  # type: ignore[attr-defined]


def test_an_attempt_is_registered_before_its_start_can_fail(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(executor.gpu_locks, "take", broken)
    with pytest.raises(RuntimeError):
        executor.start(launch(tmp_path))
    close(executor)
    assert proves_no_start(executor)


def test_a_running_job_without_a_claim_keeps_the_proof_that_it_never_started(
    executor: LocalExecutor,
) -> None:
    executor.close()  # planned and in the journal, but the daemon ended before its start
    assert proves_no_start(executor)


def test_the_run_directory_is_removed_when_all_attempts_have_ended(executor: LocalExecutor) -> None:
    close(executor)
    assert not os.path.exists(executor.paths.run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
def test_a_shortage_while_a_start_is_composed_cancels_it_for_a_while(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(monkeypatch, code)
    executor.start(launch(tmp_path, gpus=(), script="abc"))
    (cancelled,) = reported(executor)
    assert isinstance(cancelled, StartCancelled)
    assert cancelled.delay == SHORTAGE_SECONDS
    assert executor.attempts == {}


def test_a_permanent_error_fails_the_job_and_releases_its_gpus(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.commands, "blob", lambda _: None)
    executor.start(launch(tmp_path, script="abc"))
    (failed,) = reported(executor)
    assert isinstance(failed, StartFailed)
    assert executor.gpu_locks.paths(ATTEMPT) == []
    assert executor.attempts == {}


def test_without_space_for_a_supervisor_starts_wait(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: str) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(supervisor_pool, "spawn_supervisor", full)
    executor.supervisors.clients.clear()
    executor.start(launch(tmp_path))
    (cancelled,) = reported(executor)
    assert isinstance(cancelled, StartCancelled)
    assert cancelled.delay == SHORTAGE_SECONDS
    assert executor.gpu_locks.paths(ATTEMPT) == []


@pytest.mark.parametrize(("truncate", "kept"), [(False, "old\n"), (True, "")])
def test_output_files_are_emptied_on_request(
    truncate: bool, kept: str, executor: LocalExecutor, tmp_path: Path
) -> None:
    for name in ("out", "err"):
        (tmp_path / name).write_text("old\n")
    executor.start(launch(tmp_path, err=str(tmp_path / "err"), truncate_output=truncate))
    assert [(tmp_path / name).read_text() for name in ("out", "err")] == [kept, kept]
    close(executor)
