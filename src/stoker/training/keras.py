"""For Keras, alone or as part of TensorFlow: a callback that measures, saves, stops and resumes.

`callback = StokerCallback()`, and then
`model.fit(..., initial_epoch=callback.initial_epoch, callbacks=[callback])`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from stoker.training import attach, checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX, SUFFIX = "stoker-", ".weights.h5"


def _base() -> type:
    """TensorFlow's own Keras where the script uses TensorFlow."""
    name = "tensorflow" if "tensorflow" in sys.modules else "keras"
    module: Any = import_module(name)
    keras = module.keras if name == "tensorflow" else module
    found: type = keras.callbacks.Callback
    return found


class StokerCallback(_base()):  # type: ignore[misc]
    """Tells stoker about epochs and steps, saves each epoch, and stops when asked to.

    `save=False`: the script saves and loads by itself, under `job.checkpoint_dir`, every epoch.
    """

    def __init__(self, save: bool = True) -> None:
        super().__init__()
        self._job = attach()
        self._save = save and self._job.attached
        self._ended: int | None = None
        self._trained: object = None

    @property
    def initial_epoch(self) -> int:
        """The epoch to go on with; 0 on a fresh start."""
        if not self._job.restarted or self._job.underway:
            return 0
        saved = self._saved() if self._save else None
        return saved[0] if saved else self._job.epochs_done

    def _saved(self) -> tuple[int, str] | None:
        found = checkpoints.numbered(self._job.checkpoint_dir, PREFIX, SUFFIX)
        return found[-1] if found else None

    def on_train_begin(self, logs: object = None) -> None:
        """Load what the last attempt has saved, the optimizer's state too."""
        if self._trained is not self.model:
            self._ended = None  # what another model has learned is not in this one
        saved = self._saved() if self._save and self._job.restarted else None
        if saved is None or self._job.underway:
            return
        optimizer: Any = getattr(self.model, "optimizer", None)
        # Keras 2 calls it _built; an optimizer that was not built takes nothing from the file.
        built = getattr(optimizer, "built", getattr(optimizer, "_built", False))
        if not built and hasattr(optimizer, "build"):
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(saved[1])

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Every callback has seen the end of the epoch before: now it can be saved, and counts."""
        if self._save and self._ended is not None:
            self._keep(self._ended + 1)
        self._job.start_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """A step is over."""
        self._job.measure()

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Validation is over, too."""
        self._job.report(logs, step=epoch)
        self._job.end_epoch()
        self._ended, self._trained = epoch, self.model

    def _keep(self, done: int) -> None:
        """Keep one checkpoint; one of several workers writes it."""
        if self._job.quiet or self._job.apart:
            return
        directory = self._job.checkpoint_dir
        path = f"{directory}/{PREFIX}{done}{SUFFIX}"
        new = f"{directory}/.new{SUFFIX}"  # Keras insists on the ending
        self.model.save_weights(new)
        os.replace(new, path)
        for number, older in checkpoints.numbered(directory, PREFIX, SUFFIX):
            if number != done:
                checkpoints.remove(older)
