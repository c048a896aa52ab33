"""Limits of users, groups and queues, compared with what their running jobs use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import inf

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.measurement.estimator import allocated_gpus, gpu_share, held_since
from stoker.core.model.job import Job
from stoker.core.model.limits import ANY_USER_KEY, Limits, Subject, user_key
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND, format_amount, format_duration, short_number
from stoker.core.state.record import ClusterRecord

HOUR_SECONDS = 3600.0
WEEK_HOURS = 7 * 24
"""Hours after which GPU time does not count any more."""


AppliedLimits = tuple[str, Subject, Limits]
"""Limits of a job: the key under which the use of their subject is counted, and the subject."""


class LimitHit(Struct, frozen=True):
    """A limit that keeps a job from starting."""

    key: str
    """Under which the use of its subject is counted."""
    limit: str
    """The name of the limit, as in `Limits`."""
    text: str


class LimitTracker:
    """What running jobs of each user, group and queue use, as far as there are limits.

    Derived from: limits and groups of users in the cluster record, running jobs. GPU time of ended
    attempts is stored in the record, by hour, for the subjects with a limit of GPU-hours.
    Cost: nothing without limits.
    """

    def __init__(self, record: ClusterRecord, specs: Mapping[str, Spec], cluster: Cluster) -> None:
        self._record, self._specs, self._cluster = record, specs, cluster
        self.running: dict[str, dict[int, Job]] = {}
        """Running jobs by subject."""
        self._gpus, self._memory = Counter[str](), Counter[str]()
        self._held: dict[int, tuple[int, int]] = {}
        """GPUs and GPU memory of running jobs, as they were counted: nodes may change."""
        self._exhausted: frozenset[str] = frozenset()
        """Keys of `gpu_time` that have used up their GPU-hours, as of the last refresh."""
        self._next_hour = inf

    # -- subjects -----------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether there is any limit."""
        return bool(self._record.limits)

    @property
    def by_user(self) -> bool:
        """Whether any limit depends on the user of a job."""
        return any(each.subject.type != "queue" for each in self._record.limits.values())

    def keys(self, spec: Spec, gids: Collection[int] | None = None) -> tuple[str, ...]:
        """Return the keys of all subjects of a job: its user, that user's groups, its queue.

        `gids`: the groups of its user, if they are newer than the recorded ones.
        """
        user = user_key(spec.user, spec.uid)
        gids = self._record.groups.get(user, ()) if gids is None else gids
        return (user, *(f"group:{gid}" for gid in gids), f"queue:{spec.queue}")

    def of(self, spec: Spec, gids: Collection[int] | None = None) -> Iterator[AppliedLimits]:
        """Yield the limits of a job, and the key under which its use is counted."""
        limits = self._record.limits
        for key in self.keys(spec, gids) if limits else ():
            entry = limits.get(key)
            if entry is None and key.startswith("user:"):
                entry = limits.get(ANY_USER_KEY)
            if entry is not None:
                subject = entry.subject
                if subject.key == ANY_USER_KEY:
                    subject = Subject("user", spec.user, spec.uid)
                yield key, subject, entry.limits

    # -- use ----------------------------------------------------------------------------

    def count(self, job: Job, placement: Placement, step: int) -> None:
        """Count a start (+1) or an end (-1)."""
        if not self._record.limits:
            return
        if step > 0:
            self._held[job.id] = placement.gpu_amount, self._memory_of(placement)
        gpus, memory = self._held[job.id]
        for key in self.keys(self._specs[job.spec]):
            if step > 0:
                self.running.setdefault(key, {})[job.id] = job
            else:
                del self.running[key][job.id]
                if not self.running[key]:
                    del self.running[key]
            self._gpus[key] += step * gpus
            self._memory[key] += step * memory

    def recount(self, running: Collection[Job]) -> None:
        """Count all running jobs again: the limits, or the groups of a user, have changed."""
        self.running.clear()
        self._gpus.clear()
        self._memory.clear()
        self._held.clear()
        for job in running:
            if job.placement is not None:
                self.count(job, job.placement, +1)
        tracked = {key for key, _ in self._with_gpu_hours()}
        for key in self._record.gpu_time.keys() - tracked:
            del self._record.gpu_time[key]

    def use(self, key: str) -> tuple[int, int, int]:
        """Return running jobs, thousandths of GPUs and MiB of GPU memory of a subject."""
        return len(self.running.get(key, ())), self._gpus[key], self._memory[key]

    def _memory_of(self, placement: Placement) -> int:
        total = 0
        for take, device in allocated_gpus(self._cluster, placement):
            size = device.facts.memory or 0 if device is not None else 0
            total += take.memory if take.is_shared else size * take.amount // THOUSAND
        return total

    # -- GPU-hours ----------------------------------------------------------------------

    def charge(self, job: Job, at: float) -> bool:
        """Add the GPU time of an attempt that ends now; return whether any of it is counted."""
        since = held_since(self._cluster, job)
        if not self.is_used or job.placement is None or since is None:
            return False
        share = gpu_share(self._cluster, job.placement)
        subjects = self.of(self._specs[job.spec])
        keys = [key for key, _, limits in subjects if limits.gpu_hours is not None]
        for key in keys if share else ():
            used = self._record.gpu_time.setdefault(key, {})
            for hour in [hour for hour in used if hour < _first_hour(at)]:
                del used[hour]
            for hour, seconds in by_hour(since, at, at):
                used[hour] = used.get(hour, 0.0) + share * seconds
        return bool(keys and share)

    def gpu_seconds(self, key: str, at: float) -> float:
        """Return the GPU-seconds of a subject in the week before this time, in whole hours."""
        first = _first_hour(at)
        total = sum(
            seconds for hour, seconds in self._record.gpu_time.get(key, {}).items() if hour >= first
        )
        for job in self.running.get(key, {}).values():
            since = held_since(self._cluster, job)
            if since is not None and job.placement is not None:
                start = max(since, first * HOUR_SECONDS)
                total += gpu_share(self._cluster, job.placement) * max(at - start, 0.0)
        return total

    def _with_gpu_hours(self) -> Iterator[tuple[str, float]]:
        """Yield the keys of subjects with a limit of GPU-hours, and that limit."""
        for key, entry in self._record.limits.items():
            if entry.limits.gpu_hours is None:
                continue
            if key != ANY_USER_KEY:
                yield key, entry.limits.gpu_hours
                continue
            for user in {*self._record.gpu_time, *self.running}:
                if user.startswith("user:") and user not in self._record.limits:
                    yield user, entry.limits.gpu_hours

    def refresh(self, at: float) -> bool:
        """Find the subjects that have used up their GPU-hours; return whether one no longer has."""
        before = self._exhausted
        self._next_hour = (at // HOUR_SECONDS + 1) * HOUR_SECONDS
        self._exhausted = frozenset(
            key
            for key, hours in self._with_gpu_hours()
            if self.gpu_seconds(key, at) >= hours * HOUR_SECONDS
        )
        return bool(before - self._exhausted)

    @property
    def next_refresh(self) -> float:
        """When a subject that has used up its GPU-hours may have some again; else infinite."""
        return self._next_hour if self._exhausted else inf

    def frees_at(self, key: str, gpu_hours: float, at: float) -> float | None:
        """Return when GPU time falls below a limit if no job of the subject starts or ends.

        None: not before one ends.
        """
        first = int(at // HOUR_SECONDS) + 1
        times = (hour * HOUR_SECONDS for hour in range(first, first + WEEK_HOURS + 1))
        limit = gpu_hours * HOUR_SECONDS
        return next((time for time in times if self.gpu_seconds(key, time) < limit), None)

    # -- comparison ---------------------------------------------------------------------

    def hit(
        self, spec: Spec, request: ResourceRequest | None = None, without: Collection[Job] = ()
    ) -> LimitHit | None:
        """Return the limit that keeps a job from starting; `request`: what it would start with.

        `without`: running jobs that are counted as ended.
        """
        request = spec.request if request is None else request
        for key, subject, limits in self.of(spec):
            found = (
                job_limit(spec, key, subject, limits)
                or self._too_many(key, request, subject, limits, without)
                or self._out_of_hours(key, request, subject, limits)
            )
            if found is not None:
                return found
        return None

    def gpus_left(self, spec: Spec, held: int) -> float:
        """Return the most thousandths of GPUs of a job that holds some and may get more."""
        most = inf
        for key, _, limits in self.of(spec):
            if limits.max_gpus is not None:
                most = min(most, limits.max_gpus - self._gpus[key] + held)
            if limits.max_job_gpus is not None:
                most = min(most, limits.max_job_gpus)
            if limits.gpu_memory is not None and (one := self._memory_per_gpu(spec.request)):
                free = limits.gpu_memory - self._memory[key]
                most = min(most, held + max(free // one, 0) * THOUSAND)
        return most

    def _too_many(
        self, key: str, request: ResourceRequest, subject: Subject, limits: Limits,
        without: Collection[Job],
    ) -> LimitHit | None:  # fmt: skip
        jobs, gpus, memory = self.use(key)
        for job in without:
            if job.id in self.running.get(key, ()):
                held_gpus, held_memory = self._held[job.id]
                jobs, gpus, memory = jobs - 1, gpus - held_gpus, memory - held_memory
        if limits.max_running is not None and jobs >= limits.max_running:
            text = f"{subject.text} may run {limits.max_running} at a time, and runs {jobs}"
            return LimitHit(key, "max_running", text)
        amount = self._gpu_amount(request)
        if limits.max_gpus is not None and gpus + amount > limits.max_gpus and amount:
            most, used = _gpus(limits.max_gpus), format_amount(gpus)
            text = f"{subject.text} may use {most} at a time, and uses {used}"
            return LimitHit(key, "max_gpus", text)
        if limits.gpu_memory is not None and amount:
            needed = self._memory_per_gpu(request) * -(-amount // THOUSAND)
            if memory + needed > limits.gpu_memory:
                text = (
                    f"{subject.text} may use {limits.gpu_memory} MiB of GPU memory at a time, and"
                    f" uses {memory}; the job needs {needed}"
                )
                return LimitHit(key, "gpu_memory", text)
        return None

    def _out_of_hours(
        self, key: str, request: ResourceRequest, subject: Subject, limits: Limits
    ) -> LimitHit | None:
        if limits.gpu_hours is None or key not in self._exhausted or not self._gpu_amount(request):
            return None
        hours = short_number(limits.gpu_hours)
        text = f"{subject.text} has used its {hours} GPU-hours of a week"
        return LimitHit(key, "gpu_hours", text)

    def _gpu_amount(self, request: ResourceRequest) -> int:
        """Return the thousandths of GPUs that a start counts: of a whole node, at most."""
        if request.exclusive:
            nodes = self._cluster.nodes.values()
            amounts = (sum(gpu.facts.capacity for gpu in node.types.get(GPU, ())) for node in nodes)
            return max(amounts, default=0) * request.node_count
        gpus = request.gpus
        if gpus is not None and gpus.fixed_share is not None:
            return len(gpus.required) * gpus.fixed_share
        return request.gpu_amount

    def _memory_per_gpu(self, request: ResourceRequest) -> int:
        """Return the MiB that each GPU of a request counts at most."""
        gpus = request.gpus
        if gpus is None:
            return 0
        if gpus.shareable and gpus.memory is not None:
            return gpus.memory
        nodes = self._cluster.nodes.values()
        sizes = (device.facts.memory or 0 for node in nodes for device in node.types.get(GPU, ()))
        return max(sizes, default=0)


def job_limit(spec: Spec, key: str, subject: Subject, limits: Limits) -> LimitHit | None:
    """Return the limit for each job that a job exceeds, whatever else runs."""
    amount = spec.request.gpu_amount
    if limits.max_job_gpus is not None and amount > limits.max_job_gpus:
        text = f"{subject.text} may use at most {_gpus(limits.max_job_gpus)} in one job"
        return LimitHit(key, "max_job_gpus", text)
    if limits.max_time is not None and (spec.limit is None or spec.limit > limits.max_time):
        text = f"a job of {subject.text} may run at most {format_duration(limits.max_time)}"
        return LimitHit(key, "max_time", text)
    return None


def _gpus(amount: int) -> str:
    return f"{format_amount(amount)} GPU{'s' * (amount != THOUSAND)}"


def _first_hour(at: float) -> int:
    """Return the first hour of the week before a time, as a number of hours since 1970."""
    return int(at // HOUR_SECONDS) - WEEK_HOURS


def by_hour(since: float, until: float, at: float) -> Iterator[tuple[int, float]]:
    """Yield the hours of a period in the week before a time, and the seconds of it in each."""
    first = max(int(since // HOUR_SECONDS), _first_hour(at))
    for hour in range(first, int(until // HOUR_SECONDS) + 1):
        seconds = min((hour + 1) * HOUR_SECONDS, until) - max(hour * HOUR_SECONDS, since)
        if seconds > 0:
            yield hour, seconds
