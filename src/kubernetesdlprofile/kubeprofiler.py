"""KubeProfiler: the interface of an older scheduler's library, by `stoker.training`."""

from __future__ import annotations

import os
from functools import cached_property

from stoker.training import attach
from stoker.training.runtime import checkpoints
from stoker.training.runtime.environment import Environment


class KubeProfiler:
    """The job, for a script that was written for the older library.

    Without a scheduler its values let a script run, and it does nothing.
    """

    def __init__(self, *hosts: object, **named_hosts: object) -> None:
        # The arguments are hosts of the older library's services, which are not used.
        self._job = job = attach()
        environment = Environment()
        self.RANK = _or(environment.number("NODE_RANK"), 0)
        self.LOCAL_RANK = _or(environment.number("LOCAL_RANK"), -1)
        self.JOBID = environment.name
        self.RESTARTED = job.restarted
        self.EPOCHS_DONE = job.epochs_done
        self.PROFILE_EACH = environment.heartbeat
        self.NODE_LIST = environment.get("NODELIST")
        self.NUM_GPUS = _or(environment.number("NUM_GPUS"), 1)
        self.NUM_NODES = _or(environment.number("NUM_NODES"), 1)
        self.BATCH_SIZE = _or(environment.number("BATCH_SIZE"), 1)
        self.EPOCHS = _or(environment.epochs, 1)
        self.TRAINING_SET_SIZE = _or(environment.number("TRAINING_SET_SIZE"), 1)
        global_batch = self.BATCH_SIZE * self.NUM_GPUS * self.NUM_NODES
        self.iterationPerEpoch = self.TRAINING_SET_SIZE // max(1, global_batch)
        self.maxIterations = self.iterationPerEpoch * self.EPOCHS
        root = checkpoints.directory(environment)
        if job.attached:
            self.root_dir = checkpoints.make(root)
        self.ckpt_path = self._find(root, announce=self.RESTARTED and not job.is_silent)

    @cached_property
    def root_dir(self) -> str:
        """The checkpoint directory; without stoker it is created on first access."""
        return self._job.checkpoint_dir

    def _find(self, root: str, announce: bool) -> str:
        """Return the newest checkpoint, or the default path of a script that keeps only one."""
        version = checkpoints.last_version(root)
        path = version[1] if version else checkpoints.newest(root)
        path = path or os.path.join(root, "tf_ckpts")
        if announce:
            if version:
                print("[KUBE_API_LIBRARY] last version found is ", version[0])
            print("[KUBE_API_LIBRARY]: Job Restarted, ckpt_path: ", path, flush=True)
        return path

    @property
    def epoch(self) -> int:
        """The number of the current or next epoch."""
        return self._job.epoch

    @property
    def iterations(self) -> int:
        """Steps measured so far."""
        return self._job.iterations

    @property
    def mean_iteration_duration(self) -> float:
        """Mean seconds of a step."""
        return self._job.mean_iteration_duration

    @property
    def has_to_stop(self) -> bool:
        """Return True if the next `start_epoch()` stops this process."""
        return self._job.should_stop()

    def measure(self) -> None:
        """Call this at the end of each training step."""
        self._job.measure()

    def start_epoch(self) -> None:
        """Call this at the start of each epoch; a requested stop ends the process here."""
        self._job.start_epoch()

    def end_epoch(self) -> None:
        """Call this at the end of each epoch, including validation."""
        self._job.end_epoch()

    def end(self) -> None:
        """Do nothing: stoker sees the end of the process."""


def _or(number: int | None, default: int) -> int:
    return default if number is None else number
