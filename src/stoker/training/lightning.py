"""For Lightning, under either of its names: a callback that measures, saves, stops and resumes.

`callback = StokerCallback()`, and then
`Trainer(callbacks=[callback], ...).fit(model, ckpt_path=callback.ckpt_path)`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from stoker.training import attach, checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.training.training_job import Job

NAMES = ("lightning.pytorch", "pytorch_lightning")
PREFIX, SUFFIX = "stoker-", ".ckpt"


def _bases(name: str) -> tuple[type, ...]:
    """That class of each Lightning that the script has imported, else of one that is there."""
    found = [module for module in NAMES if module in sys.modules]
    if not found:
        try:
            import_module(NAMES[0])
            found = [NAMES[0]]
        except ImportError:
            found = [NAMES[1]]
    return tuple(getattr(import_module(f"{module}.callbacks"), name) for module in found)


class StokerCallback(*_bases("Callback")):  # type: ignore[misc]
    """Tells stoker about epochs and steps, saves each epoch, and stops when asked to.

    `save=False`: the script saves by itself, under `job.checkpoint_dir`, every epoch.
    """

    def __init__(self, save: bool = True) -> None:
        super().__init__()
        self._job = attach()
        self._save = save and self._job.attached

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint to go on from; None on a fresh start."""
        if not self._job.restarted or self._job.underway:
            return None
        directory = self._job.checkpoint_dir
        ours = checkpoints.numbered(directory, PREFIX, SUFFIX)
        return ours[-1][1] if ours else self._job.checkpoint

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Save after everybody else: behind the callbacks that the trainer itself puts last."""
        if stage != "fit" or not self._save:
            return
        if not any(isinstance(callback, _Saver) for callback in trainer.callbacks):
            trainer.callbacks.append(_Saver(self._job))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """All savers of the epoch before have run."""
        self._job.start_epoch(trainer.current_epoch)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """A step is over."""
        self._job.measure()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over, too, and what the model has logged is ours."""
        self._job.report(trainer.callback_metrics, step=trainer.global_step)
        self._job.end_epoch()


class _Saver(*_bases("Checkpoint")):  # type: ignore[misc]
    """Keeps one checkpoint: that of the last epoch."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._directory = job.checkpoint_dir

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Every process takes part in saving; the first puts the result in place."""
        if self._job.apart:
            return
        done = trainer.current_epoch + 1
        path = f"{self._directory}/{PREFIX}{done}{SUFFIX}"
        trainer.save_checkpoint(f"{path}.new")
        if trainer.is_global_zero:
            checkpoints.remove(path)
            os.replace(f"{path}.new", path)
            for number, older in checkpoints.numbered(self._directory, PREFIX, SUFFIX):
                if number != done:
                    checkpoints.remove(older)
        trainer.strategy.barrier("stoker")
