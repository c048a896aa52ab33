"""For Keras, also within TensorFlow: a callback that measures, saves, stops and resumes.

`callback = StokerCallback()`, and then
`model.fit(..., initial_epoch=callback.initial_epoch, callbacks=[callback])`.
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

PREFIX, SUFFIX = "stoker-", ".weights.h5"


def _base() -> type:
    """Return the Callback class, of TensorFlow's Keras if the script uses TensorFlow."""
    name = "tensorflow" if "tensorflow" in sys.modules else "keras"
    module: Any = import_module(name)
    keras = module.keras if name == "tensorflow" else module
    callback: type = keras.callbacks.Callback
    return callback


class StokerCallback(_base()):  # type: ignore[misc]
    """Reports epochs and steps, saves each epoch, and stops on request.

    `save=False`: the script saves and loads by itself, under `job.checkpoint_dir`, every epoch.
    """

    def __init__(self, save: bool = True) -> None:
        super().__init__()
        self._job = attach()
        self._save = save and self._job.attached
        self._ended_epoch: int | None = None
        self._trained_model: object = None

    @property
    def initial_epoch(self) -> int:
        """The epoch to resume with; 0 for a new training."""
        if not self._job.restarted or self._job.has_started:
            return 0
        saved = self._saved() if self._save else None
        return saved[0] if saved else self._job.epochs_done

    def _saved(self) -> tuple[int, str] | None:
        saved = checkpoints.numbered(self._job.checkpoint_dir, PREFIX, SUFFIX)
        return saved[-1] if saved else None

    def on_train_begin(self, logs: object = None) -> None:
        """Load what the last attempt has saved, including the optimizer's state."""
        if self._trained_model is not self.model:
            self._ended_epoch = None  # the epoch was that of another model
        saved = self._saved() if self._save and self._job.restarted else None
        if saved is None or self._job.has_started:
            return
        optimizer: Any = getattr(self.model, "optimizer", None)
        # _built in Keras 2; an optimizer that is not built loads nothing from the file.
        built = getattr(optimizer, "built", getattr(optimizer, "_built", False))
        if not built and hasattr(optimizer, "build"):
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(saved[1])

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Save the previous epoch, now that all callbacks have run, and begin the next one."""
        if self._save and self._ended_epoch is not None:
            self._save_epoch(self._ended_epoch + 1)
        self._job.start_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Measure a step."""
        self._job.measure()

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """End the epoch, after validation."""
        self._job.report(logs, step=epoch)
        self._job.end_epoch()
        self._ended_epoch, self._trained_model = epoch, self.model

    def _save_epoch(self, done: int) -> None:
        """Replace the checkpoint; only one of several workers writes it."""
        if self._job.is_silent or self._job.apart:
            return
        directory = self._job.checkpoint_dir
        path = f"{directory}/{PREFIX}{done}{SUFFIX}"
        new = f"{directory}/.new{SUFFIX}"  # Keras requires the suffix
        self.model.save_weights(new)
        self._job.check_current()
        os.replace(new, path)
        for number, older in checkpoints.numbered(directory, PREFIX, SUFFIX):
            if number != done:
                checkpoints.remove(older)
