"""Current: what is known about the job, from the environment of this process."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from stoker.training.runtime.environment import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.training.training_job import Job


class Current(NamedTuple):
    """The job of this process. Without stoker `attached` is False and all else empty."""

    attached: bool
    """Whether stoker runs this process."""
    job_id: Optional[int]
    name: str
    """The name of the job."""
    attempt: int
    """0 for the first attempt, 1 for the second."""
    restarted: bool
    """Whether earlier epochs are counted, so that there is a checkpoint to resume from."""
    epochs_done: int
    epochs: Optional[int]
    """The requested number of epochs."""
    batch_size: Optional[int]
    training_set_size: Optional[int]
    gpus: List[str]
    """The GPUs on this node, by the names that the vendor's libraries accept."""
    gpu_count: float
    """Their number; a fraction for a part of one GPU."""
    gpu_uuids: List[str]
    reserved_memory: Optional[int]
    """MiB reserved on each GPU, for a training job."""
    nodes: List[str]
    """The nodes of the job, by rank."""
    node_rank: int
    array_id: Optional[int]
    array_index: Optional[int]
    array_count: Optional[int]
    sweep_id: Optional[int]
    trial: Optional[int]
    """The number of the trial in its sweep, from 0."""
    params: Dict[str, Any]
    """The parameters of that trial."""
    checkpoint_dir: str
    """The checkpoint directory, shared by all attempts; only `job.checkpoint_dir` creates it."""
    reports: str
    """The report directory."""
    deadline: Optional[float]
    """When the job is terminated if it still runs, as a Unix time; None for never."""


def read(environment: Environment, job: Job | None) -> Current:
    """Read the environment; epochs come from the attached job, if there is one."""
    get, integer = environment.get, environment.number
    return Current(
        attached=bool(environment.reports),
        job_id=integer("STOKER_JOB_ID"),
        name=get("STOKER_JOB_NAME"),
        attempt=integer("STOKER_ATTEMPT") or 0,
        restarted=environment.restarted if job is None else job.restarted,
        epochs_done=environment.epochs_done if job is None else job.epochs_done,
        epochs=environment.epochs,
        batch_size=integer("BATCH_SIZE"),
        training_set_size=integer("TRAINING_SET_SIZE"),
        gpus=_split(get("STOKER_GPUS")),
        gpu_count=_number(get("STOKER_GPU_COUNT")) or 0.0,
        gpu_uuids=_split(get("STOKER_GPU_UUIDS")),
        reserved_memory=integer("RESERVED_MEM"),
        nodes=_split(get("STOKER_NODES")),
        node_rank=integer("STOKER_NODE_RANK") or 0,
        array_id=integer("STOKER_ARRAY_JOB_ID"),
        array_index=integer("STOKER_ARRAY_INDEX"),
        array_count=integer("STOKER_ARRAY_COUNT"),
        sweep_id=integer("STOKER_SWEEP_ID"),
        trial=integer("STOKER_TRIAL"),
        params=_params(get("STOKER_PARAMS")),
        checkpoint_dir=get("STOKER_CHECKPOINT_DIR"),
        reports=environment.reports,
        deadline=_number(get("STOKER_DEADLINE")),
    )


def _split(text: str) -> List[str]:
    return [item for item in text.split(",") if item]


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
        params = json.loads(text)
    except ValueError:
        return {}
    return params if isinstance(params, dict) else {}
