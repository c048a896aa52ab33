"""Framework callbacks of an older attempt: what they were saving is not put in place."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stoker import training
from training.training_dir import TrainingDir

Save = Callable[[Callable[[str], None]], None]
"""Trains an epoch and saves it; the argument is what the framework does to write a file."""


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingDir:
    """Attempt 0 of a job, which this process is part of."""
    directory = TrainingDir(tmp_path, attempt=0, STOKER_ATTEMPT=0)
    monkeypatch.setattr(training, "_attached", directory.job())
    return directory


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    """Install a module with these attributes, and its parents."""
    words = name.split(".")
    for end in range(1, len(words) + 1):
        module = ModuleType(".".join(words[:end]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for key, value in attributes.items():
        setattr(module, key, value)


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    monkeypatch.delitem(sys.modules, f"stoker.training.{name}", raising=False)
    module = importlib.import_module(f"stoker.training.{name}")
    monkeypatch.delitem(sys.modules, module.__name__)
    return module


def with_keras(monkeypatch: pytest.MonkeyPatch) -> Save:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    fake(monkeypatch, "keras", callbacks=SimpleNamespace(Callback=object))
    callback = load(monkeypatch, "keras").StokerCallback()

    def save(write: Callable[[str], None]) -> None:
        callback.model = SimpleNamespace(save_weights=write)
        callback.on_epoch_begin(0)
        callback.on_epoch_end(0)
        callback.on_epoch_begin(1)

    return save


def with_lightning(monkeypatch: pytest.MonkeyPatch) -> Save:
    bases = {"Callback": type("Callback", (), {}), "Checkpoint": type("Checkpoint", (), {})}
    fake(monkeypatch, "lightning.pytorch.callbacks", **bases)
    callback = load(monkeypatch, "lightning").StokerCallback()

    def save(write: Callable[[str], None]) -> None:
        trainer: Any = SimpleNamespace(
            callbacks=[], current_epoch=0, save_checkpoint=write, is_global_zero=True,
            callback_metrics={}, global_step=1, strategy=SimpleNamespace(barrier=lambda _: None),
        )  # fmt: skip
        callback.setup(trainer, None, "fit")
        callback.on_train_epoch_start(trainer, None)
        callback.on_train_epoch_end(trainer, None)
        trainer.callbacks[0].on_train_epoch_end(trainer, None)

    return save


def with_accelerate(monkeypatch: pytest.MonkeyPatch) -> Save:
    epochs = load(monkeypatch, "accelerate").epochs

    def save(write: Callable[[str], None]) -> None:
        accelerator = SimpleNamespace(
            save_state=write, wait_for_everyone=lambda: None, is_main_process=True
        )
        assert list(epochs(accelerator, 1)) == [0]

    return save


def with_transformers(monkeypatch: pytest.MonkeyPatch) -> Save:
    fake(monkeypatch, "transformers", TrainerCallback=object)
    directory = training.attach().checkpoint_dir
    callback = load(monkeypatch, "transformers").StokerCallback(directory)

    def save(write: Callable[[str], None]) -> None:
        args = SimpleNamespace(output_dir=directory)
        state = SimpleNamespace(epoch=0.0, global_step=1, max_steps=9)
        control = SimpleNamespace(should_save=False)
        callback.on_epoch_begin(args, state, control)
        callback.on_step_end(args, state, control)
        write(f"{directory}/unused.new")  # here the newer attempt starts
        callback.on_epoch_end(args, state, control)
        assert control.should_save
        Path(directory, "checkpoint-1").touch()

    return save


@pytest.mark.parametrize(
    "framework", [with_keras, with_lightning, with_accelerate, with_transformers]
)
def test_a_save_is_not_put_in_place_if_a_newer_attempt_starts_meanwhile(
    older: TrainingDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    framework: Callable[[pytest.MonkeyPatch], Save],
) -> None:
    def write(path: str) -> None:
        Path(path).touch()

    def write_late(path: str) -> None:
        write(path)
        TrainingDir(tmp_path, attempt=1, STOKER_ATTEMPT=1).job()

    directory = older.checkpoints
    save = framework(monkeypatch)
    save(write)
    saved = [name for name in os.listdir(directory) if "." not in name or "1." in name]
    assert len(saved) == 1
    os.unlink(directory / saved[0])
    monkeypatch.setattr(training, "_attached", older.job())
    with pytest.raises(SystemExit) as stop:
        framework(monkeypatch)(write_late)
    assert stop.value.code == 75
    assert not (directory / saved[0]).exists()
