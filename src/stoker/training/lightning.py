"""For Lightning, under either package name: a callback that measures, saves, stops and resumes.

`callback = StokerCallback()`, and then
`Trainer(callbacks=[callback], ...).fit(model, ckpt_path=callback.ckpt_path)`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from stoker.training import attach
from stoker.training.runtime import checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.training.training_job import Job

NAMES = ("lightning.pytorch", "pytorch_lightning")
PREFIX, SUFFIX = "stoker-", ".ckpt"


def _bases(name: str) -> tuple[type, ...]:
    """Return the class of each imported Lightning package, else of an installed one."""
    modules = [module for module in NAMES if module in sys.modules]
    if not modules:
        try:
            import_module(NAMES[0])
            modules = [NAMES[0]]
        except ImportError:
            modules = [NAMES[1]]
    return tuple(getattr(import_module(f"{module}.callbacks"), name) for module in modules)


class StokerCallback(*_bases("Callback")):  # type: ignore[misc]
    """Reports epochs and steps, saves each epoch, and stops on request.

    `save=False`: the script saves by itself, under `job.checkpoint_dir`, every epoch.
    """

    def __init__(self, save: bool = True) -> None:
        super().__init__()
        self._job = attach()
        self._save = save and self._job.attached

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint to resume from; None for a new training."""
        if not self._job.restarted or self._job.has_started:
            return None
        directory = self._job.checkpoint_dir
        saved = checkpoints.numbered(directory, PREFIX, SUFFIX)
        return saved[-1][1] if saved else self._job.checkpoint

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Add the callback that saves after all others, also those that the trainer puts last."""
        if stage != "fit" or not self._save:
            return
        if not any(isinstance(callback, _Saver) for callback in trainer.callbacks):
            trainer.callbacks.append(_Saver(self._job))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch; all callbacks that save the previous one have run."""
        self._job.start_epoch(trainer.current_epoch)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Measure a step."""
        self._job.measure()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report what the model has logged, and end the epoch after validation."""
        self._job.report(trainer.callback_metrics, step=trainer.global_step)
        self._job.end_epoch()


class _Saver(*_bases("Checkpoint")):  # type: ignore[misc]
    """Saves the last epoch as the only checkpoint."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._directory = job.checkpoint_dir

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save in all processes; rank 0 then replaces the old checkpoint."""
        if self._job.apart:
            return
        done = trainer.current_epoch + 1
        path = f"{self._directory}/{PREFIX}{done}{SUFFIX}"
        self._job.check_current()
        trainer.save_checkpoint(f"{path}.new")
        if trainer.is_global_zero:
            self._job.check_current()
            checkpoints.remove(path)
            os.replace(f"{path}.new", path)
            for number, older in checkpoints.numbered(self._directory, PREFIX, SUFFIX):
                if number != done:
                    checkpoints.remove(older)
        trainer.strategy.barrier("stoker")
