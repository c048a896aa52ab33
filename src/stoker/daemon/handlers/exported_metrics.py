"""All metrics of `GET /metrics`, read in the daemon's thread.

No label is a job's id except on metrics of running jobs, so that the number of series is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from stoker import __version__
from stoker.core.cluster.node import Device, Node
from stoker.core.model.alarm import KINDS, OVER_REQUESTED
from stoker.core.model.job import NO_USAGE, AttemptId, GpuUsage
from stoker.core.model.resources import GPU
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.daemon.handlers.usage import Measured, current_usage
from stoker.daemon.views.exposition import Exposition, Sample
from stoker.daemon.views.gpu import device_state
from stoker.engine import Instant

MEBIBYTE = 1 << 20
MAX_USERS = 100
"""More users are one: `other`."""
OTHER = "other"

Usages = Mapping[tuple[str, str], GpuUsage]
"""By user and queue."""


class DaemonFigures(Struct):
    """What the exported metrics need besides the state."""

    readings: Callable[[str], Mapping[str, dict[str, Any]]]
    """Returns the last readings of a node's GPUs, by UUID."""
    energy: Mapping[str, float]
    """Joules since the start, by UUID."""
    nodes_up: Mapping[str, bool]
    usage: Usages
    """Of ended attempts, since the start of the daemon."""
    before: Mapping[AttemptId, GpuUsage]
    """Of running attempts, before that."""
    measured: Measured
    with_users: bool


class _Users:
    """Names of users as labels; the first MAX_USERS keep theirs."""

    def __init__(self, enabled: bool) -> None:
        self._enabled, self._known = enabled, set[str]()

    def label(self, user: str) -> str:
        if not self._enabled:
            return ""
        if user not in self._known and len(self._known) >= MAX_USERS:
            return OTHER
        self._known.add(user)
        return user


def add_jobs(text: Exposition, state: State, now: Instant, with_users: bool) -> None:
    """Add metrics of the queue."""
    jobs, oldest = Counter[tuple[str, str]](), dict[str, float]()
    users, gpus = _Users(with_users), Counter[str]()
    for job in state.running.values():
        jobs[job.state.value, state.spec(job).queue] += 1
        if job.placement is not None:
            gpus[users.label(job.user)] += job.placement.gpu_amount
    for job_class in state.pending.classes.values():
        jobs["PENDING", job_class.queue] += len(job_class.entries)
        first = state.jobs[job_class.head]
        since = max(first.ready_at or 0.0, first.submitted_at)
        oldest[job_class.queue] = min(oldest.get(job_class.queue, since), since)
    for id in state.unacknowledged:
        jobs[state.jobs[id].state.value, state.spec(state.jobs[id]).queue] += 1
    text.gauge(
        "stoker_jobs", "Jobs by state; failures until they are dismissed.",
        [({"state": name, "queue": queue}, n) for (name, queue), n in sorted(jobs.items())],
    )  # fmt: skip
    not_eligible = state.live - len(state.running) - len(state.pending)
    text.gauge(
        "stoker_jobs_not_eligible", "Pending jobs that are held or wait for a time or other jobs.",
        [({}, not_eligible)],
    )  # fmt: skip
    text.gauge(
        "stoker_oldest_waiting_seconds", "Waiting time of the first job of any class in a queue.",
        [({"queue": queue}, max(now.wall - at, 0.0)) for queue, at in sorted(oldest.items())],
    )  # fmt: skip
    text.gauge(
        "stoker_user_gpus", "GPUs that running jobs of a user hold.",
        [({"user": user}, n / THOUSAND) for user, n in sorted(gpus.items())],
    )  # fmt: skip


