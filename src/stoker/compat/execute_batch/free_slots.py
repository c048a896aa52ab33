"""Find slots that would start a job at once, by the daemon's accounting."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.execute_batch.plan import Slot


def find_free_slots(client: Client, slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots with free resources on nodes that are up."""
    if not slots:
        return []
    nodes = {node["name"]: node for node in client.nodes()["nodes"]}
    gpus = client.gpus()["gpus"]
    return [slot for slot in slots if _is_free(slot, nodes.get(slot.node.node), gpus)]


def _is_free(slot: Slot, node: dict[str, Any] | None, gpus: Sequence[dict[str, Any]]) -> bool:
    if node is None or node["state"] != "up":
        return False
    node_gpus = [gpu for gpu in gpus if gpu["node"] == node["name"]]
    avoid_foreign = "explicit" not in slot.options
    if "exclusive" in slot.options:
        return not node["jobs"] and not (
            avoid_foreign and any(gpu["foreign_process"] is not None for gpu in node_gpus)
        )
    pools = node["resources"]
    cores, memory = float(slot.options["cpus"]), int(slot.options["mem"].removesuffix("M"))
    if float(pools["cpu"]["free"]) < cores or int(pools["mem"]["free"]) < memory:
        return False
    if slot.gpu is None:
        return True
    share = float(slot.options["gpus"])
    return any(
        gpu["index"] == slot.gpu
        and gpu["drained"] is None
        and 1 - float(gpu["held"]) >= share
        and not (avoid_foreign and gpu["foreign_process"] is not None)
        for gpu in node_gpus
    )
