"""Quotas: how many jobs and GPUs of a queue, array, sweep, user or group run at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from stoker.core.events import QueueDefined
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.queue.job_class import JobClass
from stoker.core.state.limits import LimitHit, LimitTracker


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
        limits: LimitTracker,
    ) -> None:
        self._queues, self._jobs, self._specs, self._sweeps = queues, jobs, specs, sweeps
        self._limits = limits
        self.queue_running = Counter[str]()
        """Running jobs by queue."""
        self.queue_gpus = Counter[str]()
        """GPUs in use by queue, in thousandths."""
        self.array_running = Counter[int]()
        """Running members by array or sweep with a limit."""

    def count(self, job: Job, placement: Placement, step: int) -> None:
        """Count a start (+1) or an end (-1)."""
        spec = self._specs[job.spec]
        self.queue_running[spec.queue] += step
        self.queue_gpus[spec.queue] += step * placement.gpu_amount
        if spec.array_limit is not None or job.params is not None:
            self.array_running[job.array or job.id] += step

    def reason(self, job_class: JobClass) -> str | None:
        """Return the limit that keeps a class from starting, in words, or None."""
        found = self._array_reason(job_class) or self.queue_reason(job_class)
        if found is None and (hit := self.limit_hit(job_class)) is not None:
            return hit.text
        return found

    def limit_hit(self, job_class: JobClass) -> LimitHit | None:
        """Return the limit of its user, groups or queue that keeps a class from starting."""
        if not self._limits.is_used or not job_class.entries:
            return None
        return self._limits.hit(self._specs[self._jobs[job_class.head].spec], job_class.request)

    def _array_reason(self, job_class: JobClass) -> str | None:
        if not job_class.array or not job_class.entries:
            return None
        sweep = self._sweeps.get(job_class.array)
        spec = self._specs[self._jobs[job_class.head].spec]
        limit = spec.array_limit if sweep is None else sweep.max_running
        if limit is None or self.array_running[job_class.array] < limit:
            return None
        what = "array" if sweep is None else "sweep"
        return f"{what} {job_class.array} may run {limit} at a time"

    def queue_reason(self, job_class: JobClass) -> str | None:
        """Return the limit of its queue that keeps a class from starting, in words, or None."""
        queue = self._queues.get(job_class.queue)
        if queue is None:
            return None
        left = self.gpus_left(queue.name)
        if left is None:
            return f"queue {queue.name} may run {queue.max_running} at a time"
        head = self._jobs[job_class.head] if job_class.entries else None
        requested = self._specs[head.spec].request.gpu_amount if head else 0
        return f"queue {queue.name} uses all GPUs of its quota" if requested > left else None

    def gpus_left(self, queue: str) -> float | None:
        """Return the unused GPU quota of a queue in thousandths; None if no job may start."""
        limits = self._queues.get(queue)
        if limits is None:
            return inf
        if limits.max_running is not None and self.queue_running[queue] >= limits.max_running:
            return None
        return inf if limits.max_gpus is None else limits.max_gpus - self.queue_gpus[queue]

    def max_gpus(self, spec: Spec, held: int) -> float:
        """Return the most thousandths of GPUs of a job that holds some and may get more."""
        return min((self.gpus_left(spec.queue) or 0) + held, self._limits.gpus_left(spec, held))
