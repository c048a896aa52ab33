"""Which free slots would start a job at once, as far as the daemon's books tell."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.execute_batch.plan import Slot


def vacant(client: Client, slots: Sequence[Slot]) -> list[Slot]:
    """Those of the slots whose machine answers and whose GPU nobody has taken since."""
    if not slots:
        return []
    nodes = {node["name"]: node for node in client.nodes()["nodes"]}
    gpus = client.gpus()["gpus"]
    return [slot for slot in slots if _is_vacant(slot, nodes.get(slot.member.node), gpus)]


def _is_vacant(slot: Slot, node: dict[str, Any] | None, gpus: Sequence[dict[str, Any]]) -> bool:
    if node is None or node["state"] != "up":
        return False
    there = [gpu for gpu in gpus if gpu["node"] == node["name"]]
    strangers = "explicit" not in slot.options
    if "exclusive" in slot.options:
        return not node["jobs"] and not (
            strangers and any(gpu["foreign_process"] is not None for gpu in there)
        )
    pools = node["resources"]
    cores, memory = float(slot.options["cpus"]), int(slot.options["mem"].removesuffix("M"))
    if float(pools["cpu"]["free"]) < cores or int(pools["mem"]["free"]) < memory:
        return False
    if slot.gpu is None:
        return True
    asked = float(slot.options["gpus"])
    return any(
        gpu["index"] == slot.gpu
        and gpu["drained"] is None
        and 1 - float(gpu["held"]) >= asked
        and not (strangers and gpu["foreign_process"] is not None)
        for gpu in there
    )
