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

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import log, sqrt

from msgspec import Struct

from stoker.core.measurement.estimator import DEFAULT_SCALING_EXPONENT, STAGE_BOUNDARIES

MAX_UNMEASURED_FACTOR = 2
"""A job gets at most this many times the GPUs that were measured: one step beyond what is known."""
RESTART_PAYBACK = 6.0
"""Restarts that a change must repay, since the next change may follow soon."""


EpochTimes = tuple[tuple[int, float], ...]
"""GPUs and seconds per epoch as measured, sorted by GPUs."""


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
        amount = max(job.attained, RESTART_PAYBACK * job.restart_seconds, 1.0)
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
    """Return the numbers of GPUs that are tried: the minimum, then powers of two of GPUs or nodes.

    Without nodes that have GPUs, only the minimum.
    """
    steps, step = [min_gpus], 1
    while gpus_per_node and step <= max_gpus:
        if step > min_gpus:
            steps.append(step)
        if step < gpus_per_node:
            step = min(2 * step, gpus_per_node)
        else:
            step *= 2
    return tuple(steps)


# -- speed-up curves ----------------------------------------------------------------------
#
# Between two measurements the power law through them holds, beyond them a default exponent. The
# speed-up of a job that adapts its batch size changes during training (Pollux, OSDI'21): at first
# more GPUs are wasted on it, later they are not. Measurements are therefore kept per stage.


def epoch_seconds(epoch_times: EpochTimes, gpus: int) -> float:
    """Return the seconds per epoch: measured, interpolated or extrapolated."""
    if not epoch_times:
        return float(gpus**-DEFAULT_SCALING_EXPONENT)
    above = bisect_right(epoch_times, gpus, key=lambda measured: measured[0])
    if above == 0 or above == len(epoch_times):
        near, seconds = epoch_times[min(above, len(epoch_times) - 1)]
        if near == gpus:
            return seconds
        return float(seconds * (near / gpus) ** DEFAULT_SCALING_EXPONENT)
    (low, slow), (high, fast) = epoch_times[above - 1], epoch_times[above]
    part = log(gpus / low) / log(high / low)
    return float(slow * (fast / slow) ** part)


def epoch_times_at(measured: Mapping[int, Mapping[int, float]], stage: int) -> EpochTimes:
    """Return the epoch times at a training stage, given those measured by stage and GPUs.

    A number of GPUs that was not measured at this stage has the same ratio to the nearest measured
    one as at a later stage. Without a measurement of this stage the nearest stage counts; of an
    earlier one only its fastest, since its speed-up does not hold later.
    """
    seconds_by_gpus = dict(measured.get(stage, {}))
    if not seconds_by_gpus:
        return _nearest_stage(measured, stage)
    for later_stage in range(stage + 1, len(STAGE_BOUNDARIES) + 1):
        later = measured.get(later_stage, {})
        common = sorted(later.keys() & seconds_by_gpus.keys())
        for gpus in sorted(later.keys() - seconds_by_gpus.keys()) if common else ():
            near = min(common, key=lambda other: abs(log(other / gpus)))
            seconds_by_gpus[gpus] = later[gpus] * seconds_by_gpus[near] / later[near]
    return tuple(sorted(seconds_by_gpus.items()))


def _nearest_stage(measured: Mapping[int, Mapping[int, float]], stage: int) -> EpochTimes:
    for distance in range(1, len(STAGE_BOUNDARIES) + 1):
        if later := measured.get(stage + distance):
            return tuple(sorted(later.items()))
        if earlier := measured.get(stage - distance):
            return (min(earlier.items(), key=lambda entry: (entry[1], entry[0])),)
    return ()
