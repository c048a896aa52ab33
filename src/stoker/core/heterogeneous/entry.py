"""A job in a heterogeneous assignment, and its request for given devices."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.heterogeneous.colocation import devices_of
from stoker.core.heterogeneous.throughput import ExpectedRuntime
from stoker.core.measurement.estimator import NO_GPU
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.queue.job_class import JobClass
from stoker.core.structures import SortKey


class AssignmentEntry(Struct, kw_only=True, eq=False):
    """A pending or movable job, and the placement assigned to it."""

    job: Job
    key: SortKey
    requests: list[ResourceRequest]
    """Sizes of an elastic job, the largest first; of other jobs one."""
    runtime: ExpectedRuntime
    job_class: JobClass | None = None
    """Its class while it is pending."""
    current: Placement | None = None
    preferred: Placement | None = None
    """Its current or nominated placement: it goes there unless another is much better."""
    request: ResourceRequest
    """The request of the size for which `runtime` and `target` are."""
    target: Placement | None = None

    @property
    def may_share(self) -> bool:
        """Whether it may share its single GPU."""
        gpus = self.request.gpus
        return self.runtime.gpus == 1 and gpus is not None and gpus.shareable

    def restart_seconds(self, placement: Placement) -> float:
        """Return the seconds lost by going to a placement."""
        has_run = self.current is not None or self.job.attempt > 0
        return self.runtime.restart if has_run and placement is not self.current else 0.0


def exclusive_on(request: ResourceRequest, model: str) -> ResourceRequest:
    """Return a request for GPUs of one model without other users."""
    gpus = request.gpus
    if gpus is None or not gpus.amount:
        return request
    if model != NO_GPU:
        gpus = replace(gpus, model=model.lower(), models=())
    return replace(request, gpus=replace(gpus, on_idle_gpus=True) if gpus.shareable else gpus)


def only_on(request: ResourceRequest, placement: Placement, on_idle_gpus: bool) -> ResourceRequest:
    """Return a request for exactly the nodes and GPUs of a placement."""
    request = replace(request, nodes=tuple(part.node for part in placement.parts))
    if request.gpus is None:
        return request
    allowed = tuple(f"{node}/{gpu}" for node, gpu in sorted(devices_of(placement)))
    gpus = replace(request.gpus, on_idle_gpus=on_idle_gpus, allowed=allowed or request.gpus.allowed)
    return replace(request, gpus=gpus)
