"""Who makes room where reservations and priorities meet: never in vain, never forgotten."""

from collections import Counter
from math import inf
from random import Random

import pytest

from stoker.core import events as e
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.job import Job
from stoker.core.placement.placer import find_placement
from stoker.core.queue.pending_queue import first_jobs
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.replay import Replay
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

AT_ONCE = ReplayAssumptions(restart_seconds=0.0, checkpoint_seconds=1.0)
SOON = ReplayAssumptions(restart_seconds=5.0, checkpoint_seconds=30.0)
MOST_STARTS = 12
"""So often a job is stopped and goes on at the most where others come and go."""
MOST_TURNS = 500
"""More of them at one moment mean that it goes in circles."""
SIZES = (0.5, 1, 1, 1, 2, 2, 3, 4, 6, 8, 16)


class Watched(Replay):
    """Counts, and looks at every moment at which nobody is stopping."""

    def __init__(
        self, jobs: list[TraceJob], cluster: str, name: str, assumed: ReplayAssumptions
    ) -> None:
        super().__init__(
            Workload(title="", jobs=jobs), parse_cluster(cluster), name, None, assumed
        )  # fmt: skip
        self.starts: Counter[int] = Counter()
        self.forgotten: list[tuple[float, int]] = []
        self.turns = (0.0, 0)

    def _cycle(self, instructions: list[object]) -> None:
        self.turns = (self.now, self.turns[1] + 1 if self.turns[0] == self.now else 0)
        assert self.turns[1] < MOST_TURNS, f"it goes in circles at {self.now}"
        super()._cycle(instructions)

    def _apply(self, fact: e.Event) -> list[object]:
        if isinstance(fact, e.AttemptPlanned):
            self.starts[fact.job] += 1
        return super()._apply(fact)

    def _next_event_time(self, arrival: float) -> float:
        moment = super()._next_event_time(arrival)
        stopping = any(course.stop_time < inf for course in self.runs.values())
        first = next(iter(first_jobs(self.state.pending, self.state.jobs, 1)), None)
        if moment > self.now and not stopping and first is not None and self._could_run(first):
            self.forgotten.append((self.now, first.id))
        return moment

    def _could_run(self, first: Job) -> bool:
        """Whether there is room if all of lower priority stop who can."""
        state, later = self.state, Overlay(self.state.cluster)
        for job in state.running.values():
            lower = job.priority < first.priority
            if lower and not self.runs[job.id].job.non_preemptible and job.placement is not None:
                later.release(job.placement)
        return find_placement(later, state.effective_request(first, state.spec(first))) is not None


def lab(seed: int) -> list[TraceJob]:
    """More than fits, of all priorities; a third cannot be stopped; limits far too long."""
    chance = Random(seed)
    at, jobs = 0.0, []
    for _ in range(chance.randint(40, 90)):
        at += chance.expovariate(1 / 60)
        seconds = chance.lognormvariate(6, 1)
        jobs.append(
            TraceJob(
                submit_time=at, duration=seconds, gpus=chance.choice(SIZES),
                time_limit=int(10_000 + 10 * seconds + chance.random() * 200_000),
                priority=chance.choice((0, 0, 1, 3)), non_preemptible=chance.random() < 0.3,
            )
        )  # fmt: skip
    return jobs


@pytest.mark.parametrize("assumed", [AT_ONCE, SOON], ids=["at once", "soon"])
def test_no_job_is_preempted_for_a_job_that_may_not_start(assumed: ReplayAssumptions) -> None:
    """The gang is reserved from the end of the first on; the last would delay it."""
    jobs = [
        TraceJob(
            submit_time=0, duration=1900, time_limit=2000, gpus=8, non_preemptible=True, priority=3
        ),
        TraceJob(submit_time=1, duration=400, time_limit=1500, gpus=8),
        TraceJob(submit_time=10, duration=300, time_limit=1000, gpus=16, priority=3),
        TraceJob(submit_time=20, duration=800, time_limit=9000, gpus=8, priority=1),
    ]
    for name in ("planner", "backfill", "conservative"):
        run = Watched(jobs, "2x8", name, assumed).run()
        begins = {each.job: each.start_time for each in run.results}
        assert [begins[place] for place in range(4)] == pytest.approx([0, 1, 1900, 2200])
        assert not any(each.preemptions for each in run.results)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["fifo", "skip", "backfill", "conservative", "fair", "planner"])
def test_jobs_are_preempted_without_cycles(name: str, seed: int) -> None:
    for assumed in (AT_ONCE, SOON):
        play = Watched(lab(seed), "4x8", name, assumed)
        assert play.run().unfinished == 0
        assert max(play.starts.values()) <= MOST_STARTS


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["fifo", "skip", "backfill", "srsf"])
def test_the_head_of_the_queue_never_starves(name: str, seed: int) -> None:
    play = Watched(lab(seed), "4x8", name, AT_ONCE)
    play.run()
    assert play.forgotten == []
