"""Quotas: how many jobs and GPUs of a queue, an array or a sweep run at a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TypeVar

from stoker.core.events import QueueDefined
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.queue.job_class import JobClass

_K = TypeVar("_K", str, int)


class Quotas:
    """Running jobs and GPUs per queue and throttled array, compared with their limits.

    Derived from: running jobs, counted by `count` when they start and end.
    """

    def __init__(
        self,
        queues: Mapping[str, QueueDefined],
        jobs: Mapping[int, Job],
        specs: Mapping[str, Spec],
        sweeps: Mapping[int, Sweep],
    ) -> None:
        self._queues, self._jobs, self._specs, self._sweeps = queues, jobs, specs, sweeps
        self.queue_running: dict[str, int] = {}
        """Running jobs by queue."""
        self.queue_gpus: dict[str, int] = {}
        """GPUs in use by queue, in thousandths."""
        self.array_running: dict[int, int] = {}
        """Running members by array or sweep with a limit."""

    def count(self, job: Job, placement: Placement, step: int) -> bool:
        """Count a start (+1) or an end (-1); return whether a limit may apply to the job."""
        spec = self._specs[job.spec]
        is_throttled = spec.array_limit is not None or job.params is not None
        _add(self.queue_running, spec.queue, step)
        _add(self.queue_gpus, spec.queue, step * placement.gpu_amount)
        if is_throttled:
            _add(self.array_running, job.array or job.id, step)
        return is_throttled or spec.queue in self._queues

    def reason(self, job_class: JobClass) -> str | None:
        """Return the limit that keeps a class from starting, in words, or None."""
        return self._array_reason(job_class) or self.queue_reason(job_class)

    def _array_reason(self, job_class: JobClass) -> str | None:
        if not job_class.array or not job_class.entries:
            return None
        sweep = self._sweeps.get(job_class.array)
        limit = self._specs[self._jobs[job_class.head].spec].array_limit
        if sweep is not None:
            limit = sweep.max_running
        if limit is None or self.array_running.get(job_class.array, 0) < limit:
            return None
        what = "array" if sweep is None else "sweep"
        return f"{what} {job_class.array} may run {limit} at a time"

    def queue_reason(self, job_class: JobClass) -> str | None:
        """Return the limit of its queue that keeps a class from starting, in words, or None."""
        queue = self._queues.get(job_class.queue)
        if queue is None:
            return None
        running = self.queue_running.get(job_class.queue, 0)
        if queue.max_running is not None and running >= queue.max_running:
            return f"queue {job_class.queue} may run {queue.max_running} at a time"
        if queue.max_gpus is not None:
            used = self.queue_gpus.get(job_class.queue, 0)
            head = self._jobs[job_class.head] if job_class.entries else None
            requested = self._specs[head.spec].request.gpu_amount if head else 0
            if used + requested > queue.max_gpus:
                return f"queue {job_class.queue} uses all GPUs of its quota"
        return None

    def gpus_left(self, queue: str) -> float | None:
        """Return the unused GPU quota of a queue in thousandths; None if no job may start."""
        limits = self._queues.get(queue)
        if limits is None:
            return inf
        running = self.queue_running.get(queue, 0)
        if limits.max_running is not None and running >= limits.max_running:
            return None
        return inf if limits.max_gpus is None else limits.max_gpus - self.queue_gpus.get(queue, 0)


def _add(counter: dict[_K, int], key: _K, step: int) -> None:
    value = counter.get(key, 0) + step
    if value:
        counter[key] = value
    else:
        counter.pop(key, None)
