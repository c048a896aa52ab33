"""The contract of executors, for those that use a real Slurm: in a pilot, and handed over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.contract import (
    BarrierContract,
    ExecutorContract,
    ProcessBarrierContract,
    ProcessContract,
    SuspendContract,
)
from slurm.handover_bench import HandoverBench
from slurm.pilot_bench import PilotBench, new_name
from slurm.slurm_cluster import SlurmCluster


@pytest.fixture(scope="class")
def job(
    shared_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """The name of the allocation of all tests, and the home directory in it."""
    home = tmp_path_factory.mktemp("home")
    shared_slurm.set_home(home)
    yield new_name(), home
    shared_slurm.cancel_all()


class TestPilot(
    ExecutorContract, SuspendContract, BarrierContract, ProcessContract, ProcessBarrierContract
):
    @pytest.fixture
    def bench(
        self,
        tmp_path: Path,
        job: tuple[str, Path],
        shared_slurm: SlurmCluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[PilotBench]:
        for name, value in shared_slurm.environment.items():
            monkeypatch.setenv(name, value)
        name, home = job
        monkeypatch.setenv("HOME", str(home))
        (home / "ran").unlink(missing_ok=True)
        made = PilotBench(tmp_path, home, name)
        yield made
        made.stop()


class TestHandover(ExecutorContract, SuspendContract, ProcessContract):
    @pytest.fixture
    def bench(
        self,
        tmp_path: Path,
        shared_slurm: SlurmCluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[HandoverBench]:
        for name, value in shared_slurm.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        shared_slurm.set_home(tmp_path)
        made = HandoverBench(tmp_path, tmp_path)
        yield made
        made.stop()
        shared_slurm.cancel_all()
