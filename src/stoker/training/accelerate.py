"""For Accelerate: epochs that are saved with the accelerator's state, and resumed from it.

`for epoch in epochs(accelerator, 10):` replaces `for epoch in range(10):`.
"""

from __future__ import annotations

import os

from stoker.training import attach
from stoker.training.runtime import checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from stoker.training.training_job import Job

PREFIX = "stoker-"


def epochs(accelerator: Any, total: int | None = None) -> Iterator[int]:
    """Yield the remaining epochs; call it after everything is prepared.

    Under stoker the state is saved after each epoch, and loaded first when the job resumes.
    """
    job = attach()
    if not job.attached:
        yield from job.epochs(total)
        return
    job.begin_loop()
    directory = job.checkpoint_dir
    saved = checkpoints.numbered(directory, PREFIX) if job.restarted else []
    if saved:
        accelerator.load_state(saved[-1][1])
        job.epochs_done = saved[-1][0]
    for epoch in job.epochs(total):
        yield epoch
        job.end_epoch()
        if not job.apart:
            _save(accelerator, job, directory, epoch + 1)


def _save(accelerator: Any, job: Job, directory: str, done: int) -> None:
    """Save the state in all processes; the main process then replaces the old checkpoint."""
    path = f"{directory}/{PREFIX}{done}"
    job.check_current()
    accelerator.save_state(f"{path}.new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        job.check_current()
        checkpoints.remove(path)
        os.replace(f"{path}.new", path)
        for number, older in checkpoints.numbered(directory, PREFIX):
            if number != done:
                checkpoints.remove(older)
    accelerator.wait_for_everyone()
