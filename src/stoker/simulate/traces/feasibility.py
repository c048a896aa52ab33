"""Whether there is any way at all to run a job on given machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.core.cluster import Cluster, NodeFacts
from stoker.core.policy.fit import could_ever
from stoker.core.request import GPU, Request
from stoker.simulate.job_request import request_for
from stoker.simulate.workload import TraceJob


class Room:
    """Machines, as far as it matters whether a job could ever run."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self.alike: Counter[str] = Counter()
        """How many machines there are of each kind."""
        self.one = Cluster()
        """One of each."""
        names: dict[object, str] = {}
        same: dict[int, str] = {}  # machines that were typed share what is said of them
        for facts in nodes:
            name = same.get(id(facts.types))
            if name is None:
                key = tuple(sorted(facts.types.items()))
                name = same[id(facts.types)] = names.setdefault(key, facts.name)
            if name not in self.alike:
                self.one.join(facts, ())
            self.alike[name] += 1
        self.per_node = max((len(facts.types.get(GPU, ())) for facts in nodes), default=0)
        self._known: dict[Request, bool] = {}

    def has(self, job: TraceJob) -> bool:
        """Whether it could run if nothing else did."""
        if not job.gpus and not job.cpus:
            return False
        request = request_for(job, self.per_node)
        found = self._known.get(request)
        if found is None:
            able = (
                self.alike[name]
                for name, node in self.one.nodes.items()
                if could_ever(node, request) is None
            )
            found = self._known[request] = sum(able) >= request.machines
        return found


def smallest(jobs: Sequence[TraceJob]) -> str:
    """What the smallest of these jobs asks for, in words."""
    job = min(jobs, key=lambda each: (each.gpus, each.cpus, each.ram, each.memory or 0))
    parts = []
    if job.gpus or not job.cpus:
        models = f" of model {' or '.join(job.models)}" if job.models else ""
        parts.append(f"{job.gpus:g} GPU{'s' * (job.gpus != 1)}{models}")
        if job.memory:
            parts[0] += f" with {job.memory:,} MiB"
    if job.cpus:
        parts.append(f"{job.cpus:g} core{'s' * (job.cpus != 1)}")
    if job.ram:
        parts.append(f"{job.ram:,} MiB of memory")
    return ", ".join(parts)
