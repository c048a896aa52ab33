"""Workloads of the Gavel study: jobs whose speed was measured on three models of GPU.

A workload is a text without a header, one job in a line, its cells separated by tabs: kind of job,
command, directory (older files have none), name of the option for steps, whether it needs data,
steps, GPUs, weight, deadline, and seconds to its submission. Kind, steps, GPUs and submission are
what is read here.

Beside it lies `simulation_throughputs.json`, compressed or not: steps per second by model of GPU,
by kind and number of GPUs, alone (`null`) and beside another kind on the same GPUs, where a pair
gives the speed of the one and of the other, and zeros say that the two did not fit. A model whose
name ends in `_unconsolidated` tells the speed when the GPUs are those of several machines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from stoker.simulate.traces import field_parsers as cells
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import BadCell
from stoker.simulate.traces.files import open_bytes, open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import Speed, TraceJob, Workload

MEASURED = ("simulation_throughputs.json", "simulation_throughputs.json.gz")
CELLS = (9, 10)
SPREAD = "_unconsolidated"
ALONE = "null"
_KIND = re.compile(r"""\((['"])(?P<name>.*)\1, (?P<gpus>\d+)\)""")
_NOWHERE = "no speed was measured for this kind of job and number of GPUs"

_Raw = dict[str, dict[str, dict[str, float | tuple[float, float]]]]


class Kind(NamedTuple):
    """What was measured: a kind of job on so many GPUs."""

    name: str
    gpus: int


class Pace(NamedTuple):
    """Steps per second of one kind on one model: alone, and beside each of the others."""

    alone: float
    beside: dict[Kind, float]


Paces = dict[str, dict[Kind, Pace]]
"""By model."""


class Measured:
    """How fast jobs of one kind are, where it was measured; nowhere else do they run at all."""

    __slots__ = ("_models", "_paces", "kind", "models", "steps")

    def __init__(self, paces: Paces, kind: Kind) -> None:
        self._paces = paces
        self._models: dict[str, str | None] = {}
        self.kind = kind
        found = {
            model: max(self._alone(model, kind), self._alone(model + SPREAD, kind))
            for model in paces
            if not model.endswith(SPREAD)
        }
        self.models = tuple(model for model, steps in found.items() if steps)
        """Where they run, slow or not."""
        whole = max((self._alone(model, kind) for model in self.models), default=0.0)
        self.steps = whole or max(found.values(), default=0.0)
        """Per second, on the fastest model, on one machine if that was measured."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """The share of the speed that they have on the fastest model."""
        known = self._model(model)
        if known is None or not self.steps:
            return 0.0
        kind = self.kind if gpus == self.kind.gpus else Kind(self.kind.name, gpus)
        return self._alone(known + SPREAD if machines > 1 else known, kind) / self.steps

    def interference(self, other: Speed, model: str) -> float:
        """What is left of that beside another job; 0.0 where nobody has measured it."""
        known = self._model(model)
        if known is None or not isinstance(other, Measured):
            return 0.0
        pace = self._paces[known].get(self.kind)
        if pace is None or not pace.alone:
            return 0.0
        return pace.beside.get(other.kind, 0.0) / pace.alone

    def _alone(self, model: str, kind: Kind) -> float:
        pace = self._paces.get(model, {}).get(kind)
        return pace.alone if pace is not None else 0.0

    def _model(self, name: str) -> str | None:
        """The measured model that a machine's calls by a longer name, such as Tesla V100."""
        if name not in self._models:
            here = (model for model in self.models if model in name.lower())
            self._models[name] = next(here, None)
        return self._models[name]


def read(path: Path) -> Workload:
    """The jobs of one workload, with what is measured beside it."""
    paces = _measured(path)
    speeds: dict[Kind, Measured] = {}
    counts: Counter[str] = Counter()
    jobs = []
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                at, steps, kind = _job(line)
                speed = speeds.get(kind)
                if speed is None:
                    speed = speeds[kind] = Measured(paces, kind)
                seconds = _lasting(steps, speed)
            except BadCell as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; correct or delete the line."
                ) from None
            if seconds is None:
                counts[_NOWHERE] += 1
                continue
            jobs.append(
                TraceJob(
                    submit_time=at,
                    duration=seconds,
                    gpus=float(kind.gpus),
                    name=kind.name,
                    gpu_models=speed.models,
                    speed=speed,
                    steps=steps,
                )
            )
    notes = [
        "Durations are those on the fastest GPU model.",
        "The planner knows the measured speeds of each kind of job, alone and in pairs.",
        *skipped_notes(counts),
    ]
    workload = sorted_workload(path, jobs, notes)
    workload.profiled = True
    return workload


def _job(line: str) -> tuple[float, float, Kind]:
    """Submission, steps and kind."""
    row = line.rstrip("\r\n").split("\t")
    if len(row) not in CELLS:
        raise BadCell(f"expected {CELLS[-1]} cells separated by tabs, found {len(row)}")
    steps = _cell("steps", row[-5])
    gpus = _cell("GPUs", row[-4])
    at = _cell("submission", row[-1], _moment)
    if steps <= 0:
        raise BadCell("steps '0' is not a number above 0")
    if gpus < 1 or gpus != int(gpus):
        raise BadCell(f"GPUs '{row[-4]}' is not a whole number from 1 up")
    return at, steps, Kind(row[0].strip(), int(gpus))


def _moment(text: str) -> float:
    return cells.in_our_time(cells.number(text))


def _lasting(steps: float, speed: Measured) -> float | None:
    """Seconds on the fastest model; None where nobody has measured it on any."""
    try:
        return cells.bearable(steps / speed.steps) if speed.steps else None
    except BadCell as wrong:
        raise BadCell(f"{steps:g} steps at {speed.steps:g} per second are not {wrong}") from None


def _cell(name: str, text: str, cell: Callable[[str], float] = cells.number) -> float:
    try:
        return cell(text)
    except BadCell as wrong:
        raise BadCell(f"{name} '{text[:40]}' is not {wrong}") from None


def _measured(path: Path) -> Paces:
    for name in MEASURED:
        beside = path.parent / name
        if beside.exists():
            break
    else:
        raise TraceError(
            f"{path} contains steps, not seconds; put the measured speeds ({MEASURED[0]}) "
            "into the same folder."
        )
    try:
        with open_bytes(beside) as file:
            raw = msgspec.json.decode(file.read(), type=_Raw)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TraceError(f"{beside} contains no speeds ({error}); copy it again.") from error
    return {
        model: {
            kind: _pace(speeds)
            for text, speeds in kinds.items()
            if (kind := _kind(text)) is not None
        }
        for model, kinds in raw.items()
    }


def _pace(speeds: dict[str, float | tuple[float, float]]) -> Pace:
    alone, beside = 0.0, {}
    for text, speed in speeds.items():
        if isinstance(speed, tuple):
            kind = _kind(text)
            if kind is not None and min(speed) > 0:
                beside[kind] = speed[0]
        elif text == ALONE:
            alone = speed
    return Pace(alone, beside)


def _kind(text: str) -> Kind | None:
    """`('LM (batch size 5)', 4)`, as the study writes it."""
    found = _KIND.fullmatch(text)
    return Kind(found["name"], int(found["gpus"])) if found is not None else None
