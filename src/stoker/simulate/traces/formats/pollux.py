"""Pollux traces: elastic jobs with speeds measured by placement and batch size.

A trace is a table of `name,time,application,num_replicas,batch_size`. The directory
`profiles/APPLICATION`, next to the trace or to its directory, has the measurements:

- `placements.csv`: seconds per step, and the part of them for exchanging gradients, by the GPUs on
  each node (`24`: two on one node and four on another) and the batch size per GPU;
- `scalability.csv`: the same by numbers of nodes and GPUs, for more than four nodes;
- `validation-BATCH.csv`: one line per epoch with this batch size: the progress, and the squared
  norm and the variance of the gradients. Progress is in steps of the smallest batch. A step of a
  batch `k` times as large is worth `(variance + norm) / (variance / k + norm)` of those, so larger
  batches pay off while gradients are noisy.

An application uses the batch size with the fastest progress on its GPUs, by the noise it measures,
and trains all epochs of the table. A job with `num_replicas` 1 keeps one GPU and its batch size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple

from stoker.simulate.traces.cluster_size import node_facts
from stoker.simulate.traces.csv_reader import named_rows
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import parse_number, parse_time
from stoker.simulate.traces.files import sorted_workload
from stoker.simulate.workload import Speed, TraceJob, Workload

NODES, GPUS_PER_NODE = 16, 4
"""The cluster of the paper."""
TIME_COLUMNS = ("local_bsz", "step_time", "sync_time")
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
BATCH_CANDIDATES = 50
"""Batch sizes that an application considers, in geometric steps."""
ROUNDING_ERROR = 1e-8
"""Quotients are rounded up only above this error."""


def read(path: Path) -> Workload:
    """Read the jobs of a trace."""
    folder = _profiles(path)
    applications: dict[str, Application] = {}
    jobs = []
    for row in named_rows(path, COLUMNS):
        kind = row.text("application")
        if kind not in applications:
            applications[kind] = Application.read(folder, kind)
        at = row.parse("time", parse_time)
        gpus, batch = (row.parse(column, parse_number) for column in COLUMNS[3:])
        jobs.append(_trace_job(applications[kind], at, int(gpus), max(int(batch), 1)))
    notes = [
        "Applications use the fastest batch size for their GPUs.",
        "Speed between measured numbers of nodes, GPUs and batch sizes is interpolated.",
        "Jobs submitted with one GPU stay on one GPU.",
        "Jobs checkpoint and stop at once when requested; a first start costs as a restart does.",
    ]
    nodes = [node_facts(f"node{index:02}", GPUS_PER_NODE) for index in range(1, NODES + 1)]
    return sorted_workload(path, jobs, notes, nodes)


def _trace_job(application: Application, at: float, gpus: int, batch: int) -> TraceJob:
    speed = TrainingSpeed(application, batch if gpus == 1 else None)
    return TraceJob(
        submit_time=at,
        duration=speed.seconds,
        gpus=1,
        max_gpus=None if gpus == 1 else min(application.max_gpus, NODES * GPUS_PER_NODE),
        name=application.name,
        speed=speed,
        epochs=speed.epochs,
        stops_immediately=True,
        first_start_costs=True,
    )


class TrainingSpeed:
    """Speed of a job of an application, with the best batch size or a fixed one."""

    def __init__(self, application: Application, batch: int | None = None) -> None:
        self.application = application
        self.batch = batch
        self.epochs = application.epochs
        """Equal parts of the work; the rate changes only between them."""
        epoch_seconds = (self._epoch(epoch, 1, 1) for epoch in range(self.epochs))
        self.seconds = sum(epoch_seconds)
        """Seconds of all epochs on one GPU."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Return work per second; all work takes `seconds` on one GPU."""
        epoch = min(int(done * self.epochs + ROUNDING_ERROR), self.epochs - 1)
        return self.seconds / self.epochs / self._epoch(epoch, gpus, machines)

    def interference(self, other: Speed, model: str) -> float:
        """Return 0.0: sharing was not measured, so jobs do not share GPUs."""
        return 0.0

    def _epoch(self, epoch: int, gpus: int, machines: int) -> float:
        return self.application.seconds(epoch, gpus, machines, self.batch)


class BatchOption(NamedTuple):
    """A batch size, and the seconds of a step with it on given GPUs."""

    batch: int
    seconds: float


class GradientNoise(NamedTuple):
    """Gradient statistics of one epoch at one batch size."""

    norm: float
    variance: float

    def gain(self, scale: float) -> float:
        """Return the worth of a step with a batch `scale` times larger, in smallest steps."""
        divisor = self.variance / scale + self.norm
        return (self.variance + self.norm) / divisor if divisor > 0 else 1.0


