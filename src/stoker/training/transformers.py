"""For the Hugging Face Trainer: a callback that measures, saves, stops and resumes.

`callback = StokerCallback(args.output_dir)`, and then
`Trainer(..., callbacks=[callback]).train(resume_from_checkpoint=callback.checkpoint)`.
"""

from __future__ import annotations

import os
import sys

from transformers import TrainerCallback

from stoker.training import attach
from stoker.training.runtime import checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX = "checkpoint-"


class StokerCallback(TrainerCallback):  # type: ignore[misc]
    """Reports epochs and steps, has each epoch saved, and stops on request.

    `directory` is the trainer's output directory; without it, `job.checkpoint_dir`.
    `save=False`: the trainer's arguments decide what is saved and when, except for a stop.
    """

    def __init__(self, directory: str | None = None, save: bool = True) -> None:
        self._job = attach()
        self._directory = directory if directory is not None else self._job.checkpoint_dir
        self._save = save and self._job.attached
        self._stopping = False
        self._job.protect(self._directory)

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to resume from; None for a new training."""
        if not self._job.restarted or self._job.has_started:
            return None
        for _, path in reversed(checkpoints.numbered(self._directory, PREFIX)):
            if os.path.exists(f"{path}/trainer_state.json"):  # the trainer writes it last
                return path
        return None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Warn if a restart would look for checkpoints in another directory."""
        if not self._job.attached or self._job.is_silent:
            return
        if os.path.realpath(args.output_dir) != os.path.realpath(self._directory):
            notice = f"stoker: looking for checkpoints in {self._directory}"
            hint = f"write StokerCallback({args.output_dir!r}) to find those of this trainer"
            print(f"{notice}; {hint}", file=sys.stderr)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an epoch; the trainer has saved the previous one."""
        self._job.start_epoch(_epoch(state))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure a step."""
        self._job.measure()
        if control.should_save:
            self._job.check_current()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the trainer's metrics."""
        self._job.report(kwargs.get("logs"), step=state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End an epoch; the flags set here tell the trainer to save and stop."""
        self._job.end_epoch()
        self._job.protect(args.output_dir)  # the trainer has created it by now
        self._job.check_current()  # the trainer saves next
        if state.global_step >= state.max_steps:
            return  # the training is complete
        self._stopping = self._job.should_stop()
        if self._save or self._stopping:
            control.should_save = True
        if self._stopping:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exit as a stopped job, not as a complete one; everything is saved."""
        if self._stopping:
            self._job.start_epoch(_epoch(state))


def _epoch(state: Any) -> int:
    """Return the number of the next epoch; the trainer counts in fractions."""
    return int((state.epoch or 0.0) + 1e-3)
