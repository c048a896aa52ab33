"""What is free on a machine, from what was measured there and what our own books say. Pure."""

from __future__ import annotations

from stoker.compat.execute_batch.slots import FULL_GPU, SPARE_CORES, THOUSAND, Free, Gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.compat.execute_batch.slots import Need


def free_of(node: dict[str, Any], gpus: Sequence[dict[str, Any]]) -> Free:
    """What is left: the less of what is measured, and of what is not promised to anybody.

    A job of ours that has just begun was promised more than can be seen of it yet.
    """
    seen, held = node["measured"], _held(node)
    total = int(seen["cores"]) * THOUSAND
    # Jobs are entered in the books with a little less than their cores, see `options`.
    promised = held["cpu"] * (total + SPARE_CORES) // total if total else 0
    cores = min(round(float(seen["free_cores"]) * THOUSAND), total - promised)
    memory = min(int(seen["memory_available"]), int(seen["memory"]) - held["mem"])
    in_use = int(node["jobs"]) > 0
    books = {gpu["index"]: gpu for gpu in gpus if gpu["node"] == node["name"]}
    found = [_gpu(each, books.get(each["index"], {})) for each in seen["gpus"]]
    return Free(cores, memory, [gpu for gpu in found if gpu is not None], in_use)


def _held(node: dict[str, Any]) -> dict[str, int]:
    """What jobs of ours hold of a machine's pools: thousandths of cores, and MiB."""
    pools = node["resources"]
    cores = pools.get("cpu", {}).get("held", "0")
    return {"cpu": round(float(cores) * THOUSAND), "mem": int(pools.get("mem", {}).get("held", 0))}


def _gpu(seen: dict[str, Any], book: dict[str, Any]) -> Gpu | None:
    """One GPU; None for one that must not be used."""
    if book.get("drained") is not None:
        return None
    # A driver that does not know how busy it is says [N/A]: then nobody can tell.
    memory = None
    if seen["memory"]:
        memory = int(seen["memory"]) - int(seen["memory_used"] or 0)
        if book.get("memory_left") is not None:
            memory = min(memory, int(book["memory_left"]))
    held = round(float(book.get("held", 0)) * THOUSAND)
    used = int(seen["utilization"] or 0) * THOUSAND // 100
    return Gpu(int(seen["index"]), memory, used, held, book.get("foreign_process") is not None)


def options(
    need: Need, free: Free, node: dict[str, Any], gpu: int | None, count: int
) -> dict[str, Any]:
    """What a job in one of `count` slots asks of our books.

    They know no overload, so amounts are scaled: all that may be promised comes to the whole.
    What others used of the machine when the slots were counted is no reason to wait either;
    what they take later is. So no more is asked for than fits in now, for each of the slots,
    and a GPU on which somebody was then is named in spite of him.
    """
    chosen = next((each for each in free.gpus if each.index == gpu), None)
    strangers = any(each.stranger for each in ([chosen] if chosen else free.gpus))
    if need.reserve:
        found = {"exclusive": True, "gpus": "1" if need.gpu else "0"}
        return found | ({"explicit": True} if strangers else {})
    pools, total = node["resources"], int(node["measured"]["cores"]) * THOUSAND
    cores = need.cores * THOUSAND * total // (total + SPARE_CORES)
    cores = min(cores, round(float(pools["cpu"]["free"]) * THOUSAND) // count)
    memory = min(need.memory, int(pools["mem"]["free"]) // count)
    # The scaled cores say nothing about threads.
    asked: dict[str, Any] = {
        "cpus": _thousandths(cores),
        "mem": f"{memory}M",
        "no_threads": True,
    }
    if chosen is None:
        return asked
    share = THOUSAND if need.reserve_gpu else max(need.gpu_share * THOUSAND // FULL_GPU, 1)
    asked |= {"gpus": _thousandths(share), "use_gpus": str(chosen.index)}
    if chosen.memory is not None and need.gpu_memory:
        asked["gpu_memory"] = f"{need.gpu_memory}M"
    if strangers:
        asked["explicit"] = True
    return asked


def _thousandths(amount: int) -> str:
    return f"{amount // THOUSAND}.{amount % THOUSAND:03d}"
