"""Workloads replayed: what theory says of the policies, and what holds whatever comes."""

from collections.abc import Iterator
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memory_store import MemoryStore
from stoker.core import events as e
from stoker.core.cluster.overlay import Overlay
from stoker.core.placement.placer import find_placement
from stoker.core.planner import cycle
from stoker.core.policies.policy import POLICIES, policy
from stoker.core.policies.ranking import starvation_bound
from stoker.core.reservation.reservation import reserve
from stoker.core.running.release_times import KILL_GRACE_SECONDS
from stoker.core.state.restore import KEEP_FINISHED
from stoker.core.state.state import State
from stoker.engine import Engine, Instant
from stoker.simulate.replay import replay as simulator
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.replay import Replay, replay
from stoker.simulate.replay.results import JobResult, RunResult
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

FREE = ReplayAssumptions(restart_seconds=0.0, checkpoint_seconds=1.0)
"""Stopping costs nothing, as theory has it."""
ORACLES = ("sjf", "srtf", "srsf")
SMALL = 1e-6


def played(
    jobs: list[TraceJob], cluster: str, name: str, assumed: ReplayAssumptions = FREE, **more: float
) -> RunResult:
    return replay(Workload(title="", jobs=jobs), parse_cluster(cluster), name, more, assumed)


def mean(run: RunResult) -> float:
    assert run.unfinished == 0
    return sum(each.completion_time for each in run.results) / len(run.results)


def drawn(seed: int, count: int, spread: float, sizes: tuple[int, ...] = (1,)) -> list[TraceJob]:
    chance = Random(seed)
    jobs = [
        TraceJob(submit_time=float(round(chance.uniform(0, spread))), gpus=chance.choice(sizes),
             duration=float(round(chance.lognormvariate(6, 1.5)) + 1))
        for _ in range(count)
    ]  # fmt: skip
    return sorted(jobs, key=lambda job: job.submit_time)


# -- what theory says -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_on_one_gpu_nothing_beats_the_shortest_remaining_time(seed: int) -> None:
    jobs = drawn(seed, 40, 20_000)
    best = mean(played(jobs, "1x1", "srtf"))
    assert mean(played(jobs, "1x1", "srsf")) == pytest.approx(best)
    for name in POLICIES:
        if name not in {"srtf", "srsf"}:
            assert mean(played(jobs, "1x1", name)) >= best - SMALL, name


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("gpus", [1, 3])
def test_all_at_once_the_shortest_first_is_the_optimum(name: str, gpus: int) -> None:
    jobs = drawn(5, 20, 0.0)
    free = [0.0] * gpus
    ends = []
    for job in sorted(jobs, key=lambda job: job.duration):
        first = free.index(min(free))
        free[first] += job.duration
        ends.append(free[first])
    assert mean(played(jobs, f"1x{gpus}", name)) == pytest.approx(sum(ends) / len(ends))


@pytest.mark.parametrize("seed", range(2))
def test_policies_with_more_knowledge_do_better(seed: int) -> None:
    jobs = drawn(seed, 120, 10_000, (1, 1, 2, 4))
    times = {name: mean(played(jobs, "2x4", name)) for name in ("srsf", "planner", "tiresias")}
    times["fifo"] = mean(played(jobs, "2x4", "fifo"))
    assert times["srsf"] <= times["planner"] <= times["fifo"]
    assert times["srsf"] <= times["tiresias"] <= times["fifo"]


def test_fifo_ends_jobs_in_the_order_computed_by_hand() -> None:
    jobs = [TraceJob(submit_time=at, duration=each, gpus=gpus)
            for at, each, gpus in ((0.0, 100.0, 1), (1.0, 50.0, 2), (2.0, 10.0, 1))]  # fmt: skip
    assert [each.end_time for each in played(jobs, "1x2", "fifo").results] == [100, 150, 160]
    assert [each.end_time for each in played(jobs, "1x2", "skip").results] == [100, 150, 12]


def test_a_preemption_waits_for_a_checkpoint_and_costs_a_restart() -> None:
    jobs = [
        TraceJob(submit_time=0.0, duration=10_000.0),
        TraceJob(submit_time=1250.0, duration=100.0),
    ]
    run = played(
        jobs, "1x1", "planner", ReplayAssumptions(restart_seconds=60.0, checkpoint_seconds=500.0)
    )
    long, short = run.results
    assert (short.start_time, short.end_time) == (1500.0, 1600.0)
    assert (long.preemptions, long.end_time, long.run_time) == (1, 10_160.0, 10_060.0)


