"""Calls that are stopped and resumed, with a real daemon."""

import sys
import time
from pathlib import Path

import cloudpickle
import pytest

import stoker
from e2e.daemon_fixture import until

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SOON = 30.0


class Training:
    """Counts steps until a file is there; knows at which steps it began."""

    def __init__(self) -> None:
        self.step = 0
        self.began: list[int] = []

    def __call__(self, go: Path) -> list[int]:
        self.began.append(self.step)
        while not go.exists():
            self.step += 1
            print("step", self.step, flush=True)
            time.sleep(0.02)
        return [*self.began, self.step]

    def checkpoint(self, go: Path) -> stoker.DelayedSubmission:
        return stoker.DelayedSubmission(self, go)


def test_a_call_is_preempted_and_resumed(
    client: stoker.Client, executor: stoker.Executor, tmp_path: Path
) -> None:
    executor.update_parameters(gpus=4)
    future = executor.submit(Training(), tmp_path / "go")
    until(lambda: "step 3" in (future.stdout() or ""))
    urgent = client.run(["true"], gpus=4, priority=5, timeout=SOON)
    assert urgent.ok
    until(lambda: client.show(future).attempt == 1 and future.running())
    assert not future.done()
    (tmp_path / "go").touch()
    first, second, last = future.result(SOON)
    assert (first, second >= 3, last >= second) == (0, True, True)
    past = client.show(future).attempts[0]
    assert (past.exit_code, past.cause) == (75, f"stopped: job {urgent.label} needs its resources")


def test_a_call_at_its_time_limit_is_requeued_a_limited_number_of_times(
    client: stoker.Client, executor: stoker.Executor, tmp_path: Path
) -> None:
    executor.update_parameters(time="12s", signal_delay_s=8, slurm_max_num_timeout=1)
    future = executor.submit(Training(), tmp_path / "never")
    with pytest.raises(stoker.JobFailed, match="max_num_timeout is 1") as caught:
        future.result(SOON)
    assert caught.value.exit_code == 124
    job = client.show(future)
    assert job.attempt == 1
    assert job.attempts[0].cause == "asked to be requeued (exit 75)"