def add_gpus(text: Exposition, state: State, figures: DaemonFigures) -> None:
    """Add metrics of GPUs and nodes."""
    holders: dict[tuple[str, str], list[Any]] = {}
    for job in state.running.values():
        for part in job.parts:
            for take in part.allocations:
                if take.type == GPU:
                    holders.setdefault((part.node, take.device), []).append(job)
    known = list(_gpus(state, figures))
    states = Counter[tuple[str, str, str]]()
    foreign = Counter[str]()
    for node, device, _ in known:
        has_jobs = (node.name, device.name) in holders
        states[node.name, device.facts.model or "", device_state(node, device, has_jobs)] += 1
        foreign[node.name] += device.foreign_user is not None
    text.gauge(
        "stoker_gpus", "GPUs by what they can be used for now.",
        [({"node": n, "model": m, "state": s}, c) for (n, m, s), c in sorted(states.items())],
    )  # fmt: skip
    text.gauge(
        "stoker_foreign_gpus", "GPUs that processes outside of stoker use.",
        [({"node": node}, count) for node, count in sorted(foreign.items())],
    )  # fmt: skip
    for name, help_text, field, factor in (
        (
            "stoker_gpu_utilization_ratio",
            "Share of time with a kernel running.",
            "utilization",
            0.01,
        ),
        ("stoker_gpu_memory_used_bytes", "Used GPU memory.", "memory_used", MEBIBYTE),
        ("stoker_gpu_power_watts", "Power of the GPU.", "power", 1.0),
        ("stoker_gpu_temperature_celsius", "Temperature of the GPU.", "temperature", 1.0),
    ):
        text.gauge(
            name, help_text,
            [(_gpu_labels(node, device), reading[field] * factor)
             for node, device, reading in known if reading.get(field) is not None],
        )  # fmt: skip
    text.gauge(
        "stoker_gpu_memory_total_bytes", "Memory of the GPU.",
        [(_gpu_labels(node, device), device.facts.memory * MEBIBYTE)
         for node, device, _ in known if device.facts.memory],
    )  # fmt: skip
    text.counter(
        "stoker_gpu_energy_joules_total", "Energy since the start of the daemon: power × time.",
        [(_gpu_labels(node, device), figures.energy[uuid])
         for node, device, _ in known if (uuid := device.facts.uuid or "") in figures.energy],
    )  # fmt: skip
    text.gauge(
        "stoker_gpu_info", "Constant facts of a GPU.",
        [({"node": node.name, "gpu": device.name, "gpu_uuid": device.facts.uuid or "",
           "model": device.facts.model or ""}, 1) for node, device, _ in known],
    )  # fmt: skip
    users = _Users(figures.with_users)
    text.gauge(
        "stoker_gpu_job_info", "The running jobs on a GPU.",
        [({"node": node.name, "gpu": device.name, "gpu_uuid": device.facts.uuid or "",
           "job": job.label, "name": job.name, "user": users.label(job.user)}, 1)
         for node, device, _ in known for job in holders.get((node.name, device.name), ())],
    )  # fmt: skip
    text.gauge(
        "stoker_executor_up", "Whether a node answers.",
        [({"executor": name}, float(up)) for name, up in sorted(figures.nodes_up.items())],
    )  # fmt: skip


def add_alarms(text: Exposition, state: State) -> None:
    """Add the number of active alarms; of those of GPUs, by GPU."""
    active = Counter[tuple[str, str, str]]()
    for alarm in state.record.alarms.values():
        node = state.cluster.nodes.get(alarm.node or "")
        device = node.by_name.get((GPU, alarm.gpu or "")) if node is not None else None
        uuid = device.facts.uuid if device is not None else None
        active[alarm.kind, alarm.node or "", uuid or ""] += 1
    for kind in {*KINDS} - {OVER_REQUESTED} - {kind for kind, _, _ in active}:
        active[kind, "", ""] = 0
    text.gauge(
        "stoker_alarm_active", "Active alarms.",
        [({"kind": kind, "node": node, "gpu_uuid": uuid}, count)
         for (kind, node, uuid), count in sorted(active.items())],
    )  # fmt: skip


def _gpus(state: State, figures: DaemonFigures) -> Iterator[tuple[Node, Device, Mapping[str, Any]]]:
    for node in state.cluster.nodes.values():
        if not (node.on_demand or node.delegated):
            use = figures.readings(node.name)
            for device in node.types.get(GPU, ()):
                yield node, device, use.get(device.facts.uuid or "", {})


def _gpu_labels(node: Node, device: Device) -> dict[str, str]:
    return {"node": node.name, "gpu": device.name, "gpu_uuid": device.facts.uuid or ""}


def add_gpu_time(text: Exposition, state: State, now: Instant, figures: DaemonFigures) -> None:
    """Add the GPU time of ended and running attempts."""
    totals: dict[tuple[str, str], GpuUsage] = {}
    users = _Users(figures.with_users)
    for (user, queue), usage in [*figures.usage.items(), *_running(state, now, figures)]:
        key = (users.label(user), queue)
        totals[key] = totals.get(key, NO_USAGE) + usage
    kinds: list[Sample] = []
    for (user, queue), usage in sorted(totals.items()):
        for kind, seconds in (
            ("busy", usage.busy), ("idle", usage.measured - usage.busy),
            ("unknown", usage.held - usage.measured),
        ):  # fmt: skip
            kinds.append(({"user": user, "queue": queue, "kind": kind}, max(seconds, 0.0)))
    text.counter(
        "stoker_gpu_seconds_total",
        "GPU time held by jobs: busy, idle, or unknown because it was not measured.", kinds,
    )  # fmt: skip
    text.counter(
        "stoker_gpu_wasted_seconds_total",
        "GPU time of attempts that failed before any work counted, and of idle GPUs.",
        [({"user": user, "queue": queue}, usage.wasted)
         for (user, queue), usage in sorted(totals.items())],
    )  # fmt: skip


def _running(
    state: State, now: Instant, figures: DaemonFigures
) -> Iterable[tuple[tuple[str, str], GpuUsage]]:
    for job in state.running.values():
        usage = current_usage(job, figures.measured, state, now)
        before = figures.before.get(AttemptId(job.id, job.attempt))
        if usage.held:
            usage = usage - before if before is not None else usage
            yield (job.user, state.spec(job).queue), usage


def add_build(text: Exposition) -> None:
    """Add the version."""
    text.gauge("stoker_build_info", "The version of the daemon.", [({"version": __version__}, 1)])
