"""Environment variables of training jobs, and the directories of reports and checkpoints."""

from __future__ import annotations

import json

from stoker.core.measurement.gpu_memory import reserved_memory
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement
from stoker.core.model.spec import Spec

BACKEND_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"
TRAINING_MARK = "JOB_UUID"
"""Set for training jobs, and for no others."""
UID_MARK = "{uid}"
"""In a directory: stands for the uid of the job's user."""
FIRST_PORT, PORT_COUNT = 29500, 2000
"""Rendezvous ports of jobs on one node; consecutive jobs use different ports."""


def of_user(directory: str, spec: Spec) -> str:
    """Return a directory with the uid of the job's user filled in, which system mode has."""
    return directory.replace(UID_MARK, str(spec.uid)) if spec.uid is not None else directory


def unique_id(token: str, job: int) -> str:
    """Return a job id that differs between daemons which share a home directory."""
    return f"{token.partition('.')[0][:8]}-{job}"


def checkpoint_directory(spec: Spec, home: str, unique: str) -> str:
    """Return the checkpoint directory of a job, which all its attempts share."""
    root = spec.training.snapshots if spec.training is not None else None
    return f"{root or f'{of_user(home, spec)}/checkpoints'}/{unique}"


def report_directory(home: str, job: Job) -> str:
    """Return the directory of the report and the control files of an attempt."""
    return f"{home}/training/{job.id}.{job.attempt}"


def training_variables(
    job: Job, spec: Spec, placement: Placement, nodes: tuple[str, ...], unique: str, memory: int = 0
) -> dict[str, str]:
    """Return the variables for the training library and for scripts of the library before it.

    `nodes` are those of all parts, by rank. `memory` is that of the smallest GPU, which a job that
    does not share it may use.
    """
    done, training = job.progress.epochs, spec.training
    if training is None:
        return {"STOKER_EPOCHS_DONE": str(done)}
    reserved = 0 if job.progress.exclusive_only else reserved_memory(placement)
    variables = {
        "STOKER_EPOCHS_DONE": done,
        TRAINING_MARK: unique,
        "JOB_RESTARTED": "TRUE" if done else "FALSE",
        "EPOCHS_DONE": done,
        "HEARTBEAT_FREQ": training.heartbeat,
        "RESERVED_MEM": reserved or memory,
        "NODELIST": ",".join(nodes),
        "NUM_GPUS": placement.gpu_count,
        "NUM_NODES": len(nodes),
        "BATCH_SIZE": training.batch_size,
        "EPOCHS_TO_BE_DONE": training.epochs,
        "TRAINING_SET_SIZE": training.set_size,
    }
    texts = {name: str(value) for name, value in variables.items() if value is not None}
    return texts | (_distributed(job, spec, len(nodes)) if training.distributed else {})


def _distributed(job: Job, spec: Spec, nodes: int) -> dict[str, str]:
    """Return the rendezvous of a job on one node; that of a gang is set at the barrier."""
    port = FIRST_PORT + job.id % PORT_COUNT
    variables = {"WORLD_SIZE": str(nodes), "NODE_RANK": "0"}
    if nodes == 1:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        variables["TF_CONFIG"] = tf_config([f"127.0.0.1:{port}"], 0)
    if BACKEND_VARIABLE not in spec.exported_variables:
        variables[BACKEND_VARIABLE] = "nccl"
    return variables


def tf_config(addresses: list[str], rank: int) -> str:
    """Return TF_CONFIG for one part of a gang: the addresses of all parts, and its rank."""
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": addresses}, "task": task})
