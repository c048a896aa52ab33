"""Refuses submissions that could only fail: a program that does not exist, no container engine."""

from __future__ import annotations

import os
import shutil

from msgspec.structs import replace

from stoker.core.job import Spec
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.core.units import THOUSAND, BadValue
from stoker.executors.launch import container

SIZE_UNKNOWN = (
    "no GPU has a known memory size, so the job gets its GPUs to itself;"
    " declare sizes with: stoker daemon restart --gpus 0,1 --gpu-memory-size 24G"
)


def check_program(
    argv: tuple[str, ...], spec: Spec, environment: bytes, state: State, engine: str
) -> list[str]:
    """Return warnings; raise BadValue for what no node could start.

    Programs and engines of other nodes are unknown here, so with other nodes it is a warning.
    """
    path = _path(environment)
    if spec.container is not None:
        problem = container.absent({"PATH": path}, engine, spec.asked)
    elif argv and "{" not in argv[0] and not _is_program(argv[0], path, spec.directory):
        problem = (
            f"'{argv[0]}' is neither a file nor a program on PATH."
            " For shell functions, aliases and builtins: stoker submit --wrap 'LINE'."
        )
    else:
        return []
    if problem is None:
        return []
    if state.rest.remotes:
        return [f"{problem.rstrip('.')} (on this machine; other nodes were not checked)"]
    raise BadValue(problem if problem.endswith(".") else f"{problem}.")


def whole_where_size_is_unknown(request: Request, state: State) -> tuple[Request, list[str]]:
    """Return a request for whole GPUs if memory is requested and no GPU's size is known."""
    ask = request.gpus
    if ask is None or ask.memory is None:
        return request, []
    found = [gpu.facts for node in state.cluster.nodes.values() for gpu in node.types.get(GPU, ())]
    if not found or any(facts.memory is not None for facts in found):
        return request, []
    whole = -(-ask.amount // THOUSAND) * THOUSAND
    request = replace(request, gpus=replace(ask, memory=None, beside=False, amount=whole))
    return request, [SIZE_UNKNOWN]


def _path(environment: bytes) -> str:
    for pair in environment.split(b"\0"):
        if pair.startswith(b"PATH="):
            return os.fsdecode(pair[5:])
    return os.defpath


def _is_program(word: str, path: str, directory: str) -> bool:
    if "/" in word:
        return os.path.isfile(os.path.join(directory, word))
    found = (os.path.join(directory, each) for each in path.split(os.pathsep))
    return shutil.which(word, path=os.pathsep.join(found)) is not None
