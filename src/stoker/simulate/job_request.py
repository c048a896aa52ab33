"""What a job of a workload asks of the core when it is submitted."""

from __future__ import annotations

from stoker.core.request import GpuAsk, Request
from stoker.core.units import THOUSAND
from stoker.simulate.workload import TraceJob


def request_for(load: TraceJob, per_node: int, memory: int | None = None) -> Request:
    """Its request, where machines have so many GPUs: more than that is asked of several of them.

    It may share its GPUs if it says what memory it needs, or if that is said for it.
    """
    amount, machines = round(load.gpus * THOUSAND), 1
    if per_node and amount > per_node * THOUSAND:
        machines = -(-amount // (per_node * THOUSAND))
        amount = -(-amount // (machines * THOUSAND)) * THOUSAND
    memory = memory if load.gpu_memory is None else load.gpu_memory
    models = tuple(map(str.lower, load.gpu_models))
    ask = GpuAsk(
        amount,
        model=models[0] if len(models) == 1 else None,
        models=models if len(models) > 1 else (),
        memory=memory,
        beside=memory is not None,
        most=load.max_gpus * THOUSAND if load.max_gpus is not None else None,
    )
    return Request(
        gpus=ask if amount else None,
        cpus=round(load.cpus * THOUSAND / machines),
        memory=-(-load.ram // machines),
        machines=machines,
    )
