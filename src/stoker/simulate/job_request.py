"""Resource request of a trace job."""

from __future__ import annotations

from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.simulate.workload import TraceJob


def request_for(job: TraceJob, gpus_per_node: int, memory: int | None = None) -> ResourceRequest:
    """Return the request of a job; it spans several nodes if one has too few GPUs.

    The job may share its GPUs if it has a GPU memory, its own or the given one.
    """
    amount, nodes = round(job.gpus * THOUSAND), 1
    if gpus_per_node and amount > gpus_per_node * THOUSAND:
        nodes = -(-amount // (gpus_per_node * THOUSAND))
        amount = -(-amount // (nodes * THOUSAND)) * THOUSAND
    memory = memory if job.gpu_memory is None else job.gpu_memory
    models = tuple(map(str.lower, job.gpu_models))
    gpus = GpuRequest(
        amount,
        model=models[0] if len(models) == 1 else None,
        models=models if len(models) > 1 else (),
        memory=memory,
        shareable=memory is not None,
        max_amount=job.max_gpus * THOUSAND if job.max_gpus is not None else None,
    )
    return ResourceRequest(
        gpus=gpus if amount else None,
        cpus=round(job.cpus * THOUSAND / nodes),
        memory=-(-job.ram // nodes),
        node_count=nodes,
    )
