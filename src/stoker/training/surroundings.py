"""What the environment says about this process: its job, its rank, its peers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

YES = ("true", "1", "yes")


class Surroundings:
    """The variables of one process, read when asked; a bad value counts as none."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ

    def number(self, *names: str) -> int | None:
        """The first of these variables that holds a whole number."""
        for name in names:
            text = self.environ.get(name)
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
        return self.environ.get("JOB_UUID", "")

    @property
    def epochs_done(self) -> int:
        """How many epochs of the job count already."""
        return max(0, self.number("EPOCHS_DONE", "STOKER_EPOCHS_DONE") or 0)

    @property
    def epochs(self) -> int | None:
        """How many epochs were asked for in all."""
        return self.number("EPOCHS_TO_BE_DONE")

    @property
    def restarted(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        told = self.environ.get("JOB_RESTARTED")
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
