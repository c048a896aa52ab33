"""Workloads of the Pollux study: elastic jobs whose speed was measured by placement and batch size.

A workload is a table of `name,time,application,num_replicas,batch_size`. What is known of each
application lies in the folder `profiles/APPLICATION`, beside the workload or beside its folder:

- `placements.csv`: seconds per step, and those of them spent on exchanging gradients, by the GPUs
  on each machine (`24`: two on one and four on another) and the batch of one GPU;
- `scalability.csv`: the same by numbers of machines and GPUs, for more than four machines;
- `validation-BATCH.csv`: one line per epoch, trained with that batch: how far it had come, and the
  squared norm and the variance of its gradients. Progress is counted in steps of the smallest
  batch. A step of a batch `k` times as large brings it forward by
  `(variance + norm) / (variance / k + norm)` of those: larger batches pay while there is noise.

An application chooses the batch that brings it forward fastest on the GPUs it has, from the noise
that it measures as it trains, and it trains through all epochs of the table. A job whose owner
found no use for a second GPU (`num_replicas` is 1) keeps the one GPU and the batch it names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.request import GPU
from stoker.simulate.traces.csv_reader import named_rows
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import BadCell, in_our_time, number
from stoker.simulate.traces.files import sorted_workload
from stoker.simulate.workload import Speed, TraceJob, Workload

MACHINES, GPUS_EACH = 16, 4
"""The cluster of the study."""
TIMES = ("local_bsz", "step_time", "sync_time")
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
CANDIDATES = 50
"""Batch sizes that an application considers, in geometric steps."""
SLACK = 1e-8
"""What a quotient may be off before it is rounded up."""


def read(path: Path) -> Workload:
    """The jobs of one workload."""
    folder = _profiles(path)
    applications: dict[str, Application] = {}
    jobs = []
    for line, row in named_rows(path, COLUMNS):
        kind = row["application"] or ""
        if kind not in applications:
            applications[kind] = Application.read(folder, kind)
        at = _number(path, line, row, "time", _moment)
        gpus, batch = (_number(path, line, row, column) for column in COLUMNS[3:])
        jobs.append(_load(applications[kind], at, int(gpus), max(int(batch), 1)))
    gpus_each = tuple(DeviceFacts(name=str(index), index=index) for index in range(GPUS_EACH))
    notes = [
        "Applications use the fastest batch size for their GPUs.",
        "Speed between measured numbers of nodes, GPUs and batch sizes is interpolated.",
        "Jobs submitted with one GPU stay on one GPU.",
        "Jobs checkpoint and stop at once when requested; a first start costs as a restart does.",
    ]
    nodes = [NodeFacts(f"node{index:02}", {GPU: gpus_each}) for index in range(1, MACHINES + 1)]
    return sorted_workload(path, jobs, notes, nodes)


def _load(application: Application, at: float, gpus: int, batch: int) -> TraceJob:
    speed = Training(application, batch if gpus == 1 else None)
    return TraceJob(
        submit_time=at,
        duration=speed.seconds,
        gpus=1,
        max_gpus=None if gpus == 1 else min(application.most, MACHINES * GPUS_EACH),
        name=application.name,
        speed=speed,
        epochs=speed.epochs,
        stops_immediately=True,
        first_start_costs=True,
    )


class Training:
    """How fast a job of an application trains, with the best batch or always with the same."""

    def __init__(self, application: Application, batch: int | None = None) -> None:
        self.application = application
        self.batch = batch
        self.epochs = application.epochs
        """Its rate changes only where one of these ends; they are equal shares of its work."""
        each = (self._epoch(epoch, 1, 1) for epoch in range(self.epochs))
        self.seconds = sum(each)
        """All epochs, on one GPU."""

    def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
        """Work per second; all of it is what takes `seconds` on one GPU."""
        epoch = min(int(done * self.epochs + SLACK), self.epochs - 1)
        return self.seconds / self.epochs / self._epoch(epoch, gpus, machines)

    def interference(self, other: Speed, model: str) -> float:
        """Nothing was measured of jobs that share a GPU, so none do."""
        return 0.0

    def _epoch(self, epoch: int, gpus: int, machines: int) -> float:
        return self.application.seconds(epoch, gpus, machines, self.batch)


class Way(NamedTuple):
    """One way of training on given GPUs: a batch, and the seconds that a step with it takes."""

    batch: int
    seconds: float


class Noise(NamedTuple):
    """The gradients of one epoch, at one batch size."""

    norm: float
    variance: float

    def gain(self, scale: float) -> float:
        """How many steps of the smallest batch one is worth that is so much larger."""
        divisor = self.variance / scale + self.norm
        return (self.variance + self.norm) / divisor if divisor > 0 else 1.0


class Application:
    """What was measured of one application."""

    def __init__(
        self, name: str, steps: Steps, progress: list[float], noise: dict[int, list[Noise]]
    ) -> None:
        self.name = name
        self.epochs = len(progress)
        self._steps = steps
        self._progress = progress
        self._noise = noise
        self._batches = sorted(noise)
        self._smallest, self._largest = self._batches[0], self._batches[-1]
        self._least_local, self._most_local = steps.range(self._largest)
        self.most = self._largest // self._least_local
        """More GPUs would leave each of them less than the smallest batch that was measured."""
        self._ways: dict[tuple[int, int, int | None], list[Way]] = {}
        self._seconds: dict[tuple[int, int, int | None], list[float]] = {}

    @classmethod
    def read(cls, profiles: Path, name: str) -> Application:
        """From its folder of profiles."""
        folder = profiles / name
        runs: dict[int, list[tuple[float, Noise]]] = {}
        for path in sorted(folder.glob("validation-*.csv")) if name else ():
            batch = path.stem.partition("-")[2]
            if not (batch.isdecimal() and int(batch)):
                raise TraceError(
                    f"The name of {path} has no batch size; rename it to validation-BATCH.csv."
                )
            runs[int(batch)] = [
                (cells[0], Noise(cells[1], cells[2]))
                for cells in _table(path, ("progress", "grad_sqr", "grad_var"))
            ]
        epochs = min(map(len, runs.values()), default=0)
        if not epochs:
            raise TraceError(
                f"{profiles} has no epochs of the application {name!r}; put its "
                f"validation-BATCH.csv, placements.csv and scalability.csv into {folder}."
            )
        # Where an epoch ends differs a little with the batch: it has ended once it has for one.
        ends = [min(run[epoch][0] for run in runs.values()) for epoch in range(epochs)]
        starts = [0.0, *ends[:-1]]
        progress = [max(end - start, SLACK) for start, end in zip(starts, ends, strict=True)]
        noise = {batch: [noise for _, noise in run] for batch, run in runs.items()}
        return cls(name, Steps.read(folder), progress, noise)

    def seconds(self, epoch: int, gpus: int, machines: int, batch: int | None) -> float:
        """What an epoch takes there, with the best batch size or the given one."""
        key = (gpus, machines, batch)
        if key not in self._seconds:
            self._seconds[key] = list(self._all(self._ways_on(*key)))
        return self._seconds[key][epoch]

    def _all(self, ways: list[Way]) -> Iterator[float]:
        """Seconds of each epoch: at every one the batch is chosen anew, by the noise as it is."""
        batch = self._smallest
        for epoch, progress in enumerate(self._progress):
            seen = self._noise_at(batch, epoch)
            way = max(ways, key=lambda way: seen.gain(way.batch / self._smallest) / way.seconds)
            batch = way.batch
            gain = self._noise_at(batch, epoch).gain(batch / self._smallest)
            yield progress / gain * way.seconds

    def _noise_at(self, batch: int, epoch: int) -> Noise:
        above = min(bisect_left(self._batches, batch), len(self._batches) - 1)
        high = self._batches[above]
        low = self._batches[max(above - 1, 0)]
        a, b = self._noise[low][epoch], self._noise[high][epoch]
        part = min(max((batch - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        return Noise(_between(a.norm, b.norm, part), _between(a.variance, b.variance, part))

    def _ways_on(self, gpus: int, machines: int, batch: int | None) -> list[Way]:
        least = max(self._smallest, self._least_local * gpus)
        if batch is not None:
            whole = [float(batch)]
        else:
            ratio = max(self._largest / least, 1.0) ** (1 / (CANDIDATES - 1))
            whole = [least * ratio**index for index in range(CANDIDATES)]
        return [self._way(each, gpus, machines) for each in whole]

    def _way(self, whole: float, gpus: int, machines: int) -> Way:
        """A batch split over GPUs and, where it is larger than they hold, into several rounds."""
        local = whole / gpus
        rounds = ceil(local / self._most_local - SLACK)
        if gpus == 1 and local > self._smallest + SLACK:
            rounds = max(rounds, 2)  # from a single round nobody can tell how noisy it is
        rounds = max(rounds, 1)
        each = min(ceil(local / rounds - SLACK), self._largest // (gpus * rounds))
        step, exchange = self._steps.at(gpus, machines, max(each, 1))
        return Way(gpus * rounds * each, step + (rounds - 1) * (step - exchange))


class Steps:
    """Seconds per step and those of exchanging gradients, by machines, GPUs and local batch."""

    def __init__(self, measured: dict[int, dict[int, dict[int, tuple[float, float]]]]) -> None:
        self._measured = measured
        self._machines = sorted(measured)

    @classmethod
    def read(cls, folder: Path) -> Steps:
        """From the two tables; ways of spreading as many GPUs over as many machines are alike."""
        sums: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for placement, *rest in _table(folder / "placements.csv", ("placement", *TIMES)):
            local, step, exchange = rest
            each = [int(digit) for digit in str(int(placement))]
            sums.setdefault((len(each), sum(each), int(local)), []).append((step, exchange))
        for counts in _table(folder / "scalability.csv", ("num_nodes", "num_replicas", *TIMES)):
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
        """The smallest and the largest batch of one GPU.

        Where fewer GPUs ran a larger batch than many did, though the whole batch would have
        allowed it to those too, then it was more than the application is meant to hold.
        """
        alone = self._measured[1][1]
        least, most = min(alone), max(alone)
        for machines in self._machines:
            for gpus, times in self._measured[machines].items():
                if max(times) * gpus < largest:
                    most = min(most, max(times))
        return least, most

    def at(self, gpus: int, machines: int, batch: int) -> tuple[float, float]:
        """Between numbers of machines with as many GPUs on each as here."""
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


def _around(known: list[int], wanted: float) -> tuple[int, int, float]:
    """The known numbers to both sides, and how far between them; the outermost beyond them."""
    above = min(bisect_left(known, wanted), len(known) - 1)
    high, low = known[above], known[max(above - 1, 0)]
    if wanted >= high or low == high:
        return high, high, 0.0
    if wanted <= low:
        return low, low, 0.0
    return low, high, (wanted - low) / (high - low)


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
        tuple(_number(path, line, row, column) for column in columns)
        for line, row in named_rows(path, columns)
    ]


def _moment(text: str) -> float:
    return in_our_time(number(text))


def _number(
    path: Path, line: int, row: dict[str, str | None], column: str,
    cell: Callable[[str], float] = number,
) -> float:  # fmt: skip
    try:
        return cell(row[column] or "")
    except BadCell as expected:
        raise TraceError(
            f"{path}, line {line}: expected {expected} as {column}, not {row[column]!r}; "
            "correct or delete the line."
        ) from None
