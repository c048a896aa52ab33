"""What a training script is told: the variables of one attempt, and where its files go."""

from __future__ import annotations

import json

from stoker.core.cluster import Placement
from stoker.core.job import Job, Spec
from stoker.core.request import GPU

BACKEND = "PL_TORCH_DISTRIBUTED_BACKEND"
TRAINS = "JOB_UUID"
"""Set for training jobs, and for no others."""
FIRST_PORT, PORTS = 29500, 2000
"""Where the processes of a job on one machine meet; each job at a port of its own."""


def unique_id(token: str, job: int) -> str:
    """A job's name in the world: two machines with one home do not mix up their checkpoints."""
    return f"{token.partition('.')[0][:8]}-{job}"


def checkpoints(spec: Spec, home: str, unique: str) -> str:
    """The directory of a job's checkpoints, which all its attempts share."""
    root = spec.training.snapshots if spec.training is not None else None
    return f"{root or f'{home}/checkpoints'}/{unique}"


def reports(home: str, job: Job) -> str:
    """The directory in which an attempt's library and the daemon leave each other word."""
    return f"{home}/training/{job.id}.{job.attempt}"


def variables(
    job: Job, spec: Spec, placement: Placement, unique: str, memory: int = 0
) -> dict[str, str]:
    """What the training library reads, and scripts of its older namesake.

    `memory` is that of its smallest GPU: all of it is for a job that shares it with nobody.
    """
    done = job.progress.epochs if job.progress is not None else 0
    found = {"STOKER_EPOCHS_DONE": str(done)}
    training = spec.training
    if training is None:
        return found
    nodes = len(placement.parts)
    found |= {
        TRAINS: unique,
        "JOB_RESTARTED": "TRUE" if done else "FALSE",
        "EPOCHS_DONE": str(done),
        "HEARTBEAT_FREQ": str(training.heartbeat),
        "RESERVED_MEM": str(_reserved(job, placement) or memory),
        "NODELIST": ",".join(part.node for part in placement.parts),
        "NUM_GPUS": str(placement.gpu_count),
        "NUM_NODES": str(nodes),
    }
    for name, value in (
        ("BATCH_SIZE", training.batch_size),
        ("EPOCHS_TO_BE_DONE", training.epochs),
        ("TRAINING_SET_SIZE", training.set_size),
    ):
        if value is not None:
            found[name] = str(value)
    if training.distributed:
        found |= _distributed(job, spec, nodes)
    return found


def _reserved(job: Job, placement: Placement) -> int:
    """MiB set aside on each GPU; none in particular for one that has them to itself."""
    if job.progress is not None and job.progress.alone:
        return 0
    return max((take.memory for take in placement.takes if take.type == GPU), default=0)


def _distributed(job: Job, spec: Spec, nodes: int) -> dict[str, str]:
    """The processes of a job on one machine meet here; those of several are told at the gate."""
    port = FIRST_PORT + job.id % PORTS
    found = {"WORLD_SIZE": str(nodes), "NODE_RANK": "0"}
    if nodes == 1:
        here = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": _task(0)}
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        found["TF_CONFIG"] = json.dumps(here)
    if BACKEND not in spec.asked:
        found[BACKEND] = "nccl"
    return found


def tf_config(addresses: list[str], rank: int) -> str:
    """TensorFlow's own way to say who is there, for the machines of a gang."""
    return json.dumps({"cluster": {"worker": addresses}, "task": _task(rank)})


def _task(rank: int) -> dict[str, object]:
    return {"type": "worker", "index": rank}