LIMITS_ONLY = ReplayAssumptions(time_limits_only=True, non_preemptible=True)


def ending(job: TraceJob, assumed: ReplayAssumptions) -> JobResult:
    """Run a job on two nodes; one ends after 1000 s, and until then the other one is in use."""
    first, second = parse_cluster("2x1")
    blocker = TraceJob(submit_time=0.0, duration=1000.0, non_preemptible=True, time_limit=1800)
    nodes = [second, replace(first, ends_at=1000.0)]
    run = replay(Workload(title="", jobs=[blocker, job]), nodes, "backfill", {}, assumed)
    assert (run.unfinished, run.results[0].start_time) == (0, 0.0)
    return run.results[1]


def test_a_job_stops_before_its_node_ends_and_continues_on_another() -> None:
    result = ending(TraceJob(submit_time=1.0, duration=2000.0), FREE)
    assert (result.start_time, result.preemptions) == (1.0, 1)
    assert result.run_time == pytest.approx(2000.0)


@pytest.mark.parametrize(("limit", "start"), [(850, 1.0), (900, 1000.0)])
def test_a_job_starts_where_it_will_be_done_by_the_end_of_the_node(
    limit: int, start: float
) -> None:
    job = TraceJob(submit_time=1.0, duration=800.0, time_limit=limit)
    assert ending(job, LIMITS_ONLY).start_time == start


def test_a_job_that_cannot_continue_ends_with_its_node() -> None:
    result = ending(TraceJob(submit_time=1.0, duration=2000.0), LIMITS_ONLY)
    assert (result.start_time, result.end_time) == (1.0, 1000.0)


# -- what holds whatever comes --------------------------------------------------------------

LOADS = st.lists(
    st.builds(
        TraceJob,
        submit_time=st.integers(0, 4000).map(float),
        duration=st.sampled_from([5.0, 60.0, 400.0, 1500.0, 9000.0, 40_000.0]),
        gpus=st.sampled_from([1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 0.5]),
        non_preemptible=st.sampled_from([False, False, True]),
        user=st.sampled_from(["ada", "bob"]),
        priority=st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=14,
).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_time))
ALL = [name for name in POLICIES if name != "conservative"]
"""`conservative` is tried by itself, with time limits."""


class Watched(Replay):
    """A replay that is looked at after every turn."""

    def _cycle(self, instructions: list[object]) -> None:
        super()._cycle(instructions)
        self.no_device_is_promised_twice()
        self.looked()

    def looked(self) -> None:
        """What else is to hold."""

    def no_device_is_promised_twice(self) -> None:
        held: dict[tuple[str, str, str], int] = {}
        for job in self.state.running.values():
            for part in job.placement.parts if job.placement is not None else ():
                for take in part.allocations:
                    key = (part.node, take.type, take.device)
                    held[key] = held.get(key, 0) + take.amount
        for name, node in self.state.cluster.nodes.items():
            for device in node.devices():
                taken = held.get((name, device.type, device.name), 0)
                assert taken <= device.facts.capacity
                assert device.unallocated == device.facts.capacity - taken


class Busy(Watched):
    """Nobody waits who would fit, unless that is kept for somebody for whom others make room."""

    def looked(self) -> None:
        state = self.state
        ledger = Overlay(state.cluster)
        for placement in state.memory.nominations.values():
            ledger.withhold(placement)
        for id, found in state.pending.class_of.items():
            assert find_placement(ledger, state.class_request(state.jobs[id], found)) is None


def whole(jobs: list[TraceJob], run: RunResult) -> None:
    """Everybody came to an end, and had what it needed."""
    assert (run.unfinished, len(run.results)) == (0, len(jobs))
    for each in run.results:
        load = jobs[each.job]
        assert each.start_time >= load.submit_time
        assert each.run_time >= load.duration - SMALL
        assert each.gpu_seconds >= load.duration * load.gpus - SMALL
        assert each.preemptions == 0 or not load.non_preemptible


@settings(max_examples=60, deadline=None)
@given(LOADS, st.sampled_from(ALL), st.sampled_from(["1x8", "2x4", "4x2"]))
def test_every_job_ends_and_no_device_is_allocated_twice(
    jobs: list[TraceJob], name: str, cluster: str
) -> None:
    watched = Watched(Workload(title="", jobs=jobs), parse_cluster(cluster), name)
    whole(jobs, watched.run())


