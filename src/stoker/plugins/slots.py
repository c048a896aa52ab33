"""How many calls of an executor there is room for at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stoker.api import Executor, Node
from stoker.api.parameters import settled


def slots(executor: Executor) -> int:
    """Return how many of its calls fit onto the machines, were these empty."""
    options = settled(executor.parameters, checkpoints=False).options
    names = _machines(executor, options)
    machines = (node for node in executor.client.nodes() if names is None or node.name in names)
    return room(machines, options)


def room(nodes: Iterable[Node], options: Mapping[str, object]) -> int:
    """Return how many jobs with these options fit onto machines that are empty."""
    gpus = _amount(options.get("gpus") or options.get("gpus_per_task") or options.get("gres"))
    cpus = _amount(options.get("cpus") or (0 if gpus else 1))  # without GPUs, cores are the bound
    total = 0
    for node in nodes:
        if node.state == "up":
            wants = [("gpu", gpus), ("cpu", cpus)]
            total += min(int(_has(node, name) / amount) for name, amount in wants if amount)
    return total


def _machines(executor: Executor, options: Mapping[str, object]) -> set[str] | None:
    """Return the machines that its calls may run on; None is all."""
    if "nodelist" in options:
        return set(str(options["nodelist"]).split(","))
    if executor.folder is not None and Path.cwd() in Path(executor.folder).resolve().parents:
        return None
    return {str(executor.client.daemon()["node"])}  # where the files of the calls are


def _has(node: Node, name: str) -> float:
    resource = node.resources.get(name)
    return float(resource.total) if resource is not None else 0.0


def _amount(text: object) -> float:
    """Read `2`, `0.5`, `a100:2`, `1..4`; what is not understood counts as one."""
    number = str(text or 0).rpartition(":")[2].partition("..")[0]
    try:
        return max(float(number), 0.0)
    except ValueError:
        return 1.0
