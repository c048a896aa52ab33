"""Resource request of a trace job."""

from __future__ import annotations

from stoker.core.request import GpuAsk, Request
from stoker.core.units import THOUSAND
from stoker.simulate.workload import TraceJob


def request_for(job: TraceJob, gpus_per_node: int, memory: int | None = None) -> Request:
    """Return the request of a job; it spans several nodes if one has too few GPUs.

    The job may share its GPUs if it has a GPU memory, its own or the given one.
    """
    amount, nodes = round(job.gpus * THOUSAND), 1
    if gpus_per_node and amount > gpus_per_node * THOUSAND:
        nodes = -(-amount // (gpus_per_node * THOUSAND))
        amount = -(-amount // (nodes * THOUSAND)) * THOUSAND
    memory = memory if job.gpu_memory is None else job.gpu_memory
    models = tuple(map(str.lower, job.gpu_models))
    gpus = GpuAsk(
        amount,
        model=models[0] if len(models) == 1 else None,
        models=models if len(models) > 1 else (),
        memory=memory,
        beside=memory is not None,
        most=job.max_gpus * THOUSAND if job.max_gpus is not None else None,
    )
    return Request(
        gpus=gpus if amount else None,
        cpus=round(job.cpus * THOUSAND / nodes),
        memory=-(-job.ram // nodes),
        machines=nodes,
    )
