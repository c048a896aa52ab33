"""Free resources of a node, from measurements and the daemon's accounting. Pure."""

from __future__ import annotations

from stoker.compat.execute_batch.slots import (
    MAX_GPU_USE,
    OVERCOMMITTED_CORES,
    THOUSAND,
    GpuFree,
    NodeFree,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.compat.execute_batch.slots import JobNeed


def free_resources(node: dict[str, Any], gpus: Sequence[dict[str, Any]]) -> NodeFree:
    """Return the minimum of what is measured as free and what is not allocated.

    A job that has just started uses less than its allocation.
    """
    measured, held = node["measured"], _held_by_jobs(node)
    total = int(measured["cores"]) * THOUSAND
    # Jobs are accounted with slightly less than their cores, see `slot_options`.
    allocated = held["cpu"] * (total + OVERCOMMITTED_CORES) // total if total else 0
    cores = min(round(float(measured["free_cores"]) * THOUSAND), total - allocated)
    memory = min(int(measured["memory_available"]), int(measured["memory"]) - held["mem"])
    in_use = int(node["jobs"]) > 0
    accounts = {gpu["index"]: gpu for gpu in gpus if gpu["node"] == node["name"]}
    candidates = [_free_gpu(gpu, accounts.get(gpu["index"], {})) for gpu in measured["gpus"]]
    return NodeFree(cores, memory, [gpu for gpu in candidates if gpu is not None], in_use)


def _held_by_jobs(node: dict[str, Any]) -> dict[str, int]:
    """Return what stoker's jobs hold of a node: thousandths of cores, and MiB."""
    pools = node["resources"]
    cores = pools.get("cpu", {}).get("held", "0")
    return {"cpu": round(float(cores) * THOUSAND), "mem": int(pools.get("mem", {}).get("held", 0))}


def _free_gpu(measured: dict[str, Any], account: dict[str, Any]) -> GpuFree | None:
    """Return a GPU, None if it is drained."""
    if account.get("drained") is not None:
        return None
    # Without utilization data of the driver ([N/A]) a GPU counts as idle.
    memory = None
    if measured["memory"]:
        memory = int(measured["memory"]) - int(measured["memory_used"] or 0)
        if account.get("memory_left") is not None:
            memory = min(memory, int(account["memory_left"]))
    held = round(float(account.get("held", 0)) * THOUSAND)
    used = int(measured["utilization"] or 0) * THOUSAND // 100
    return GpuFree(
        int(measured["index"]), memory, used, held, account.get("foreign_process") is not None
    )


def slot_options(
    need: JobNeed, free: NodeFree, node: dict[str, Any], gpu: int | None, count: int
) -> dict[str, Any]:
    """Return the submit options of a job in one of `count` slots.

    The daemon does not overcommit, so amounts are scaled: all slots together fill the node. What
    others used when the slots were computed must not block a job, but what they take later may.
    So each slot requests no more than its share of what is free now, and a GPU with a foreign
    process is named explicitly.
    """
    chosen = next((candidate for candidate in free.gpus if candidate.number == gpu), None)
    has_foreign_process = any(
        candidate.foreign_process for candidate in ([chosen] if chosen else free.gpus)
    )
    if need.reserve:
        exclusive = {"exclusive": True, "gpus": "1" if need.gpu else "0"}
        return exclusive | ({"explicit": True} if has_foreign_process else {})
    pools, total = node["resources"], int(node["measured"]["cores"]) * THOUSAND
    cores = need.cores * THOUSAND * total // (total + OVERCOMMITTED_CORES)
    cores = min(cores, round(float(pools["cpu"]["free"]) * THOUSAND) // count)
    memory = min(need.memory, int(pools["mem"]["free"]) // count)
    # Scaled cores are no number of threads.
    options = {"cpus": _thousandths(cores), "mem": f"{memory}M", "no_threads": True}
    if chosen is None:
        return options
    share = THOUSAND if need.reserve_gpu else max(need.gpu_share * THOUSAND // MAX_GPU_USE, 1)
    options |= {"gpus": _thousandths(share), "use_gpus": str(chosen.number)}
    if chosen.memory is not None and need.gpu_memory:
        options["gpu_memory"] = f"{need.gpu_memory}M"
    if has_foreign_process:
        options["explicit"] = True
    return options


def _thousandths(amount: int) -> str:
    return f"{amount // THOUSAND}.{amount % THOUSAND:03d}"
