"""All that a job knows about itself, read from what stoker has told this process."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from stoker.training.environment import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.training.training_job import Job


class Current(NamedTuple):
    """The job that this process is part of. Without stoker `attached` is false, the rest empty."""

    attached: bool
    """Whether stoker runs this process."""
    job_id: Optional[int]
    name: str
    """What the job is called."""
    attempt: int
    """0 for the first, and one more each time it is started again."""
    restarted: bool
    """Whether earlier epochs count, so that there is a checkpoint to go on from."""
    epochs_done: int
    epochs: Optional[int]
    """How many epochs were asked for in all."""
    batch_size: Optional[int]
    training_set_size: Optional[int]
    gpus: List[str]
    """The GPUs it was given on this machine, by the names that the vendor's libraries take."""
    gpu_count: float
    """How many those are; part of one is a fraction."""
    gpu_uuids: List[str]
    reserved_memory: Optional[int]
    """MiB that are set aside on each GPU, of a training job."""
    nodes: List[str]
    """The machines it runs on, by rank."""
    node_rank: int
    array_id: Optional[int]
    array_index: Optional[int]
    array_count: Optional[int]
    sweep_id: Optional[int]
    trial: Optional[int]
    """Which trial of its sweep it is, from 0."""
    params: Dict[str, Any]
    """The parameters of that trial."""
    checkpoint_dir: str
    """Where checkpoints go, shared by all attempts; made by `job.checkpoint_dir`, not by this."""
    reports: str
    """Where the library leaves word."""
    deadline: Optional[float]
    """When it is ended if it still runs, as a Unix time; None: never."""


def read(around: Environment, job: Job | None) -> Current:
    """What this environment says; of a job that has begun, what that has found out."""
    get, whole = around.get, around.number
    return Current(
        attached=bool(around.reports),
        job_id=whole("STOKER_JOB_ID"),
        name=get("STOKER_JOB_NAME"),
        attempt=whole("STOKER_ATTEMPT") or 0,
        restarted=around.restarted if job is None else job.restarted,
        epochs_done=around.epochs_done if job is None else job.epochs_done,
        epochs=around.epochs,
        batch_size=whole("BATCH_SIZE"),
        training_set_size=whole("TRAINING_SET_SIZE"),
        gpus=_listed(get("STOKER_GPUS")),
        gpu_count=_number(get("STOKER_GPU_COUNT")) or 0.0,
        gpu_uuids=_listed(get("STOKER_GPU_UUIDS")),
        reserved_memory=whole("RESERVED_MEM"),
        nodes=_listed(get("STOKER_NODES")),
        node_rank=whole("STOKER_NODE_RANK") or 0,
        array_id=whole("STOKER_ARRAY_JOB_ID"),
        array_index=whole("STOKER_ARRAY_INDEX"),
        array_count=whole("STOKER_ARRAY_COUNT"),
        sweep_id=whole("STOKER_SWEEP_ID"),
        trial=whole("STOKER_TRIAL"),
        params=_params(get("STOKER_PARAMS")),
        checkpoint_dir=get("STOKER_CHECKPOINT_DIR"),
        reports=around.reports,
        deadline=_number(get("STOKER_DEADLINE")),
    )


def _listed(text: str) -> List[str]:
    return [word for word in text.split(",") if word]


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _params(text: str) -> Dict[str, Any]:
    if not text:
        return {}
    import json

    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
