"""Options of the resource request: nodes, tasks, GPUs, cores, memory, named resources."""

from __future__ import annotations

import re

from msgspec.structs import replace

from stoker.core.model.resources import (
    CPU,
    GPU,
    MEMORY,
    GpuRequest,
    ResourceRequest,
    parse_gpus,
    parse_models,
    parse_names,
)
from stoker.core.model.spec import Spec, Tasks
from stoker.core.model.units import THOUSAND, BadValue, parse_amount, parse_memory
from stoker.core.options import training as training_options
from stoker.core.options import values


def parse_request(given: values.Given, before: Spec | None) -> tuple[ResourceRequest, Tasks | None]:
    """Return the resource request and the tasks; `before` is the spec that an edit changes."""
    words = given.words
    base = before.request if before is not None else ResourceRequest()
    nodes, layout = _nodes_and_tasks(words, base.node_count)
    tasks = -(-layout.total // nodes) if layout is not None else 1
    gpu_request = _gpu_request(given, base.gpus, tasks)
    gpu_request = training_options.training_gpu_request(gpu_request, given, before)
    cpus, has_gpus = base.cpus, gpu_request is not None and gpu_request.amount > 0
    if "cpus" in words:
        cpus = parse_amount(words["cpus"], "--cpus") * tasks
    elif tasks > 1:
        cpus = tasks * THOUSAND
    elif before is None and not (has_gpus or given.is_set("exclusive")):
        cpus = THOUSAND  # a job without GPUs is bounded by the cores
    memory = base.memory
    gpus = -(-gpu_request.amount // THOUSAND) if gpu_request is not None else 0
    units = {"mem": 1, "mem_per_cpu": max(cpus // THOUSAND, 1), "mem_per_gpu": gpus}
    if key := next((key for key in units if key in words), None):
        memory = parse_memory(words[key], values.flag(key)) * units[key]
    named = _named(given.lists["resources"]) if "resources" in given.lists else base.named
    if nodes > 1 and gpu_request is not None:
        gpu_request = _per_node(gpu_request, nodes, words)
    exclusive = given.is_set("exclusive") or base.exclusive
    with_names = _node_names(words, "nodelist", base.nodes)
    without_names = _node_names(words, "exclude", base.not_nodes)
    request = ResourceRequest(
        gpu_request, cpus, memory, named, exclusive, with_names, without_names, nodes
    )
    return request, layout


def _per_node(request: GpuRequest, nodes: int, words: dict[str, str]) -> GpuRequest:
    """Return the request for each of several nodes, whose number of GPUs is fixed."""
    if words.get("gpus") and not words.get("gpus_per_node"):
        if request.amount % (nodes * THOUSAND):
            raise BadValue(
                f"--gpus {words['gpus']} cannot be divided evenly among {nodes} nodes;"
                " use --gpus-per-node."
            )
        request = replace(request, amount=request.amount // nodes)
    if request.max_amount not in (None, training_options.MAX_GPUS_PER_NODE):
        raise BadValue("A range of GPUs works on one node only; with --nodes, give a number.")
    return replace(request, max_amount=None)


def _node_names(words: dict[str, str], key: str, before: tuple[str, ...]) -> tuple[str, ...]:
    """Return node names; empty if the option is empty, and those of before if it is not given."""
    if key not in words:
        return before
    return parse_names(words[key], f"--{key}") if words[key] else ()


def _nodes_and_tasks(words: dict[str, str], nodes: int) -> tuple[int, Tasks | None]:
    """Return the number of nodes, by default `nodes`, and the tasks if their number is given."""
    if words.get("nodes"):
        nodes = values.parse_count(words["nodes"].partition("-")[0], "--nodes")
    total = values.parse_optional_count(words.get("ntasks", ""), "--ntasks")
    per_node = values.parse_optional_count(words.get("ntasks_per_node", ""), "--ntasks-per-node")
    if total is not None and per_node is not None and not words.get("nodes"):
        nodes = -(-total // per_node)
    if total is None and per_node is None:
        return nodes, None
    gpus = words.get("gpus_per_task")
    gpus_per_task = parse_gpus(gpus).amount // THOUSAND if gpus else None
    return nodes, Tasks(total or nodes * (per_node or 1), per_node, gpus_per_task or None)


GPU_FIELDS: values.FieldParsers = {
    "gpus_min_vram": ("min_vram", parse_memory),
    "gpu_memory": ("memory", parse_memory),
    "use_gpus": ("required", parse_names),
    "prefer_gpus": ("prefer", parse_names),
    "avoid_gpus": ("avoid", parse_names),
}


def _gpu_request(given: values.Given, base: GpuRequest | None, tasks: int) -> GpuRequest | None:
    request, words = base, {key: text for key, text in given.words.items() if text}
    for key in ("gpus", "gpus_per_node"):
        if key in words:
            request = training_options.parse_gpu_range(words[key])
    if "gpus_per_task" in words:
        request = parse_gpus(words["gpus_per_task"])
        request = replace(request, amount=request.amount * tasks)
    if "gres" in words:
        request = _gres(words["gres"])
    changes = values.parse_fields(GPU_FIELDS, words)
    if "gpu_model" in words:
        changes["model"], changes["models"] = parse_models(words["gpu_model"], "--gpu-model")
    if given.is_set("explicit"):
        changes["ignore_foreign_use"] = True
    if "share" in words:
        share = parse_amount(words["share"], "share")
        if not changes.get("required") or not 0 < share <= THOUSAND:
            raise BadValue("share applies to each GPU in use_gpus and is at most 1.")
        changes |= {"fixed_share": share, "amount": share * len(changes["required"])}
    if changes:
        request = replace(request or GpuRequest(THOUSAND), **changes)
    return request if request is None or request.amount or changes else None


def _gres(text: str) -> GpuRequest:
    """Parse Slurm's `--gres=gpu:a100:2`; other generic resources are not supported."""
    for part in text.split(","):
        words = part.strip().split(":")
        if words[0] == "gpu":
            return parse_gpus(":".join(words[1:]) or "1")
    raise BadValue(f"--gres '{text}' has no gpu; write gpu:2 or gpu:a100:2.")


def _named(texts: list[str]) -> tuple[tuple[str, int], ...]:
    amounts: dict[str, int] = {}
    parts = (part.strip("{} ") for text in texts for part in text.split(","))
    for part in filter(None, parts):
        name, equals, amount = part.replace(":", "=", 1).partition("=")
        name = name.strip(" '\"")
        if not equals:
            raise BadValue(f"--resources '{part}' has no amount; write licence=1.")
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", name):
            raise BadValue(f"Resource '{name}' is not a name; use letters, digits, _, - and .")
        if name in (GPU, CPU, MEMORY):
            raise BadValue(f"Ask for {name} with --{'gpus' if name == GPU else name}.")
        amounts[name] = parse_amount(amount.strip(" '\""), name)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
