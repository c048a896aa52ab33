"""HookRunner: commands for the end of a job and for an empty queue."""

import logging
import time
from pathlib import Path

import pytest

from core.scenario import Scenario
from stoker.daemon.control import hooks
from stoker.daemon.control.hooks import HookRunner, hook_view, record_path


def wait_for(path: Path) -> str:
    for _ in range(500):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    pytest.fail(f"{path} was not written")


def ended_job(**spec: object) -> Scenario:
    scenario = Scenario()
    job = scenario.submit(**spec)
    scenario.run(job)
    scenario.exited(job, 3)
    return scenario


def test_the_end_of_a_job_runs_the_command_with_the_job_in_its_environment(tmp_path: Path):
    scenario = ended_job()
    out = tmp_path / "out"
    runner = HookRunner(
        lambda: scenario.state, str(tmp_path),
        f'echo "$STOKER_EVENT $STOKER_JOB_ID $STOKER_STATE $STOKER_CODE" >{out}; echo said', None,
    )  # fmt: skip
    runner.run_job_end(1)
    assert wait_for(out) == "end 1 FAILED 3\n"
    wait_for(Path(record_path(str(tmp_path), 1) + ".code"))
    view = hook_view(record_path(str(tmp_path), 1))
    assert view is not None
    assert "said" in str(view)


def test_a_job_that_is_gone_and_a_missing_command_run_nothing(tmp_path: Path):
    scenario = ended_job()
    HookRunner(lambda: scenario.state, str(tmp_path), None, None).run_job_end(1)
    HookRunner(lambda: scenario.state, str(tmp_path), "true", None).run_job_end(99)
    HookRunner(lambda: scenario.state, str(tmp_path), None, None).run_queue_empty()
    assert list(tmp_path.iterdir()) == []
    assert hook_view(record_path(str(tmp_path), 1)) is None


def test_an_empty_queue_runs_its_command_and_a_failure_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    scenario, out = Scenario(), tmp_path / "out"
    command = f'echo "$STOKER_EVENT" >{out}; exit 4'
    runner = HookRunner(lambda: scenario.state, str(tmp_path), None, command)
    runner.run_queue_empty()
    assert wait_for(out) == "empty\n"
    with caplog.at_level(logging.WARNING, "stoker"):
        for _ in range(500):
            runner.reap()
            if caplog.records:
                break
            time.sleep(0.01)
    assert "ended with code 4" in caplog.text
    runner.reap()


def test_a_command_that_cannot_be_started_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> int:
        raise OSError("no processes left")

    monkeypatch.setattr(hooks, "run_hook", fail)
    with caplog.at_level(logging.WARNING, "stoker"):
        HookRunner(lambda: Scenario().state, str(tmp_path), None, "true").run_queue_empty()
    assert "no processes left" in caplog.text
