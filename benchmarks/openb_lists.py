"""Variants of Alibaba's list of pods: the published files, or lists derived from the default one.

The published variants were made from the default list: `multigpu50` appends pods with several GPUs,
drawn with replacement, until they request half of all GPUs; `gpushareN` draws as many pods with a
part of a GPU as request N % of all GPUs; `gpuspec33` gives a third of the GPU pods a list of GPU
models. The share of each model is that in 1,100 rows of the published list.
"""

import random
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from stoker.simulate.traces.formats import openb
from stoker.simulate.workload import TraceJob

_V100 = ("V100M16", "V100M32")
_WHOLE_GPU_MODELS: dict[tuple[str, ...], int] = {
    ("T4",): 78, ("G2",): 39, _V100: 27, ("P100", *_V100): 16, ("G3",): 13,
    ("P100", "T4", *_V100): 8, ("G2", "P100", "T4", *_V100): 4, ("A10", "G2", "T4", *_V100): 4,
    ("V100M32",): 1, ("A10", "T4"): 1,
}  # fmt: skip
_SHARED_GPU_MODELS: dict[tuple[str, ...], int] = {
    ("T4",): 85, ("P100",): 41, ("G2", "P100", "T4", *_V100): 2,
}  # fmt: skip
_SEVERAL_GPU_MODELS: dict[tuple[str, ...], int] = {("G2",): 4, _V100: 2, ("V100M32",): 1}
"""Pods by the models that they accept, as counted in the published list."""
_CONSTRAINED_SHARE = 0.33
_APPENDED_PODS = 909
"""Pods that the published `multigpu50` has more than the default list."""


def read_list(directory: Path, name: str) -> list[TraceJob]:
    """Return the pods of a published list, or derive them if the directory does not have it."""
    files = sorted(directory.rglob(f"*pod_list_{name}.csv*"))
    if files:
        return openb.read(files[0]).jobs
    (default,) = directory.rglob("*pod_list_default.csv*")
    return _DERIVED[name](openb.read(default).jobs)


def _multi_gpu(pods: list[TraceJob]) -> list[TraceJob]:
    dice = random.Random("multigpu50")
    several = [pod for pod in pods if pod.gpus > 1]
    return pods + dice.choices(several, k=_APPENDED_PODS)


def _constrained(pods: list[TraceJob]) -> list[TraceJob]:
    dice = random.Random("gpuspec33")
    return [
        _with_models(pod, dice) if pod.gpus and dice.random() < _CONSTRAINED_SHARE else pod
        for pod in pods
    ]


def _with_models(pod: TraceJob, dice: random.Random) -> TraceJob:
    models = (
        _WHOLE_GPU_MODELS if pod.gpus == 1
        else _SHARED_GPU_MODELS if pod.gpus < 1
        else _SEVERAL_GPU_MODELS
    )  # fmt: skip
    (chosen,) = dice.choices(list(models), list(models.values()))
    return replace(pod, gpu_models=chosen)


def _shared(share: float) -> Callable[[list[TraceJob]], list[TraceJob]]:
    """Return a derivation: pods with a part of a GPU request this share of all GPUs."""

    def derive(pods: list[TraceJob]) -> list[TraceJob]:
        dice = random.Random(f"gpushare{share}")
        parts = [pod for pod in pods if 0 < pod.gpus < 1]
        others = [pod for pod in pods if pod.gpus >= 1]
        mean_part = sum(pod.gpus for pod in parts) / len(parts)
        mean_other = sum(pod.gpus for pod in others) / len(others)
        weight = share * mean_other / (share * mean_other + (1 - share) * mean_part)
        count = round((len(parts) + len(others)) * weight)
        rest = len(parts) + len(others) - count
        without_gpu = [pod for pod in pods if not pod.gpus]
        return without_gpu + dice.choices(parts, k=count) + dice.choices(others, k=rest)

    return derive


_DERIVED: dict[str, Callable[[list[TraceJob]], list[TraceJob]]] = {
    "multigpu50": _multi_gpu,
    "gpuspec33": _constrained,
    "gpushare40": _shared(0.4),
    "gpushare100": _shared(1.0),
}
