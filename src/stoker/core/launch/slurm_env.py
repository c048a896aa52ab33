"""The SLURM_* variables of one attempt, with the values that Slurm 22.05 sets. Pure.

Slurm sets some of them only in the tasks that srun starts (SLURM_STEP_ID and, unless a number of
tasks was requested, SLURM_NTASKS): libraries take their presence as proof that srun is used. Those
are set by our `srun` (executors/slurm_tools).
"""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job
from stoker.core.model.resources import CPU, GPU
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND, format_amount

SLURM_MARK = "SLURM_JOB_ID"
"""Set for jobs with SLURM_* variables, and for no others."""
CLUSTER_NAME = "stoker"
LOOPBACK = "127.0.0.1"


class SubmitHost(Struct, frozen=True):
    """Where jobs are submitted: the host's name and the numeric id of the user."""

    name: str = ""
    uid: int = 0


NO_HOST = SubmitHost()


def slurm_variables(
    job: Job, spec: Spec, placement: Placement, nodes: tuple[str, ...], rank: int, at: float,
    host: SubmitHost,
) -> dict[str, str]:  # fmt: skip
    """Return the variables of one node's part; `nodes` are those of all parts, by rank."""
    cores = max(
        sum(item.amount for item in placement.allocations if item.type == CPU) // THOUSAND, 1
    )
    variables = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_PARTITION": spec.queue,
        "SLURM_JOB_USER": spec.user,
        "SLURM_JOB_UID": str(host.uid),
        "SLURM_JOB_START_TIME": str(int(at)),
        "SLURM_CLUSTER_NAME": CLUSTER_NAME,
        "SLURM_SUBMIT_DIR": spec.directory,
        "SLURM_SUBMIT_HOST": host.name,
        "SLURM_LAUNCH_NODE_IPADDR": LOOPBACK,
        "SLURMD_NODENAME": placement.node,
        "SLURM_CPUS_ON_NODE": str(cores),
        **_layout(spec, nodes, rank, cores),
        **_gpus(spec, placement, len(nodes)),
    }
    if spec.account is not None:
        variables["SLURM_JOB_ACCOUNT"] = spec.account
    if spec.limit is not None:
        variables["SLURM_JOB_END_TIME"] = str(int(at) + spec.limit)
    if spec.threads is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(spec.threads)
    if spec.request.memory:
        variables["SLURM_MEM_PER_NODE"] = str(spec.request.memory)
    if job.attempt:
        variables["SLURM_RESTART_COUNT"] = str(job.attempt)
    if job.array is not None and spec.array_range is not None:
        first, last, step = spec.array_range
        variables["SLURM_ARRAY_JOB_ID"] = str(job.array)
        variables["SLURM_ARRAY_TASK_ID"] = str(job.index)
        variables["SLURM_ARRAY_TASK_COUNT"] = str(spec.array_size)
        variables["SLURM_ARRAY_TASK_MIN"] = str(first)
        variables["SLURM_ARRAY_TASK_MAX"] = str(last)
        variables["SLURM_ARRAY_TASK_STEP"] = str(step)
    return variables


def _layout(spec: Spec, nodes: tuple[str, ...], rank: int, cores: int) -> dict[str, str]:
    """Nodes and tasks: the first tasks are on the first node."""
    names, count, tasks = ",".join(nodes), len(nodes), spec.tasks
    total = max(tasks.total, count) if tasks is not None else count
    per_node = -(-total // count)
    every = f"(x{count})" if count > 1 else ""
    variables = {
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
        "SLURM_NODEID": str(rank),
        "SLURM_PROCID": str(min(rank * per_node, total - 1)),
        "SLURM_LOCALID": "0",
        "SLURM_TASKS_PER_NODE": f"{per_node}{every}",
        "SLURM_JOB_CPUS_PER_NODE": f"{cores}{every}",
    }
    if tasks is not None or count > 1:
        variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = str(total)
    if tasks is not None and tasks.per_node is not None:
        variables["SLURM_NTASKS_PER_NODE"] = str(tasks.per_node)
    return variables


def _gpus(spec: Spec, placement: Placement, nodes: int) -> dict[str, str]:
    names = placement.names(GPU)
    if not names:
        return {}
    # A shared GPU is one GPU to the job; an exact share of 0.5 stays 0.5.
    on_node = placement.gpu_amount
    variables = {
        "SLURM_GPUS": format_amount(on_node * nodes),
        "SLURM_GPUS_ON_NODE": format_amount(on_node),
        "SLURM_GPUS_PER_NODE": format_amount(on_node),
        "SLURM_JOB_GPUS": ",".join(names),
    }
    if spec.tasks is not None and spec.tasks.gpus is not None:
        variables["SLURM_GPUS_PER_TASK"] = str(spec.tasks.gpus)
    return variables
