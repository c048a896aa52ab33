"""JobProfiles: speeds of jobs that were measured before the replay.

An epoch is the same amount of work for all jobs of a profile, so that measurements of one job
hold for the others. On the slowest hardware, an epoch takes one checkpoint interval.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from stoker.core.events import ProfileImported
from stoker.core.measurement.estimator import colocation_key
from stoker.core.model.profile import EpochTime
from stoker.core.model.resources import GPU, NodeFacts
from stoker.simulate.workload import TraceJob, Workload

DEFAULT_EPOCH_SECONDS = 60.0
"""Length of an epoch if there is no checkpoint interval."""


class JobProfiles:
    """The profiles of a workload on the nodes of a cluster."""

    def __init__(self, workload: Workload, nodes: list[NodeFacts], checkpoint: float) -> None:
        cards = [card for node in nodes for card in node.types.get(GPU, ())]
        self.gpu_models = sorted({card.model for card in cards if card.model})
        self.gpus_per_node = max((len(node.types.get(GPU, ())) for node in nodes), default=1)
        self.samples: dict[tuple[str, float], TraceJob] = {}
        for job in workload.jobs:
            if job.steps and job.speed is not None:
                self.samples.setdefault((profile_key(job), job.gpus), job)
        self.epoch_steps: dict[str, float] = {}
        """Steps of an epoch, by profile."""
        for (name, _), job in self.samples.items():
            slowest = min((rate for _, rate in self._steps_per_second(job)), default=1.0)
            steps = slowest * (checkpoint or DEFAULT_EPOCH_SECONDS)
            self.epoch_steps[name] = min(steps, self.epoch_steps.get(name, steps))
        min_memory = min((card.memory or 0 for card in cards), default=0)
        self.reserved_memory = min_memory // 2 if min_memory else 1
        """GPU memory of each job: two jobs fit on a GPU, a third does not."""

    def with_memory(self, nodes: list[NodeFacts]) -> list[NodeFacts]:
        """Return the nodes; GPUs without a known memory get enough for two jobs."""
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

    def epoch_work(self, job: TraceJob) -> float | None:
        """Return the seconds of work in an epoch; None if the job has no profile."""
        steps = self.epoch_steps.get(profile_key(job))
        return steps * job.duration / job.steps if steps and job.steps else None

    def may_share(self, job: TraceJob) -> bool:
        """Return True if sharing a GPU was measured, which holds for jobs with one GPU."""
        return job.gpus == 1.0 and profile_key(job) in self.epoch_steps

    def profile_events(self, warmup: float) -> Iterator[ProfileImported]:
        """Yield the events that import all profiles."""
        for name in self.epoch_steps:
            sizes = [job for (job_name, _), job in self.samples.items() if job_name == name]
            yield ProfileImported(
                at=0.0,
                profile=name,
                epoch_times=tuple(
                    EpochTime(int(job.gpus), model, self.epoch_steps[name] / pace)
                    for job in sizes
                    for model, pace in self._steps_per_second(job)
                ),
                interference={
                    colocation_key(model, other): job.speed.interference(company_of.speed, model)
                    for job in sizes
                    if self.may_share(job) and job.speed is not None
                    for (other, _), company_of in self.samples.items()
                    if self.may_share(company_of) and company_of.speed is not None
                    for model in self.gpu_models
                },
                warmup=warmup,
            )

    def _steps_per_second(self, job: TraceJob) -> Iterator[tuple[str, float]]:
        """Yield the steps per second on each GPU model that can run the job."""
        assert job.speed is not None
        assert job.steps is not None
        gpus = int(job.gpus)
        machines = -(-gpus // self.gpus_per_node)
        for model in self.gpu_models:
            rate = job.speed.rate(0.0, gpus, machines, model)
            if rate > 0.0:
                yield model, job.steps / job.duration * rate


def profile_key(job: TraceJob) -> str:
    """Return the profile key of a job in the core."""
    return f"{job.user}: {job.name}"
