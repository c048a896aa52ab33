"""What the environment says about this process: its job, its rank, its peers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

YES = ("true", "1", "yes")
OF_A_TRAINING = (
    *("JOB_UUID", "JOB_RESTARTED", "EPOCHS_DONE", "HEARTBEAT_FREQ", "RESERVED_MEM", "NODELIST"),
    *("NUM_GPUS", "NUM_NODES", "BATCH_SIZE", "EPOCHS_TO_BE_DONE", "TRAINING_SET_SIZE"),
)
"""What stoker tells a training job, and a job that such a one has submitted may inherit."""


class Environment:
    """The variables of one process, read when asked; a bad value counts as none."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        name, job = self.environ.get("JOB_UUID", ""), self.environ.get("STOKER_JOB_ID", "")
        told = bool(self.reports and name and job)
        self._inherited = told and name.rpartition("-")[2] != job

    def get(self, name: str) -> str:
        """A variable, unless it was meant for another job; empty where there is none."""
        if self._inherited and name in OF_A_TRAINING:
            return ""
        return self.environ.get(name, "")

    def number(self, *names: str) -> int | None:
        """The first of these variables that holds a whole number."""
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
        """The directory in which stoker listens; empty where there is none."""
        return self.environ.get("STOKER_REPORTS", "")

    @property
    def name(self) -> str:
        """The job's name in the world."""
        return self.get("JOB_UUID")

    @property
    def epochs_done(self) -> int:
        """How many epochs of the job count already. Under stoker its own word is what counts."""
        names = ("STOKER_EPOCHS_DONE", "EPOCHS_DONE")
        return max(0, self.number(*(names if self.reports else reversed(names))) or 0)

    @property
    def epochs(self) -> int | None:
        """How many epochs were asked for in all."""
        return self.number("EPOCHS_TO_BE_DONE")

    @property
    def restarted(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        told = None if self.reports else self.environ.get("JOB_RESTARTED")
        return self.epochs_done > 0 if told is None else told.strip().lower() in YES

    @property
    def heartbeat(self) -> int:
        """Steps between two reports."""
        return max(1, self.number("HEARTBEAT_FREQ") or 100)

    @property
    def nodes(self) -> int:
        """How many machines the job is on."""
        named = self.environ.get("STOKER_NODES", "").count(",") + 1
        return max(named, self.number("NUM_NODES") or 1)

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks for the job: the first one on the first node."""
        if self.number("STOKER_NODE_RANK", "NODE_RANK", "GROUP_RANK") or 0:
            return False
        local = self.number("LOCAL_RANK")
        # On several machines a launcher may give rank 0 to any of them; stoker talks to the first.
        if self.nodes <= 1 or local is None:
            group = _process_group()
            rank = group[0] if group else self.number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
            if rank is not None:
                return rank == 0 and (bool(group) or not local or local < 0)
        return local is None or local <= 0

    @property
    def rank(self) -> int | None:
        """The rank that this process was given by its environment."""
        return self.number("RANK", "LOCAL_RANK")

    @property
    def grouped(self) -> bool:
        """Whether this process has joined others as a rank."""
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
    """Rank and size of torch's process group, if the script has made one."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:  # noqa: BLE001 - whatever torch does, the training goes on
        return None
    return None


def helper_process() -> bool:
    """Whether this is a worker that loads data or the like: it has no part in the conversation."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(process.current_process().daemon)


def child_process() -> bool:
    """Whether `multiprocessing` made this process: a rank, or one that reads the script again.

    By its name, because that is set before the script is read, and the rest only after.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.current_process().name != "MainProcess"
