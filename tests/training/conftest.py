"""Each test has a job of its own to be part of."""

import os
from pathlib import Path

import pytest

from stoker import training
from training.training_dir import TrainingDir

OTHERS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "NODELIST"),
    *("HEARTBEAT_FREQ", "BATCH_SIZE", "TRAINING_SET_SIZE"),
)


@pytest.fixture(autouse=True)
def unattached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is part of no job, and of none that an earlier test had."""
    monkeypatch.setattr(training, "_attached", None)
    for name in list(os.environ):
        if name.startswith(("STOKER_", "JOB_", "EPOCHS_", "NUM_", "PMI_", "OMPI_")):
            monkeypatch.delenv(name)
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def training_dir(tmp_path: Path) -> TrainingDir:
    return TrainingDir(tmp_path)
