"""Workloads whose jobs are of known kinds: what was measured of them before, and in which steps.

All jobs of a kind count the same work as an epoch, so that what was measured of one of them holds
for the others. An epoch is as long as the time between two checkpoints where it takes longest.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from stoker.core.cluster import NodeFacts
from stoker.core.estimate import Pace, company
from stoker.core.events import KindMeasured
from stoker.core.request import GPU
from stoker.simulate.workload import TraceJob, Workload

SHORTEST = 60.0
"""Seconds of an epoch, if checkpoints are not counted."""


class JobProfiles:
    """The kinds of a workload's jobs, on the machines that there are."""

    def __init__(self, workload: Workload, nodes: list[NodeFacts], checkpoint: float) -> None:
        cards = [card for node in nodes for card in node.types.get(GPU, ())]
        self.gpu_models = sorted({card.model for card in cards if card.model})
        self.gpus_per_node = max((len(node.types.get(GPU, ())) for node in nodes), default=1)
        self.samples: dict[tuple[str, float], TraceJob] = {}
        for load in workload.jobs:
            if load.steps and load.speed is not None:
                self.samples.setdefault((family(load), load.gpus), load)
        self.epoch_steps: dict[str, float] = {}
        """In an epoch, by family."""
        for (name, _), load in self.samples.items():
            slowest = min((pace for _, pace in self._steps_per_second(load)), default=1.0)
            steps = slowest * (checkpoint or SHORTEST)
            self.epoch_steps[name] = min(steps, self.epoch_steps.get(name, steps))
        least = min((card.memory or 0 for card in cards), default=0)
        self.reserved_memory = least // 2 if least else 1
        """What each job sets aside of a GPU: so much that two fit on it, and no third."""

    def with_memory(self, nodes: list[NodeFacts]) -> list[NodeFacts]:
        """The same machines; where nobody says what memory GPUs have, room for two jobs."""
        return [
            replace(node, types={
                type: tuple(
                    card if card.memory or type != GPU else replace(card, memory=2)
                    for card in cards
                )
                for type, cards in node.types.items()
            })
            for node in nodes
        ]  # fmt: skip

    def epoch_work(self, load: TraceJob) -> float | None:
        """An epoch, in seconds of a job's work; None where nothing is known of it."""
        steps = self.epoch_steps.get(family(load))
        return steps * load.duration / load.steps if steps and load.steps else None

    def may_share(self, load: TraceJob) -> bool:
        """Whether two of them on a GPU were measured: single ones only."""
        return load.gpus == 1.0 and family(load) in self.epoch_steps

    def profile_events(self, warmup: float) -> Iterator[KindMeasured]:
        """All that is known beforehand."""
        for name in self.epoch_steps:
            sizes = [load for (each, _), load in self.samples.items() if each == name]
            yield KindMeasured(
                at=0.0,
                family=name,
                paces=tuple(
                    Pace(int(load.gpus), model, self.epoch_steps[name] / pace)
                    for load in sizes
                    for model, pace in self._steps_per_second(load)
                ),
                beside={
                    company(model, other): load.speed.interference(company_of.speed, model)
                    for load in sizes
                    if self.may_share(load) and load.speed is not None
                    for (other, _), company_of in self.samples.items()
                    if self.may_share(company_of) and company_of.speed is not None
                    for model in self.gpu_models
                },
                warmup=warmup,
            )

    def _steps_per_second(self, load: TraceJob) -> Iterator[tuple[str, float]]:
        """Steps per second on each model on which it runs at all."""
        assert load.speed is not None
        assert load.steps is not None
        gpus = int(load.gpus)
        machines = -(-gpus // self.gpus_per_node)
        for model in self.gpu_models:
            rate = load.speed.rate(0.0, gpus, machines, model)
            if rate > 0.0:
                yield model, load.steps / load.duration * rate


def family(load: TraceJob) -> str:
    """What the core calls those who are alike."""
    return f"{load.user}: {load.name}"
