"""How many calls of an executor can run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stoker.api import Executor, Node
from stoker.api.calls.parameters import build_settings


def slot_count(executor: Executor) -> int:
    """Return how many calls of an executor fit on the empty nodes."""
    options = build_settings(executor.parameters, checkpoints=False).options
    names = _allowed_nodes(executor, options)
    nodes = (node for node in executor.client.nodes() if names is None or node.name in names)
    return max_running_jobs(nodes, options)


def max_running_jobs(nodes: Iterable[Node], options: Mapping[str, object]) -> int:
    """Return how many jobs with these options fit on empty nodes."""
    gpus = _amount(options.get("gpus") or options.get("gpus_per_task") or options.get("gres"))
    cpus = _amount(options.get("cpus") or (0 if gpus else 1))  # without GPUs, cores are the limit
    total = 0
    for node in nodes:
        if node.state == "up":
            amounts = [("gpu", gpus), ("cpu", cpus)]
            total += min(int(_total(node, name) / amount) for name, amount in amounts if amount)
    return total


def _allowed_nodes(executor: Executor, options: Mapping[str, object]) -> set[str] | None:
    """Return the names of nodes where its calls may run; None for all."""
    if "nodelist" in options:
        return set(str(options["nodelist"]).split(","))
    if executor.folder is not None and Path.cwd() in Path(executor.folder).resolve().parents:
        return None
    return {str(executor.client.daemon()["node"])}  # the node with the files of the calls


def _total(node: Node, name: str) -> float:
    resource = node.resources.get(name)
    return float(resource.total) if resource is not None else 0.0


def _amount(text: object) -> float:
    """Return the amount in `2`, `0.5`, `a100:2`, `1..4`; 1 for other texts."""
    number = str(text or 0).rpartition(":")[2].partition("..")[0]
    try:
        return max(float(number), 0.0)
    except ValueError:
        return 1.0