@settings(max_examples=60, deadline=None)
@given(LOADS, st.sampled_from(["skip", "srsf", "srtf", "tiresias", "planner"]))
def test_nothing_that_fits_waits(jobs: list[TraceJob], name: str) -> None:
    Busy(Workload(title="", jobs=jobs), parse_cluster("2x4"), name).run()


@settings(max_examples=30, deadline=None)
@given(LOADS, st.sampled_from(ALL))
def test_the_same_again_is_the_same(jobs: list[TraceJob], name: str) -> None:
    runs = [replay(Workload(title="", jobs=jobs), parse_cluster("2x4"), name) for _ in range(2)]
    assert runs[0].results == runs[1].results
    assert runs[0].gpus_in_use == runs[1].gpus_in_use


# -- reservations ---------------------------------------------------------------------------


def limits(jobs: list[TraceJob], extra: list[int]) -> list[TraceJob]:
    """The same with time limits that are long enough, and nobody who can be stopped."""
    return [
        TraceJob(submit_time=job.submit_time, duration=job.duration, gpus=max(job.gpus, 1.0),
             time_limit=int(job.duration) + extra[number % len(extra)], non_preemptible=True)
        for number, job in enumerate(jobs)
    ]  # fmt: skip


class Restless(Replay):
    """Plans in every turn, whether or not there is a reason to."""

    def _cycle(self, instructions: list[object]) -> None:
        self.state.pending.request_planning()
        super()._cycle(instructions)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.sampled_from(["fifo", "skip", "backfill", "sjf", "srsf", "tiresias", "planner"]))
def test_to_plan_more_often_changes_nothing(jobs: list[TraceJob], name: str) -> None:
    nodes = parse_cluster("2x4")
    found = [kind(Workload(title="", jobs=jobs), nodes, name).run() for kind in (Replay, Restless)]
    assert found[0].results == found[1].results


@pytest.mark.parametrize(
    ("seed", "name"), [(8, "planner"), (92, "planner"), (22, "tiresias"), (26, "tiresias")]
)
def test_nor_with_pending_gangs_and_many_preemptions(seed: int, name: str) -> None:
    random, jobs, at = Random(seed), [], 0.0
    for _ in range(120):
        at += random.expovariate(1 / random.choice([50, 500]))
        seconds = random.choice([30, 300, 3000, 30_000]) * random.uniform(0.5, 1.5)
        gpus = random.choice([1, 1, 2, 3, 4, 5, 8, 8, 16])
        steady = random.random() < 0.2
        jobs.append(TraceJob(submit_time=at, duration=seconds, gpus=gpus, non_preemptible=steady))
    nodes = parse_cluster("4x8")
    found = [kind(Workload(title="", jobs=jobs), nodes, name).run() for kind in (Replay, Restless)]
    assert found[0].results == found[1].results


