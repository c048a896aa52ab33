"""Options of sbatch, names and scripts of the batch jobs of attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.model.units import THOUSAND
from stoker.executors.agent.session.reconnecting import ROOT
from stoker.executors.agent.session.session import quoted

MIN_ARRAY_SIZE = 10
"""Attempts of one shape from which on one sbatch submits them as a job array."""
WARNING_SECONDS = 120
"""Time before Slurm's limit at which a training job is asked to stop at a checkpoint."""
MAX_ARRAY_SIZE = 1000
"""Range of the indices of an array: Slurm's default of MaxArraySize is 1001."""

FIXED_OPTIONS = (
    "--no-requeue", "--open-mode=append", "--output=/dev/null", "--chdir=/", "--nodes=1",
    "--ntasks=1",
)  # fmt: skip
SCRIPT = """#!/bin/sh
key={key}
request="$HOME"/{root}/run/{run}/$key.request
tries=5
until [ -r "$request" ] || [ $tries = 0 ]; do
    tries=$((tries - 1))
    sleep 1
done
exec /bin/sh "$HOME"/{root}/scripts/{program} <"$request"
"""
"""Runs the agent with the start request of an attempt as its only input."""


def batch_options(launch: Launch, models: Sequence[str], grace: float) -> tuple[str, ...]:
    """Return the options of sbatch for what an attempt requests."""
    words: list[str] = []
    amounts: dict[str, int] = {}
    for item in launch.placement.allocations if launch.placement is not None else ():
        amounts[item.type] = amounts.get(item.type, 0) + item.amount
    if cores := -(-amounts.get(CPU, 0) // THOUSAND):
        words.append(f"--cpus-per-task={cores}")
    if memory := amounts.get(MEMORY, 0):
        words.append(f"--mem={memory}M")
    if gpus := amounts.get(GPU, 0) // THOUSAND:
        fitting = [
            f"{model}:"
            for model in models
            if any(wanted in model.lower() for wanted in launch.spec.request.gpu_models)
        ]
        words.append(f"--gres=gpu:{fitting[0] if fitting else ''}{gpus}")
    if launch.spec.limit is not None:  # stoker's own limit comes first
        words.append(f"--time={-(-int(launch.spec.limit + grace) // 60) + 1}")
    if (seconds := warning_seconds(launch)) is not None:
        words.append(f"--signal=B:USR2@{seconds}")
    if launch.priority < 0:  # Slurm lets users lower priorities only
        words.append(f"--nice={-launch.priority}")
    return tuple(words)


def warning_seconds(launch: Launch) -> int | None:
    """Return how long before the end of its job Slurm warns an attempt; None: not at all.

    With a time limit of its own, stoker warns it, and it ends before Slurm's limit.
    """
    if launch.spec.limit is not None:
        return None
    if launch.spec.early_signal is not None:
        return launch.spec.early_signal.seconds
    return WARNING_SECONDS if launch.spec.training is not None else None


def start_requests(launch: Launch, words: Sequence[str]) -> str:
    """Return the requests that the agent in the batch job of an attempt gets."""
    requests = [("start", *words)]
    if warning_seconds(launch) is not None:
        early = launch.spec.early_signal
        number = str(early.signal) if early is not None else ""
        how = "only-if-handled" if early is not None and early.to_script else ""
        requests.append(("stop_on_warning", words[0], number, how))
    lines = (" ".join(("1", verb, *map(quoted, more))) for verb, *more in requests)
    return "".join(f"{line}\n" for line in lines)


class BatchJob:
    """One call of sbatch: the job of an attempt, or an array of attempts."""

    def __init__(self, prefix: str, ids: Sequence[AttemptId]) -> None:
        """`ids` have the same attempt number, and their jobs are in ascending order."""
        self.ids, base = ids, ids[0]
        self.is_array = len(ids) > 1
        self.name = f"{prefix}-a{base}" if self.is_array else f"{prefix}-{base}"
        self.key = f"$(({base.job} + SLURM_ARRAY_TASK_ID)).{base.attempt}"
        if not self.is_array:
            self.key = str(base)

    def options(self) -> list[str]:
        """Return the options of sbatch that name it."""
        words = [f"--job-name={self.name}", f"--comment={self.name}", *FIXED_OPTIONS]
        if self.is_array:
            base = self.ids[0].job
            words.append(f"--array={_index_list([id.job - base for id in self.ids])}")
        return words

    def script(self, run: str, program: str) -> str:
        """Return the batch script; `program` is the agent's."""
        return SCRIPT.format(key=self.key, root=ROOT, run=run, program=program)


def batch_jobs(prefix: str, ids: Sequence[AttemptId], may_be_arrays: bool) -> Iterator[BatchJob]:
    """Yield as few batch jobs as possible for attempts of one shape.

    The index of a task is the distance of its job id from the first one, so that name and index
    identify an attempt without any record of the array.
    """
    groups: dict[int, list[AttemptId]] = {}
    for id in sorted(ids):
        groups.setdefault(id.attempt, []).append(id)
    for group in groups.values():
        first = 0
        while first < len(group):
            last = first
            while last < len(group) and group[last].job - group[first].job < MAX_ARRAY_SIZE:
                last += 1
            if not may_be_arrays or last - first < MIN_ARRAY_SIZE:
                last = first + 1
            yield BatchJob(prefix, group[first:last])
            first = last


def _index_list(indices: Sequence[int]) -> str:
    """Return ascending numbers as `0-3,5`."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
