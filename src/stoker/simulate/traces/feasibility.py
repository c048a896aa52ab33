"""FeasibilityChecker: can a job ever run on these nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.core.cluster.cluster import Cluster
from stoker.core.model.resources import GPU, NodeFacts, ResourceRequest
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.simulate.job_request import request_for
from stoker.simulate.workload import TraceJob


class FeasibilityChecker:
    """Checks jobs against the distinct kinds of nodes of a cluster."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self.node_counts: Counter[str] = Counter()
        """Number of nodes of each kind."""
        self.cluster = Cluster()
        """One node of each kind."""
        names: dict[object, str] = {}
        same: dict[int, str] = {}  # equal nodes share one object
        for node in nodes:
            name = same.get(id(node.types))
            if name is None:
                key = tuple(sorted(node.types.items()))
                name = same[id(node.types)] = names.setdefault(key, node.name)
            if name not in self.node_counts:
                self.cluster.add_node(node, ())
            self.node_counts[name] += 1
        self.gpus_per_node = max((len(node.types.get(GPU, ())) for node in nodes), default=0)
        self._known: dict[ResourceRequest, bool] = {}

    def may_run(self, job: TraceJob) -> bool:
        """Return True if a job could run on the idle cluster."""
        if not job.gpus and not job.cpus:
            return False
        request = request_for(job, self.gpus_per_node)
        feasible = self._known.get(request)
        if feasible is None:
            counts = (
                self.node_counts[name]
                for name, node in self.cluster.nodes.items()
                if infeasibility_reason(node, request) is None
            )
            feasible = self._known[request] = sum(counts) >= request.node_count
        return feasible


def smallest_request_text(jobs: Sequence[TraceJob]) -> str:
    """Return the smallest request of these jobs as text."""
    job = min(jobs, key=lambda job: (job.gpus, job.cpus, job.ram, job.gpu_memory or 0))
    parts = []
    if job.gpus or not job.cpus:
        models = f" of model {' or '.join(job.gpu_models)}" if job.gpu_models else ""
        parts.append(f"{job.gpus:g} GPU{'s' * (job.gpus != 1)}{models}")
        if job.gpu_memory:
            parts[0] += f" with {job.gpu_memory:,} MiB"
    if job.cpus:
        parts.append(f"{job.cpus:g} core{'s' * (job.cpus != 1)}")
    if job.ram:
        parts.append(f"{job.ram:,} MiB of memory")
    return ", ".join(parts)