class Reserved(Watched):
    """Whoever is at the head starts by the time that was reserved for it."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.by: dict[int, float] = {}

    def looked(self) -> None:
        state = self.state
        for id, moment in list(self.by.items()):
            if id not in state.pending:
                assert self.runs.get(id) is None or self.now <= moment + SMALL
                del self.by[id]
        head = min(state.pending.class_of, default=None)
        if head is not None:
            request = state.class_request(state.jobs[head], state.pending.class_of[head])
            found = reserve(state.cluster, state.releases(), request)
            if found is not None:
                assert found.shadow_time <= self.by.get(head, inf) + SMALL
                self.by[head] = min(found.shadow_time, self.by.get(head, inf))


@settings(max_examples=50, deadline=None)
@given(
    LOADS, st.lists(st.integers(0, 3000), min_size=1), st.sampled_from(["backfill", "conservative"])
)
def test_backfill_never_delays_a_reservation(
    jobs: list[TraceJob], extra: list[int], name: str
) -> None:
    given = limits(jobs, extra)
    found = Reserved(
        Workload(title="", jobs=given),
        parse_cluster("2x4"),
        name,
        assumptions=ReplayAssumptions(time_limits_only=True, non_preemptible=True),
    )
    whole(given, found.run())


@settings(max_examples=40, deadline=None)
@given(LOADS)
def test_conservative_never_delays_a_job_by_later_ones(jobs: list[TraceJob]) -> None:
    """Each starts as early as without all who came after it, if limits are true.

    One machine, whose GPUs are all alike. Those who came before may have ended a little before
    their limits (`GRACE`), for which later ones are not made to pay.
    """
    given = limits(jobs, [0])
    alone = ReplayAssumptions(time_limits_only=True, non_preemptible=True)
    ends = played(given, "1x8", "conservative", alone).results
    for number, each in enumerate(ends):
        before = played(given[: number + 1], "1x8", "conservative", alone).results
        assert each.start_time <= before[-1].start_time + KILL_GRACE_SECONDS * (number + 1)


# -- the bound on waiting -------------------------------------------------------------------

PATIENCE, TIMES, FLOOR, CHECKPOINT, RESTART = 500.0, 0.5, 600.0, 100.0, 20.0
HURRIED = {"patience": PATIENCE, "overdue": TIMES, "floor": FLOOR, "fair": 0.5}


def overdue_at(load: TraceJob) -> float:
    """From when on nobody passes a job that has not begun, by what is believed of a new one."""
    return load.submit_time + starvation_bound(policy("planner", HURRIED), FLOOR)


def latest_start(number: int, jobs: list[TraceJob], results: list[JobResult]) -> float:
    """By when a job has begun, in the worst case.

    Once it is overdue, everybody stops for it at a checkpoint who is not overdue and can. It
    waits for those who were overdue before it, one after another at worst, each of which may have
    to wait for such a checkpoint itself; and for those who cannot stop and had begun by then.
    """
    moment = overdue_at(jobs[number])
    waits = CHECKPOINT + RESTART
    for other, result in enumerate(results):
        load = jobs[other]
        if other == number or result.end_time <= moment:
            continue
        earlier = overdue_at(load) <= moment
        if load.non_preemptible or earlier or result.start_time < moment:
            waits += load.duration + CHECKPOINT + (result.preemptions + 1) * RESTART
    return moment + waits


@settings(max_examples=80, deadline=None)
@given(LOADS)
def test_with_the_planner_every_job_starts_within_a_bound(jobs: list[TraceJob]) -> None:
    for job in jobs:
        job.priority = 0
    assumed = ReplayAssumptions(checkpoint_seconds=CHECKPOINT, restart_seconds=RESTART)
    results = played(jobs, "2x4", "planner", assumed, **HURRIED).results
    for number, result in enumerate(results):
        assert result.start_time <= latest_start(number, jobs, results) + SMALL


def stream() -> list[TraceJob]:
    """One that needs the whole machine, and short ones that never leave it free."""
    wide = TraceJob(submit_time=10.0, duration=5000.0, gpus=4.0)
    short = [TraceJob(submit_time=50.0 * n, duration=300.0, gpus=1.0) for n in range(800)]
    return sorted([wide, *short], key=lambda job: job.submit_time)


def test_a_stream_of_short_jobs_starves_a_wide_one_only_without_patience() -> None:
    jobs = stream()
    number = next(n for n, job in enumerate(jobs) if job.gpus == 4.0)
    assumed = ReplayAssumptions(checkpoint_seconds=CHECKPOINT, restart_seconds=RESTART)
    eager = played(jobs, "1x4", "planner", assumed, patience=0.0, ageing=1e9)
    fair = played(jobs, "1x4", "planner", assumed, **HURRIED, ageing=1e9)
    assert fair.results[number].start_time <= latest_start(number, jobs, fair.results)
    assert fair.results[number].start_time < 2000
    assert eager.results[number].start_time > 30_000


# -- memory ---------------------------------------------------------------------------------


def test_of_jobs_that_all_differ_only_the_latest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulator, "MIN_SPEC_HASHES", 10)
    count = 4 * KEEP_FINISHED
    jobs = [TraceJob(submit_time=2000.0 * n, duration=100.0 + n) for n in range(count)]
    found = Replay(Workload(title="", jobs=jobs), parse_cluster("1x1"), "sjf", assumptions=FREE)
    run = found.run()
    assert [each.completion_time for each in run.results] == [job.duration for job in jobs]
    assert len(found.spec_hashes) <= 2 * (KEEP_FINISHED + KEEP_FINISHED // 4) + 10 + 1 < count


# -- the daemon decides the same ------------------------------------------------------------

DECISIONS = (e.AttemptPlanned, e.PreemptionRequested, e.PreemptionCancelled)


class Recorded(Replay):
    """A replay that notes, turn by turn, what it told the core and what the core decided."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.turns: list[tuple[float, list[e.Event]]] = []
        self.told: list[e.Event] = []
        self.decided: list[e.Event] = []
        self._of_the_core: list[e.Event] = []

    def _apply(self, fact: e.Event) -> list[object]:
        if not any(fact is each for each in self._of_the_core):
            self.told.append(fact)
        return super()._apply(fact)

    def run_cycle(self, state: State, at: float, boot: float) -> Iterator[e.Event]:
        self.turns.append((at, self.told))
        self.told = []
        for fact in cycle.run_cycle(state, at, boot):
            self._of_the_core = [fact]
            if isinstance(fact, DECISIONS):
                self.decided.append(fact)
            yield fact


