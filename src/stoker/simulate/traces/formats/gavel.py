"""Gavel and Shockwave traces: jobs with steps, and their measured speeds or durations.

A trace has no header and one job per line, with cells separated by tabs: kind of job, command,
directory (not in older files), name of the steps option, whether it needs data, steps, GPUs,
weight, deadline, and submit time in seconds. Kind, steps, GPUs and submit time are read.

Shockwave has two cells more: the mode in which the batch size grows, after the GPUs, and the
duration in seconds, before the submit time. Its traces need no other file. The mode is ignored:
the duration is that of the initial batch size.

`simulation_throughputs.json` in the same directory, compressed or not, has steps per second by GPU
model, kind and number of GPUs: alone (`null`), and while another kind shares the GPUs, as a pair of
speeds; zeros mean that both do not fit. A model name that ends in `_unconsolidated` has the speed
on GPUs of several nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from stoker.simulate.traces.errors import TraceError, invalid_line
from stoker.simulate.traces.field_parsers import (
    BadCell,
    check_duration,
    parse_cell,
    parse_number,
    parse_time,
)
from stoker.simulate.traces.files import (
    count_jobs,
    open_bytes,
    open_text,
    skipped_notes,
    sorted_workload,
)
from stoker.simulate.workload import Speed, TraceJob, Workload

THROUGHPUT_FILES = ("simulation_throughputs.json", "simulation_throughputs.json.gz")
CELL_COUNTS = (9, 10)
SHOCKWAVE_CELLS = 12
UNCONSOLIDATED = "_unconsolidated"
ALONE = "null"
_KIND = re.compile(r"""\((['"])(?P<name>.*)\1, (?P<gpus>\d+)\)""")
STATIC_MODE = "static"
"""Shockwave's mode of a job with a constant batch size."""
_NO_SPEED = "no speed was measured for this kind of job and number of GPUs"

_Raw = dict[str, dict[str, dict[str, float | tuple[float, float]]]]


class Kind(NamedTuple):
    """A kind of job and its number of GPUs."""

    name: str
    gpus: int


class Throughput(NamedTuple):
    """Steps per second of one kind on one model: alone, and while sharing with each other kind."""

    alone: float
    shared: dict[Kind, float]


Throughputs = dict[str, dict[Kind, Throughput]]
"""By GPU model."""


class MeasuredSpeed:
    """Measured speed of one kind; it does not run on models without a measurement."""

    __slots__ = ("_models", "_throughputs", "kind", "models", "steps")

    def __init__(self, throughputs: Throughputs, kind: Kind) -> None:
        self._throughputs = throughputs
        self._models: dict[str, str | None] = {}
        self.kind = kind
        speeds = {
            model: max(self._alone(model, kind), self._alone(model + UNCONSOLIDATED, kind))
            for model in throughputs
            if not model.endswith(UNCONSOLIDATED)
        }
        self.models = tuple(model for model, steps in speeds.items() if steps)
        """Models that can run the job."""
        one_node = max((self._alone(model, kind) for model in self.models), default=0.0)
        self.steps = one_node or max(speeds.values(), default=0.0)
        """Steps per second on the fastest model, on one node if that was measured."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Return the speed relative to the fastest model."""
        known = self._model(model)
        if known is None or not self.steps:
            return 0.0
        kind = self.kind if gpus == self.kind.gpus else Kind(self.kind.name, gpus)
        return self._alone(known + UNCONSOLIDATED if machines > 1 else known, kind) / self.steps

    def interference(self, other: Speed, model: str) -> float:
        """Return the factor of the rate while sharing; 0.0 if it was not measured."""
        known = self._model(model)
        if known is None or not isinstance(other, MeasuredSpeed):
            return 0.0
        throughput = self._throughputs[known].get(self.kind)
        if throughput is None or not throughput.alone:
            return 0.0
        return throughput.shared.get(other.kind, 0.0) / throughput.alone

    def _alone(self, model: str, kind: Kind) -> float:
        throughput = self._throughputs.get(model, {}).get(kind)
        return throughput.alone if throughput is not None else 0.0

    def _model(self, name: str) -> str | None:
        """Return the measured model contained in a longer name such as Tesla V100."""
        if name not in self._models:
            matching = (model for model in self.models if model in name.lower())
            self._models[name] = next(matching, None)
        return self._models[name]


def read(path: Path) -> Workload:
    """Read the jobs of a trace; without durations, by the speeds in its directory."""
    throughputs: Throughputs | None = None
    speeds: dict[Kind, MeasuredSpeed] = {}
    counts: Counter[str] = Counter()
    jobs, batch_grows = [], 0
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                job = _job(line)
                if job.duration is not None:
                    jobs.append(_timed_job(job, job.duration))
                    batch_grows += job.mode != STATIC_MODE
                    continue
                if throughputs is None:
                    throughputs = _read_throughputs(path)
                speed = speeds.get(job.kind)
                if speed is None:
                    speed = speeds[job.kind] = MeasuredSpeed(throughputs, job.kind)
                seconds = _duration(job.steps, speed)
            except BadCell as error:
                raise invalid_line(path, number, error) from None
            if seconds is None:
                counts[_NO_SPEED] += 1
                continue
            trace_job = _timed_job(job, seconds)
            trace_job.gpu_models, trace_job.speed = speed.models, speed
            jobs.append(trace_job)
    notes = skipped_notes(counts)
    if batch_grows:
        notes.append(
            f"{count_jobs(batch_grows, 'grows')} the batch size in the study: "
            "the durations are those of the initial one."
        )
    if throughputs is not None:
        notes = [
            "Durations are those on the fastest GPU model.",
            "The planner knows the measured speeds of each kind of job, alone and in pairs.",
            *notes,
        ]
    workload = sorted_workload(path, jobs, notes)
    workload.profiled = throughputs is not None
    return workload


class _Line(NamedTuple):
    submit_time: float
    steps: float
    kind: Kind
    duration: float | None = None
    """Seconds; None: to be computed from the steps."""
    mode: str = STATIC_MODE


def _job(line: str) -> _Line:
    """Parse a line; raise BadCell."""
    row = line.rstrip("\r\n").split("\t")
    duration, mode = None, STATIC_MODE
    if len(row) == SHOCKWAVE_CELLS:
        duration = check_duration(parse_cell("duration", row.pop(-2), parse_number))
        if not duration:
            raise BadCell("duration '0' is not a number of seconds above 0")
        mode = row.pop(-4)
    elif len(row) not in CELL_COUNTS:
        raise BadCell(
            f"expected {CELL_COUNTS[-1]} or {SHOCKWAVE_CELLS} cells separated by tabs, "
            f"found {len(row)}"
        )
    steps = parse_cell("steps", row[-5], parse_number)
    gpus = parse_cell("GPUs", row[-4], parse_number)
    at = parse_cell("submission", row[-1], parse_time)
    if steps <= 0:
        raise BadCell("steps '0' is not a number above 0")
    if gpus < 1 or gpus != int(gpus):
        raise BadCell(f"GPUs '{row[-4]}' is not a whole number from 1 up")
    return _Line(at, steps, Kind(row[0].strip(), int(gpus)), duration, mode)


def _timed_job(job: _Line, seconds: float) -> TraceJob:
    return TraceJob(
        submit_time=job.submit_time,
        duration=seconds,
        gpus=float(job.kind.gpus),
        name=job.kind.name,
        steps=job.steps,
    )


def _duration(steps: float, speed: MeasuredSpeed) -> float | None:
    """Return the seconds on the fastest model; None without a measurement."""
    try:
        return check_duration(steps / speed.steps) if speed.steps else None
    except BadCell as wrong:
        raise BadCell(f"{steps:g} steps at {speed.steps:g} per second are not {wrong}") from None


def _read_throughputs(path: Path) -> Throughputs:
    for name in THROUGHPUT_FILES:
        file_path = path.parent / name
        if file_path.exists():
            break
    else:
        raise TraceError(
            f"{path} contains steps, not seconds; put the measured speeds ({THROUGHPUT_FILES[0]}) "
            "into the same folder."
        )
    try:
        with open_bytes(file_path) as file:
            raw = msgspec.json.decode(file.read(), type=_Raw)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TraceError(f"{file_path} contains no speeds ({error}); copy it again.") from error
    return {
        model: {
            kind: _throughput(speeds)
            for text, speeds in kinds.items()
            if (kind := _kind(text)) is not None
        }
        for model, kinds in raw.items()
    }


def _throughput(speeds: dict[str, float | tuple[float, float]]) -> Throughput:
    alone, shared = 0.0, {}
    for text, speed in speeds.items():
        if isinstance(speed, tuple):
            kind = _kind(text)
            if kind is not None and min(speed) > 0:
                shared[kind] = speed[0]
        elif text == ALONE:
            alone = speed
    return Throughput(alone, shared)


def _kind(text: str) -> Kind | None:
    """Parse `('LM (batch size 5)', 4)`."""
    match = _KIND.fullmatch(text)
    return Kind(match["name"], int(match["gpus"])) if match is not None else None
