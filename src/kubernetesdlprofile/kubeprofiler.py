"""`KubeProfiler`: the names of an older scheduler's library, spoken by `stoker.training`."""

from __future__ import annotations

import os
from functools import cached_property

from stoker.training import attach, checkpoints
from stoker.training.environment import Environment


class KubeProfiler:
    """The job as seen by a script that was written for the older library.

    Without a scheduler it has values with which a script runs, and does nothing.
    """

    def __init__(self, *hosts: object, **named_hosts: object) -> None:
        # The hosts of the older library's services: nobody is called any more.
        self._job = job = attach()
        around = Environment()
        self.RANK = _or(around.number("NODE_RANK"), 0)
        self.LOCAL_RANK = _or(around.number("LOCAL_RANK"), -1)
        self.JOBID = around.name
        self.RESTARTED = job.restarted
        self.EPOCHS_DONE = job.epochs_done
        self.PROFILE_EACH = around.heartbeat
        self.NODE_LIST = around.get("NODELIST")
        self.NUM_GPUS = _or(around.number("NUM_GPUS"), 1)
        self.NUM_NODES = _or(around.number("NUM_NODES"), 1)
        self.BATCH_SIZE = _or(around.number("BATCH_SIZE"), 1)
        self.EPOCHS = _or(around.epochs, 1)
        self.TRAINING_SET_SIZE = _or(around.number("TRAINING_SET_SIZE"), 1)
        at_once = self.BATCH_SIZE * self.NUM_GPUS * self.NUM_NODES
        self.iterationPerEpoch = self.TRAINING_SET_SIZE // max(1, at_once)
        self.maxIterations = self.iterationPerEpoch * self.EPOCHS
        root = checkpoints.directory(around)
        if job.attached:
            self.root_dir = checkpoints.make(root)
        self.ckpt_path = self._find(root, tell=self.RESTARTED and not job.quiet)

    @cached_property
    def root_dir(self) -> str:
        """Where checkpoints go. By hand it is made only when somebody asks for it."""
        return self._job.checkpoint_dir

    def _find(self, root: str, tell: bool) -> str:
        """The newest checkpoint, or where a script that keeps just one would look for it."""
        version = checkpoints.last_version(root)
        path = version[1] if version else checkpoints.newest(root)
        path = path or os.path.join(root, "tf_ckpts")
        if tell:
            if version:
                print("[KUBE_API_LIBRARY] last version found is ", version[0])
            print("[KUBE_API_LIBRARY]: Job Restarted, ckpt_path: ", path, flush=True)
        return path

    @property
    def epoch(self) -> int:
        """The number of the epoch that runs, or comes next."""
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
        """Whether the next `start_epoch()` stops this process."""
        return self._job.should_stop()

    def measure(self) -> None:
        """At the end of each training step."""
        self._job.measure()

    def start_epoch(self) -> None:
        """At the start of each epoch; when a stop was asked for, the process ends here."""
        self._job.start_epoch()

    def end_epoch(self) -> None:
        """At the end of each epoch, validation included."""
        self._job.end_epoch()

    def end(self) -> None:
        """Nothing: that the script is over is seen from outside."""


def _or(number: int | None, default: int) -> int:
    return default if number is None else number
