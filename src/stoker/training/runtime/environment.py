"""Environment: job, rank and peers of this process, from environment variables."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TRUE_VALUES = ("true", "1", "yes")
TRAINING_VARIABLES = (
    *("JOB_UUID", "JOB_RESTARTED", "EPOCHS_DONE", "HEARTBEAT_FREQ", "RESERVED_MEM", "NODELIST"),
    *("NUM_GPUS", "NUM_NODES", "BATCH_SIZE", "EPOCHS_TO_BE_DONE", "TRAINING_SET_SIZE"),
)
"""Variables of a training job, which a job that it submits may inherit."""


class Environment:
    """The variables of one process, read on demand; an invalid value counts as missing."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        name, job = self.environ.get("JOB_UUID", ""), self.environ.get("STOKER_JOB_ID", "")
        is_training = bool(self.reports and name and job)
        self._inherited = is_training and name.rpartition("-")[2] != job

    def get(self, name: str) -> str:
        """Return a variable, unless it belongs to another job; empty if it is missing."""
        if self._inherited and name in TRAINING_VARIABLES:
            return ""
        return self.environ.get(name, "")

    def number(self, *names: str) -> int | None:
        """Return the first of these variables that is an integer."""
        for name in names:
            text = self.get(name)
            if text:
                try:
                    return int(text)
                except ValueError:
                    continue
        return None

    @property
    def reports(self) -> str:
        """The report directory; empty without stoker."""
        return self.environ.get("STOKER_REPORTS", "")

    @property
    def name(self) -> str:
        """The globally unique name of the job."""
        return self.get("JOB_UUID")

    @property
    def epochs_done(self) -> int:
        """Epochs of the job that are counted; under stoker its own variable takes precedence."""
        names = ("STOKER_EPOCHS_DONE", "EPOCHS_DONE")
        return max(0, self.number(*(names if self.reports else reversed(names))) or 0)

    @property
    def epochs(self) -> int | None:
        """The requested number of epochs."""
        return self.number("EPOCHS_TO_BE_DONE")

    @property
    def restarted(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        value = None if self.reports else self.environ.get("JOB_RESTARTED")
        return self.epochs_done > 0 if value is None else value.strip().lower() in TRUE_VALUES

    @property
    def heartbeat(self) -> int:
        """Steps between two writes of the `steps` file."""
        return max(1, self.number("HEARTBEAT_FREQ") or 100)

    @property
    def nodes(self) -> int:
        """The number of nodes of the job."""
        listed = self.environ.get("STOKER_NODES", "").count(",") + 1
        return max(listed, self.number("NUM_NODES") or 1)

    @property
    def first(self) -> bool:
        """Whether this process reports for the job: the first one on the first node."""
        if self.number("STOKER_NODE_RANK", "NODE_RANK", "GROUP_RANK") or 0:
            return False
        local = self.number("LOCAL_RANK")
        # A launcher may give rank 0 to any node; stoker reads the report of the first node.
        if self.nodes <= 1 or local is None:
            group = _process_group()
            rank = group[0] if group else self.number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
            if rank is not None:
                return rank == 0 and (bool(group) or not local or local < 0)
        return local is None or local <= 0

    @property
    def rank(self) -> int | None:
        """The rank of this process in its environment."""
        return self.number("RANK", "LOCAL_RANK")

    @property
    def in_process_group(self) -> bool:
        """Whether this process has joined a process group."""
        return _process_group() is not None

    @property
    def peers(self) -> bool:
        """Whether other processes train the same model, so that all must stop together."""
        group = _process_group()
        if group:
            return group[1] > 1
        world = self.number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE") or 1
        gpus = self.number("NUM_GPUS", "STOKER_GPU_COUNT") or 1
        return world > 1 or gpus > 1 or self.nodes > 1


def _process_group() -> tuple[int, int] | None:
    """Return rank and size of torch's process group, if the script has created one."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:  # noqa: BLE001 - the training continues in any case
        return None
    return None


def helper_process() -> bool:
    """Return True for a worker that loads data or the like: it reports nothing."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(process.current_process().daemon)


def child_process() -> bool:
    """Return True if `multiprocessing` started this process.

    By its name, because that is set before the script is imported, the rest only afterwards.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.current_process().name != "MainProcess"
