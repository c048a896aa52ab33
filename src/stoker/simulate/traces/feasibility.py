"""Whether there is any way at all to run a job on given machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.core.cluster import Cluster, NodeFacts
from stoker.core.policy.fit import could_ever
from stoker.core.request import GPU, Request
from stoker.simulate.job_request import request_for
from stoker.simulate.workload import TraceJob


class FeasibilityChecker:
    """Machines, as far as it matters whether a job could ever run."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self.node_counts: Counter[str] = Counter()
        """How many machines there are of each kind."""
        self.cluster = Cluster()
        """One of each."""
        names: dict[object, str] = {}
        same: dict[int, str] = {}  # machines that were typed share what is said of them
        for facts in nodes:
            name = same.get(id(facts.types))
            if name is None:
                key = tuple(sorted(facts.types.items()))
                name = same[id(facts.types)] = names.setdefault(key, facts.name)
            if name not in self.node_counts:
                self.cluster.join(facts, ())
            self.node_counts[name] += 1
        self.gpus_per_node = max((len(facts.types.get(GPU, ())) for facts in nodes), default=0)
        self._known: dict[Request, bool] = {}

    def may_run(self, job: TraceJob) -> bool:
        """Whether it could run if nothing else did."""
        if not job.gpus and not job.cpus:
            return False
        request = request_for(job, self.gpus_per_node)
        found = self._known.get(request)
        if found is None:
            able = (
                self.node_counts[name]
                for name, node in self.cluster.nodes.items()
                if could_ever(node, request) is None
            )
            found = self._known[request] = sum(able) >= request.machines
        return found


def smallest_request_text(jobs: Sequence[TraceJob]) -> str:
    """What the smallest of these jobs asks for, in words."""
    job = min(jobs, key=lambda each: (each.gpus, each.cpus, each.ram, each.gpu_memory or 0))
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
