"""submitit, unmodified, submits to stoker with Slurm's commands."""

from collections.abc import Iterator

import pytest

from compat.home_env import temporary_base
from compat.slurm_env import SlurmEnv

pytestmark = pytest.mark.e2e

PROGRAM = '''
import os
import time

import submitit
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob


def square(x):
    if x == 3:
        raise ValueError("three")
    return x * x, int(os.environ["SLURM_NTASKS"])


class Training:
    """Counts; its checkpoint is the object itself."""

    def __init__(self):
        self.done = 0

    def __call__(self, limit):
        while self.done < limit:
            self.done += 1
            open("progress", "w").write(str(self.done))
            time.sleep(0.02)
            if self.done == 5:
                while "SLURM_RESTART_COUNT" not in os.environ:
                    time.sleep(0.05)
        return self.done, os.environ["SLURM_RESTART_COUNT"]

    def checkpoint(self, limit):
        return submitit.helpers.DelayedSubmission(self, limit)


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    executor = submitit.SlurmExecutor(folder="logs", max_num_timeout=1)
    assert submitit.AutoExecutor(folder="logs").cluster == "slurm"
    SlurmJob.watcher = SlurmInfoWatcher(delay_s=1)
    executor.update_parameters(
        time=5, gpus_per_node=1, array_parallelism=2, signal_delay_s=30, comment="a b",
        stderr_to_stdout=True,
    )
    assert executor.submit(square, 5).result() == (25, 1)

    jobs = executor.map_array(square, [1, 2, 3])
    assert [job.job_id.partition("_")[2] for job in jobs] == ["0", "1", "2"]
    assert [job.result()[0] for job in jobs[:2]] == [1, 4]
    assert "three" in str(jobs[2].exception())
    assert jobs[2].state == "FAILED", jobs[2].state

    job = executor.submit(time.sleep, 100)
    wait_for(lambda: job.get_info(mode="force").get("State") == "RUNNING")
    job.cancel()
    wait_for(lambda: job.get_info(mode="force").get("State", "").startswith("CANCELLED"))

    job = executor.submit(Training(), 8)
    wait_for(lambda: os.path.exists("progress") and open("progress").read() == "5")
    job._interrupt(timeout=True)
    assert job.result() == (8, "1"), job.result()
    assert job.get_info(mode="force")["State"] == "COMPLETED"
    print("all done")
'''


@pytest.fixture
def slurm() -> Iterator[SlurmEnv]:
    with temporary_base() as base:
        yield SlurmEnv(base)


def test_submitit(slurm: SlurmEnv) -> None:
    """One job, an array, an exception, a cancellation, a checkpoint on time-out and its requeue."""
    (slurm.user / "program.py").write_text(PROGRAM)
    assert slurm.ok("python", "program.py").endswith("all done\n")