@pytest.mark.parametrize(
    "name", ["planner", "backfill", "conservative", "srsf", "tiresias", "fair"]
)
def test_the_daemon_makes_the_same_decisions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = drawn(3, 60, 8000, (1, 1, 2, 4, 6))
    for number, job in enumerate(jobs):
        job.user, job.priority = f"user{number % 3}", int(number % 11 == 0)
        job.time_limit, job.non_preemptible = (
            int(job.duration * 1.5) if number % 4 == 0 else None,
            number % 7 == 0,
        )
    recorded = Recorded(Workload(title="", jobs=jobs), parse_cluster("2x4"), name)
    monkeypatch.setattr(simulator, "run_cycle", recorded.run_cycle)
    assert recorded.run().unfinished == 0
    assert any(isinstance(each, e.AttemptPlanned) for each in recorded.decided)
    assert any(isinstance(each, e.PreemptionRequested) for each in recorded.decided)

    clock = [0.0]
    published: list[e.Event] = []
    store = MemoryStore()
    store.acquire_term()
    engine = Engine(store, lambda: Instant(clock[0], clock[0]))
    for at, facts in recorded.turns:
        clock[0] = at
        result = engine.cycle(facts)
        result.raise_error()
        published += result.events
    decided = [each for each in published if isinstance(each, DECISIONS)]
    assert decided == recorded.decided


# -- estimates that are wrong ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["planner", "srsf", "srtf"])
@pytest.mark.parametrize("seed", range(3))
def test_estimates_that_are_off_by_two_cost_little(name: str, seed: int) -> None:
    jobs = drawn(seed, 300, 30_000)
    exact = mean(played(jobs, "1x4", name, ReplayAssumptions(estimate_error=1.0)))
    wrong = mean(played(jobs, "1x4", name, ReplayAssumptions(estimate_error=2.0, seed=seed)))
    assert wrong < 1.5 * exact


@pytest.mark.parametrize("name", ["planner", "sjf"])
def test_a_job_with_a_far_too_short_estimate_ends_in_its_turn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--expect 1h` on a job of 2.5 h, among others of half an hour that keep coming."""
    late = TraceJob(submit_time=0.0, gpus=1, duration=9000.0)
    others = [TraceJob(submit_time=450.0 * n, gpus=1, duration=1800.0) for n in range(1, 600)]
    said = {9000.0: 3600.0, 1800.0: 1800.0}
    monkeypatch.setattr(ReplayAssumptions, "user_estimate", lambda _, job: said[job.duration])
    run = played([late, *others], "1x4", name, ReplayAssumptions(estimate_error=2.0))
    assert run.unfinished == 0
    took = {each.job: each.completion_time for each in run.results}
    assert took[0] < 2 * 9000


def test_estimates_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    load = TraceJob(submit_time=5.0, gpus=1, duration=1000.0)
    drawn_twice = {
        ReplayAssumptions(estimate_error=2.0, seed=7).user_estimate(load) for _ in range(2)
    }
    assert len(drawn_twice) == 1
    assert ReplayAssumptions(estimate_error=2.0, seed=8).user_estimate(load) not in drawn_twice
    assert ReplayAssumptions(estimate_error=1.0).user_estimate(load) == 1000.0


def test_a_time_limit_ends_a_job_while_no_other_event_is_due() -> None:
    recorder = Recorded(
        Workload(title="", jobs=[TraceJob(submit_time=0.0, duration=1000.0, time_limit=100)]),
        parse_cluster("1x1"),
        "backfill",
    )
    recorder.run()
    limits = [fact for fact in recorder.told if isinstance(fact, e.TimeLimitReached)]
    assert [fact.at for fact in limits] == [100.0]
