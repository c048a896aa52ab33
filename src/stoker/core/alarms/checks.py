"""Checks: since when something is wrong, by the tracks of a GPU or of an attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stoker.core.alarms.samples import STARTUP_SECONDS, GpuTrack, JobTrack, hung_since
from stoker.core.model.alarm import AlarmRules
from stoker.core.model.units import approximate_duration

PROGRAM_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Faults that a program causes, not the hardware."""


class Finding(NamedTuple):
    """What is wrong, since when on the boot clock, and the evidence in words."""

    kind: str
    since: float
    text: str


def check_hardware(track: GpuTrack, boot: float, rules: AlarmRules) -> Iterator[Finding]:
    """Yield what is wrong with a GPU, whatever runs on it."""
    last, limit = track.last, rules.limit("hot")
    if last is None:
        return
    if limit and track.hot is not None and boot - track.hot >= limit:
        at = f"it slows down at {last.slowdown} °C" if last.slowdown else "heat slows it down"
        yield Finding("hot", track.hot, f"{last.temperature} °C; {at}")
    if rules.limit("ecc") and last.ecc_errors:
        yield Finding("ecc", boot, f"{last.ecc_errors} uncorrectable memory errors")
    if rules.limit("xid") and last.xid is not None and last.xid not in PROGRAM_XIDS:
        yield Finding("xid", boot, f"Xid {last.xid} reported by its driver")


def check_use(track: GpuTrack, started: float, boot: float, rules: AlarmRules) -> Finding | None:
    """Return whether a GPU that an attempt has for itself is of no use to it."""
    unused, idle = rules.limit("gpu_unused"), rules.limit("gpu_idle")
    if unused and track.unused is not None and boot - track.unused >= unused:
        return Finding("gpu_unused", track.unused, "no process of the job has used it")
    if idle and track.idle is not None:
        begin = max(track.idle, started + STARTUP_SECONDS)
        if boot - begin >= idle:
            memory = track.last.memory if track.last is not None else None
            held = f"; {memory} MiB of its memory are in use" if memory else ""
            return Finding("gpu_idle", track.idle, f"nothing runs on it{held}")
    return None


def check_job(
    track: JobTrack, gpus: list[GpuTrack], boot: float, rules: AlarmRules
) -> Iterator[Finding]:
    """Yield what is wrong with an attempt; `gpus`: its own, if all are read."""
    last, objective = track.last, track.objective
    limit = rules.limit("hung")
    since = hung_since(track, gpus, boot, limit) if limit else None
    if since is not None:
        yield Finding("hung", since, _hung_text(track, gpus))
    if rules.limit("nan") and (last.nan_metrics or last.log_has_nan):
        names = last.nan_metrics[:3] or ("the loss in its log",)
        are = "is not a number" if len(names) == 1 else "are not numbers"
        yield Finding("nan", boot, f"{', '.join(names)} {are}")
    limit = rules.limit("log_silent")
    if limit and last.log_size is not None and boot - track.wrote >= limit:
        yield Finding("log_silent", track.wrote, "no output")
    if objective is None:
        return
    limit = rules.limit("loss_flat")
    if limit and boot - objective.improved >= limit:
        yield Finding("loss_flat", objective.improved, "the objective does not get better")
    limit = rules.limit("diverged")
    if limit and objective.worse is not None and boot - objective.worse >= limit:
        yield Finding("diverged", objective.worse, "the objective is worse than its first value")


def _hung_text(track: JobTrack, gpus: list[GpuTrack]) -> str:
    usual = "" if track.last.progress is not None else " and no output"
    if track.intervals:
        usual = f", where one came every {approximate_duration(max(track.intervals))}"
    load = f"; GPU at {'100' if gpus[0].is_full else '0'} %" if gpus else ""
    return f"no report of progress{usual}{load}"
