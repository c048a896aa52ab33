"""GPUs per elastic job: greedy by marginal gain per GPU (after Optimus, EuroSys'18).

All elastic jobs are allocated together, because one job gains what another loses:

1. Every job gets its minimum, in the order given; jobs after the last GPU wait.
2. The other GPUs go, step by step, to the job with the largest gain per GPU. The gain of a step is
   the speed that it adds over the square root of the job's remaining work. By speed alone all GPUs
   would go to the jobs that scale best, however long they take; by speed over remaining work, which
   is shortest first, long jobs would hardly progress. The root is between the two.
3. A change costs a restart. It counts as the average speed until the end of the job if it lost
   several restarts now: a change must repay its restart several times, so a job close to its end
   keeps its GPUs. Several, because the remaining work is an estimate and the next change may follow
   soon.

A step may skip numbers of GPUs: a job that two nodes slow down and four speed up goes from one node
to four at once.

A job gets at most twice as many GPUs as were measured for it, and at most one node before the first
measurement: an extrapolation is measured before the next one is based on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import sqrt

from msgspec import Struct

from stoker.core.elastic.speedup import EpochTimes, epoch_seconds

MAX_UNMEASURED_FACTOR = 2
"""A job gets at most this many times the GPUs that were measured: one step beyond what is known."""
RESTART_PAYBACK = 6.0
"""Restarts that a change must repay, since the next change may follow soon."""
UNKNOWN_WORK_SECONDS = 600.0
"""Remaining GPU-seconds of an unmeasured job, at least: about the shortest training jobs."""
FINE_STEPS = 3
"""Node counts differ in their first 3 binary digits: 1 to 8, 10 to 16, 20 to 32."""


class ElasticJob(Struct, frozen=True, kw_only=True, gc=False):
    """A running or pending job that takes part in an allocation."""

    id: int
    min_gpus: int
    max_gpus: int
    current_gpus: int = 0
    """GPUs that it holds; 0 while it is pending."""
    remaining_epochs: float | None = None
    """Remaining epochs with fractions, if they are counted."""
    epoch_times: EpochTimes = ()
    attained: float = 0.0
    """GPU-seconds used so far: the only estimate of the work of an unmeasured job."""
    restart_seconds: float = 30.0
    """Seconds lost by a restart."""


def allocate_gpus(jobs: Iterable[ElasticJob], gpus: int, gpus_per_node: int) -> dict[int, int]:
    """Return the GPUs of each job, which get their minimum in the order given; 0: it waits.

    `gpus` are the free ones and those that these jobs hold. A job gets a power of two on one node,
    or several whole nodes.
    """
    allocated: dict[int, int] = {}
    gains: list[_MarginalGain] = []
    for job in jobs:
        allocated[job.id] = job.min_gpus if 0 < job.min_gpus <= gpus else 0
        gpus -= allocated[job.id]
        if allocated[job.id]:
            gains.append(_MarginalGain(job, gpus_per_node))
    steps = [step for at, gain in enumerate(gains) if (step := gain.best_step(at, gpus))]
    heapify(steps)
    while steps:
        _, at, index = heappop(steps)
        gain = gains[at]
        if gain.added_gpus(index) <= gpus:
            gpus -= gain.added_gpus(index)
            gain.step_index = index
            allocated[gain.id] = gain.steps[index]
        # A step that no longer fits is replaced by the best one that does.
        if step := gain.best_step(at, gpus):
            heappush(steps, step)
    return allocated


class _MarginalGain:
    """The step that a job has reached, and the utility of each of its steps."""

    def __init__(self, job: ElasticJob, gpus_per_node: int) -> None:
        self.id = job.id
        self.step_index = 0
        self.steps = reachable_steps(job, gpus_per_node)
        amount, epochs = remaining_work(job)
        scale = sqrt(amount) / job.min_gpus
        self.utility = []
        for gpus in self.steps:
            seconds = epochs * epoch_seconds(job.epoch_times, gpus)
            if gpus != job.current_gpus:
                seconds += RESTART_PAYBACK * job.restart_seconds
            # Speed, as a multiple of that with the minimum, over the root of the remaining work.
            self.utility.append(scale / seconds)

    def added_gpus(self, index: int) -> int:
        """Return how many GPUs a step adds to those of the step reached."""
        return self.steps[index] - self.steps[self.step_index]

    def best_step(self, at: int, gpus: int) -> tuple[float, int, int] | None:
        """Return the step of at most these GPUs with the largest gain per GPU, as a heap entry."""
        best_gain, best_index = 0.0, 0
        for index in range(self.step_index + 1, len(self.steps)):
            added = self.added_gpus(index)
            if added > gpus:
                break
            gain = (self.utility[index] - self.utility[self.step_index]) / added
            if gain > best_gain:
                best_gain, best_index = gain, index
        return (-best_gain, at, best_index) if best_index else None


def remaining_work(job: ElasticJob) -> tuple[float, float]:
    """Return the remaining GPU-seconds with the minimum of GPUs, and the epochs that these are."""
    epoch = epoch_seconds(job.epoch_times, job.min_gpus) * job.min_gpus
    if job.remaining_epochs is None or not job.epoch_times:
        amount = max(UNKNOWN_WORK_SECONDS, job.attained)
        return amount, amount / epoch
    epochs = max(job.remaining_epochs, 1e-3)
    return max(epochs * epoch, 1e-3), epochs


def reachable_steps(job: ElasticJob, gpus_per_node: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that a job may have now, from its minimum on."""
    reach = MAX_UNMEASURED_FACTOR * job.epoch_times[-1][0] if job.epoch_times else gpus_per_node
    max_gpus = min(max(reach, job.current_gpus), job.max_gpus)
    steps = gpu_steps(job.min_gpus, max_gpus, gpus_per_node)
    if job.current_gpus <= job.min_gpus or job.current_gpus in steps:
        return steps
    return tuple(sorted((*steps, job.current_gpus)))  # it may keep a number that is not a step


@lru_cache(maxsize=1024)
def gpu_steps(min_gpus: int, max_gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that are tried: parts of a node by powers of two, then nodes."""
    steps = [min_gpus]
    part = 1
    while part < gpus_per_node and part <= max_gpus:
        steps.append(part)
        part *= 2
    nodes = 1
    while 0 < nodes * gpus_per_node <= max_gpus:
        steps.append(nodes * gpus_per_node)
        nodes += max(1 << nodes.bit_length() >> FINE_STEPS, 1)
    return tuple(gpus for at, gpus in enumerate(steps) if gpus > min_gpus or at == 0)
