"""The SLURM_* variables of one attempt, with the values that Slurm 22.05 sets. Pure.

Slurm sets some of them only in the tasks that srun starts (SLURM_STEP_ID and, unless a number of
tasks was requested, SLURM_NTASKS): libraries take their presence as proof that srun is used. Those
are set by our `srun` (executors/slurm_tools).
"""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.job import Job
from stoker.core.model.resources import CPU, GPU, Placement
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
    cores = sum(item.amount for item in placement.allocations if item.type == CPU) // THOUSAND
    variables: dict[str, object] = {
        "SLURM_JOB_ID": job.id,
        "SLURM_JOBID": job.id,
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_PARTITION": spec.queue,
        "SLURM_JOB_USER": spec.user,
        "SLURM_JOB_UID": host.uid if spec.uid is None else spec.uid,
        "SLURM_JOB_ACCOUNT": spec.account,
        "SLURM_JOB_START_TIME": int(at),
        "SLURM_JOB_END_TIME": int(at) + spec.limit if spec.limit is not None else None,
        "SLURM_RESTART_COUNT": job.attempt or None,
        "SLURM_CLUSTER_NAME": CLUSTER_NAME,
        "SLURM_SUBMIT_DIR": spec.directory,
        "SLURM_SUBMIT_HOST": host.name,
        "SLURM_LAUNCH_NODE_IPADDR": LOOPBACK,
        "SLURMD_NODENAME": placement.node,
        "SLURM_CPUS_ON_NODE": max(cores, 1),
        "SLURM_CPUS_PER_TASK": spec.threads,
        "SLURM_MEM_PER_NODE": spec.request.memory or None,
        **_layout(spec, nodes, rank, max(cores, 1)),
        **_gpus(spec, placement, len(nodes)),
    }
    if job.array is not None and spec.array_range is not None:
        first, last, step = spec.array_range
        variables |= {
            "SLURM_ARRAY_JOB_ID": job.array,
            "SLURM_ARRAY_TASK_ID": job.index,
            "SLURM_ARRAY_TASK_COUNT": spec.array_size,
            "SLURM_ARRAY_TASK_MIN": first,
            "SLURM_ARRAY_TASK_MAX": last,
            "SLURM_ARRAY_TASK_STEP": step,
        }
    return {name: str(value) for name, value in variables.items() if value is not None}


def _layout(spec: Spec, nodes: tuple[str, ...], rank: int, cores: int) -> dict[str, object]:
    """Nodes and tasks: the first tasks are on the first node."""
    names, count, tasks = ",".join(nodes), len(nodes), spec.tasks
    total = max(tasks.total, count) if tasks is not None else count
    per_node = -(-total // count)
    every = f"(x{count})" if count > 1 else ""
    requested = total if tasks is not None or count > 1 else None
    return {
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        "SLURM_NODEID": rank,
        "SLURM_PROCID": min(rank * per_node, total - 1),
        "SLURM_LOCALID": 0,
        "SLURM_NTASKS": requested,
        "SLURM_NPROCS": requested,
        "SLURM_NTASKS_PER_NODE": tasks.per_node if tasks is not None else None,
        "SLURM_TASKS_PER_NODE": f"{per_node}{every}",
        "SLURM_JOB_CPUS_PER_NODE": f"{cores}{every}",
    }


def _gpus(spec: Spec, placement: Placement, nodes: int) -> dict[str, object]:
    names = placement.names(GPU)
    if not names:
        return {}
    # A shared GPU is one GPU to the job; an exact share of 0.5 stays 0.5.
    on_node = placement.gpu_amount
    return {
        "SLURM_GPUS": format_amount(on_node * nodes),
        "SLURM_GPUS_ON_NODE": format_amount(on_node),
        "SLURM_GPUS_PER_NODE": format_amount(on_node),
        "SLURM_GPUS_PER_TASK": spec.tasks.gpus if spec.tasks is not None else None,
        "SLURM_JOB_GPUS": ",".join(names),
    }
