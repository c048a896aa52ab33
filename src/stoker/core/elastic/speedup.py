"""Speed-up curves: seconds per epoch as a function of the number of GPUs.

Between two measurements the power law through them holds, beyond them a default exponent. The
speed-up of a job that adapts its batch size changes during training (Pollux, OSDI'21): at first
more GPUs are wasted on it, later they are not. Measurements are therefore kept per training stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from math import log

from stoker.core.measurement.estimator import DEFAULT_SCALING_EXPONENT, STAGE_BOUNDARIES

EpochTimes = tuple[tuple[int, float], ...]
"""GPUs and seconds per epoch as measured, sorted by GPUs."""


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