class Application:
    """Measurements of one application."""

    def __init__(
        self,
        name: str,
        steps: StepTimes,
        progress: list[float],
        noise: dict[int, list[GradientNoise]],
    ) -> None:
        self.name = name
        self.epochs = len(progress)
        self._steps = steps
        self._progress = progress
        self._noise = noise
        self._batches = sorted(noise)
        self._smallest, self._largest = self._batches[0], self._batches[-1]
        self._least_local, self._most_local = steps.range(self._largest)
        self.max_gpus = self._largest // self._least_local
        """With more GPUs, each would get less than the smallest measured batch."""
        self._seconds: dict[tuple[int, int, int | None], list[float]] = {}

    @classmethod
    def read(cls, profiles: Path, name: str) -> Application:
        """Read the measurements of an application."""
        folder = profiles / name
        runs: dict[int, list[tuple[float, GradientNoise]]] = {}
        for path in sorted(folder.glob("validation-*.csv")) if name else ():
            batch = path.stem.partition("-")[2]
            if not (batch.isdecimal() and int(batch)):
                raise TraceError(
                    f"The name of {path} has no batch size; rename it to validation-BATCH.csv."
                )
            runs[int(batch)] = [
                (cells[0], GradientNoise(cells[1], cells[2]))
                for cells in _table(path, ("progress", "grad_sqr", "grad_var"))
            ]
        epochs = min(map(len, runs.values()), default=0)
        if not epochs:
            raise TraceError(
                f"{profiles} has no epochs of the application {name!r}; put its "
                f"validation-BATCH.csv, placements.csv and scalability.csv into {folder}."
            )
        # The end of an epoch depends slightly on the batch size: the earliest one counts.
        ends = [min(run[epoch][0] for run in runs.values()) for epoch in range(epochs)]
        starts = [0.0, *ends[:-1]]
        progress = [
            max(end - start, ROUNDING_ERROR) for start, end in zip(starts, ends, strict=True)
        ]
        noise = {batch: [noise for _, noise in run] for batch, run in runs.items()}
        return cls(name, StepTimes.read(folder), progress, noise)

    def seconds(self, epoch: int, gpus: int, machines: int, batch: int | None) -> float:
        """Return the seconds of an epoch, with the best batch size or the given one."""
        key = (gpus, machines, batch)
        if key not in self._seconds:
            self._seconds[key] = list(self._epoch_seconds(self._batch_options(*key)))
        return self._seconds[key][epoch]

    def _epoch_seconds(self, options: list[BatchOption]) -> Iterator[float]:
        """Yield the seconds of each epoch; each uses the best batch size for its noise."""
        batch = self._smallest
        for epoch, progress in enumerate(self._progress):
            noise = self._noise_at(batch, epoch)
            best = max(
                options,
                key=lambda option: noise.gain(option.batch / self._smallest) / option.seconds,
            )
            batch = best.batch
            gain = self._noise_at(batch, epoch).gain(batch / self._smallest)
            yield progress / gain * best.seconds

    def _noise_at(self, batch: int, epoch: int) -> GradientNoise:
        above = min(bisect_left(self._batches, batch), len(self._batches) - 1)
        high = self._batches[above]
        low = self._batches[max(above - 1, 0)]
        a, b = self._noise[low][epoch], self._noise[high][epoch]
        part = min(max((batch - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        return GradientNoise(_between(a.norm, b.norm, part), _between(a.variance, b.variance, part))

    def _batch_options(self, gpus: int, machines: int, batch: int | None) -> list[BatchOption]:
        least = max(self._smallest, self._least_local * gpus)
        if batch is not None:
            batch_sizes = [float(batch)]
        else:
            ratio = max(self._largest / least, 1.0) ** (1 / (BATCH_CANDIDATES - 1))
            batch_sizes = [least * ratio**index for index in range(BATCH_CANDIDATES)]
        return [self._batch_option(batch_size, gpus, machines) for batch_size in batch_sizes]

    def _batch_option(self, batch_size: float, gpus: int, machines: int) -> BatchOption:
        """Split a batch over GPUs and, if it exceeds their memory, into several rounds."""
        local = batch_size / gpus
        rounds = ceil(local / self._most_local - ROUNDING_ERROR)
        if gpus == 1 and local > self._smallest + ROUNDING_ERROR:
            rounds = max(rounds, 2)  # noise cannot be measured in a single round
        rounds = max(rounds, 1)
        per_round = min(ceil(local / rounds - ROUNDING_ERROR), self._largest // (gpus * rounds))
        step, exchange = self._steps.at(gpus, machines, max(per_round, 1))
        return BatchOption(gpus * rounds * per_round, step + (rounds - 1) * (step - exchange))


class StepTimes:
    """Seconds per step and of exchanging gradients, by nodes, GPUs and batch per GPU."""

    def __init__(self, measured: dict[int, dict[int, dict[int, tuple[float, float]]]]) -> None:
        self._measured = measured
        self._machines = sorted(measured)

    @classmethod
    def read(cls, folder: Path) -> StepTimes:
        """Read both tables; placements with equal numbers of GPUs and nodes are averaged."""
        sums: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for placement, *columns in _table(folder / "placements.csv", ("placement", *TIME_COLUMNS)):
            local, step, exchange = columns
            gpus_of_nodes = [int(digit) for digit in str(int(placement))]
            sums.setdefault((len(gpus_of_nodes), sum(gpus_of_nodes), int(local)), []).append(
                (step, exchange)
            )
        for counts in _table(
            folder / "scalability.csv", ("num_nodes", "num_replicas", *TIME_COLUMNS)
        ):
            machines, gpus, local, step, exchange = counts
            sums.setdefault((int(machines), int(gpus), int(local)), []).append((step, exchange))
        measured: dict[int, dict[int, dict[int, tuple[float, float]]]] = {}
        for (m, g, batch), times in sums.items():
            mean = (sum(t[0] for t in times) / len(times), sum(t[1] for t in times) / len(times))
            measured.setdefault(m, {}).setdefault(g, {})[batch] = mean
        if any(step <= 0 for times in sums.values() for step, _ in times):
            raise TraceError(f"{folder} has steps that take no time; delete their lines.")
        if 1 not in measured.get(1, {}):
            raise TraceError(
                f"{folder / 'placements.csv'} has no placement 1; add the times on one GPU."
            )
        return cls(measured)

    def range(self, largest: int) -> tuple[int, int]:
        """Return the smallest and the largest batch per GPU.

        If few GPUs ran a larger batch than many GPUs, although the total batch would have allowed
        it there too, it was more than the application is meant to use.
        """
        alone = self._measured[1][1]
        least, greatest = min(alone), max(alone)
        for machines in self._machines:
            for gpus, times in self._measured[machines].items():
                if max(times) * gpus < largest:
                    greatest = min(greatest, max(times))
        return least, greatest

    def at(self, gpus: int, machines: int, batch: int) -> tuple[float, float]:
        """Return the times interpolated between numbers of nodes with the same GPUs per node."""
        low, high, part = _around(self._machines, machines)
        a = self._with(low, gpus * low / machines, batch)
        if low == high:
            return a
        b = self._with(high, gpus * high / machines, batch)
        return _between(a[0], b[0], part), _between(a[1], b[1], part)

    def _with(self, machines: int, gpus: float, batch: int) -> tuple[float, float]:
        measured = self._measured[machines]
        low, high, part = _around(sorted(measured), gpus)
        a, b = _of(measured[low], batch), _of(measured[high], batch)
        return _between(a[0], b[0], part), _between(a[1], b[1], part)


def _of(times: dict[int, tuple[float, float]], batch: int) -> tuple[float, float]:
    low, high, part = _around(sorted(times), batch)
    a, b = times[low], times[high]
    return _between(a[0], b[0], part), _between(a[1], b[1], part)


def _around(known: list[int], target: float) -> tuple[int, int, float]:
    """Return the neighbouring known numbers and the position between them, clamped."""
    above = min(bisect_left(known, target), len(known) - 1)
    high, low = known[above], known[max(above - 1, 0)]
    if target >= high or low == high:
        return high, high, 0.0
    if target <= low:
        return low, low, 0.0
    return low, high, (target - low) / (high - low)


def _between(a: float, b: float, part: float) -> float:
    return a + (b - a) * part


def _profiles(path: Path) -> Path:
    for folder in (path.parent / "profiles", path.parent.parent / "profiles"):
        if folder.is_dir():
            return folder
    raise TraceError(
        f"No folder 'profiles' with the applications of {path} found; copy it next to the "
        "file or next to its folder."
    )


def _table(path: Path, columns: tuple[str, ...]) -> list[tuple[float, ...]]:
    return [
        tuple(row.parse(column, parse_number) for column in columns)
        for row in named_rows(path, columns)
    ]
