"""Global assignment with different GPU models and shared GPUs: worked examples."""

from typing import Any

import pytest

from core.scenario import Afar, gpus
from stoker.core import events as e
from stoker.core.heterogeneous import assignment
from stoker.core.measurement.estimator import colocation_key, estimate
from stoker.core.model.profile import EpochTime
from stoker.core.model.resources import DeviceFacts, NodeFacts, ResourceRequest
from stoker.core.model.spec import Training
from stoker.core.planner.cycle import plan_events

FAST, SLOW = "v100", "k80"


class Mixed(Afar):
    """A node with fast GPUs and one with slow ones, and profiles measured before."""

    def __init__(self, fast: int = 1, slow: int = 1, policy: str = "planner") -> None:
        super().__init__(gpus=0)
        self.tell(e.PolicyChosen(at=self.now, queue="*", name=policy))
        for name, count in ((FAST, fast), (SLOW, slow)):
            devices = tuple(
                DeviceFacts(str(n), index=n, model=name, memory=24_000) for n in range(count)
            )
            self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
            self.tell(e.NodeJoined(at=self.now, facts=NodeFacts(name, {"gpu": devices})))
            self.reached(name)

    def import_profile(self, name: str, fast: float, slow: float, **beside: float) -> None:
        """Import the epoch times of a profile, and the part of its speed kept beside others."""
        self.tell(
            e.ProfileImported(
                at=self.now,
                profile=f"ada: {name}",
                epoch_times=(EpochTime(1, FAST, fast), EpochTime(1, SLOW, slow)),
                interference={
                    colocation_key(model, f"ada: {other}"): left
                    for other, left in beside.items()
                    for model in (FAST, SLOW)
                },
            )
        )

    def train(
        self, name: str, request: ResourceRequest | None = None, epochs: int = 10, **more: Any
    ) -> int:
        return self.submit(request, name=name, training=Training(epochs=epochs), **more)

    def begin(self, *jobs: int) -> None:
        """Start jobs that accept stop requests."""
        for job in jobs:
            self.started(job)
            self.about(e.TrainingBegan, job)

    def cycle(self) -> list[int]:
        """Reorder the queue and plan until nothing more starts; return the jobs that start."""
        started = []
        for event in plan_events(self.state, self.now, self.boot):
            self.tell(event)
            started += [event.job] if isinstance(event, e.AttemptPlanned) else []
        return started

    def is_stopping(self, job: int) -> bool:
        progress = self.job(job).progress
        return progress is not None and progress.stop is not None


def shareable(**more: Any) -> ResourceRequest:
    return gpus(1, shareable=True, memory=10_000, **more)


# -- models -------------------------------------------------------------------------------


def test_job_goes_where_it_is_fastest() -> None:
    for fast, slow, model in ((10.0, 50.0, FAST), (50.0, 10.0, SLOW)):
        story = Mixed()
        story.import_profile("one", fast, slow)
        job = story.train("one")
        assert story.plan() == [job]
        assert story.where(job) == [model]


def test_fast_gpu_is_left_to_the_job_that_gains_most() -> None:
    # The first job needs 100 s there and 110 s on the slow one; the second 200 s and 2000 s.
    # One of two GPUs is requested after it, so that 0.25 of its time there counts against
    # it, and a share of 1/5.55 of that on the slow one, as slow ones usually are: 125 against 115.
    story = Mixed()
    story.import_profile("hardly", 10.0, 11.0)
    story.import_profile("much", 20.0, 200.0)
    hardly, much = story.train("hardly"), story.train("much")
    assert sorted(story.plan()) == [hardly, much]
    assert (story.where(hardly), story.where(much)) == ([SLOW], [FAST])


def test_job_starts_only_on_a_requested_model() -> None:
    story = Mixed(fast=1, slow=2)
    story.import_profile("one", 10.0, 50.0)
    story.import_profile("other", 10.0, 50.0)
    first = story.train("one", gpus(1, model=FAST))
    second = story.train("other", gpus(1, models=(FAST, "p100")))
    assert story.plan() == [first]
    assert story.is_(second) == "PENDING"


def test_the_estimate_of_a_pending_job_is_for_the_requested_model() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    for model, seconds in ((FAST, 10.0), (SLOW, 50.0)):
        job = story.job(story.train("one", gpus(1, model=model)))
        state = story.state
        found = estimate(state.record.profiles, state.cluster, job, state.spec(job), story.now)
        assert found.epoch_seconds == seconds


def test_job_starts_on_any_of_several_requested_models() -> None:
    story = Mixed(fast=1, slow=1)
    story.import_profile("one", 10.0, 50.0)
    jobs = [story.train("one", gpus(1, models=(FAST, SLOW))) for _ in range(2)]
    assert story.plan() == jobs
    assert [story.where(job) for job in jobs] == [[FAST], [SLOW]]


def test_job_moves_to_a_faster_gpu_that_becomes_free() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    first, second = story.train("one", epochs=50), story.train("one", epochs=100)
    story.plan()
    story.begin(first, second)
    assert story.where(second) == [SLOW]
    story.wait(600.0)
    story.about(e.EpochsCounted, second, done=12, seconds=50.0)
    story.exited(first)
    assert story.plan() == [second]
    assert story.is_stopping(second)
    story.exited(second, 75, stopped=True)
    assert story.plan() == [second]
    assert story.where(second) == [FAST]


def test_job_near_its_end_does_not_move() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 40.0)
    first, second = story.train("one", epochs=12), story.train("one", epochs=13)
    story.plan()
    story.begin(first, second)
    story.wait(600.0)
    story.about(
        e.EpochsCounted, second, done=12, seconds=40.0
    )  # 40 s here, 10 s and a restart there
    story.exited(first)
    assert story.plan() == []


def test_job_that_has_just_started_does_not_move() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    first, second = story.train("one", epochs=50), story.train("one", epochs=100)
    story.plan()
    story.begin(first, second)
    story.wait(10.0)
    story.exited(first)
    assert story.plan() == []


def test_higher_priority_preempts_lower() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    low = [story.train("one", epochs=100) for _ in range(2)]
    story.plan()
    story.begin(*low)
    story.wait(600.0)
    high = story.train("one", epochs=100, priority=5)
    fast = low[0] if story.where(low[0]) == [FAST] else low[1]
    assert story.plan() == [fast]
    assert story.is_stopping(fast)
    story.exited(fast, 75, stopped=True)
    assert story.plan() == [high]
    assert story.where(high) == [FAST]


def test_non_preemptible_job_stays() -> None:
    story = Mixed(fast=1, slow=0)
    story.import_profile("one", 10.0, 50.0)
    first = story.train("one", epochs=1000, non_preemptible=True)
    story.plan()
    story.begin(first)
    story.wait(600.0)
    story.train("one", epochs=1, priority=5)
    assert story.plan() == []


def test_job_on_a_slow_model_does_not_exceed_its_estimate() -> None:
    story = Mixed(fast=0, slow=1)
    story.import_profile("one", 10.0, 50.0)
    job = story.train("one", epochs=100)
    story.plan()
    story.begin(job)
    story.about(e.EpochsCounted, job, done=1, seconds=50.0)
    assert story.wait(20_000.0) == []


def test_job_on_a_drained_gpu_continues() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    job = story.train("one", gpus(1, model=SLOW), epochs=100)
    story.plan()
    story.begin(job)
    story.wait(600.0)
    story.tell(e.DevicesDrained(at=story.now, devices=((SLOW, "gpu", "0"),), reason="it smells"))
    assert story.plan() == []
    assert not story.is_stopping(job)


def test_jobs_without_gpus_and_gpus_without_a_model_are_assigned_too() -> None:
    story = Mixed()
    story.import_profile("one", 10.0, 50.0)
    story.add("plain", gpus=0)
    devices = (DeviceFacts("0", index=0),)
    story.tell(e.NodeJoined(at=story.now, facts=NodeFacts("plain", {
        "gpu": devices, "cpu": (DeviceFacts("cpu", capacity=4000),)
    })))  # fmt: skip
    idle = story.submit(ResourceRequest(cpus=2000), name="idle")
    jobs = [story.train("one", epochs=100) for _ in range(3)]
    assert sorted(story.plan()) == [idle, *jobs]
    story.begin(idle, *jobs)
    story.wait(600.0)
    assert story.plan() == []


# -- co-location --------------------------------------------------------------------------


def test_two_jobs_share_a_gpu_if_that_pays() -> None:
    story = Mixed(fast=1, slow=0)
    story.import_profile("one", 10.0, 50.0, other=0.8)
    story.import_profile("other", 10.0, 50.0, one=0.8)
    jobs = [story.train("one", shareable()), story.train("other", shareable())]
    assert story.plan() == jobs
    assert [story.on(job) for job in jobs] == [["0"], ["0"]]


def test_two_jobs_do_not_share_a_gpu_if_that_does_not_pay() -> None:
    story = Mixed(fast=1, slow=0)
    story.import_profile("one", 10.0, 50.0, other=0.5)
    story.import_profile("other", 10.0, 50.0, one=0.5)
    jobs = [story.train("one", shareable()), story.train("other", shareable())]
    assert story.plan() == jobs[:1]


def test_exclusive_gpu_is_preferred_to_sharing() -> None:
    story = Mixed(fast=1, slow=1)
    story.import_profile("one", 10.0, 20.0, one=0.9)
    jobs = [story.train("one", shareable()) for _ in range(2)]
    assert story.plan() == jobs
    assert [story.where(job) for job in jobs] == [[FAST], [SLOW]]


def test_jobs_share_only_if_memory_fits() -> None:
    story = Mixed(fast=1, slow=0)
    story.import_profile("one", 10.0, 50.0, one=0.9)
    large = gpus(1, shareable=True, memory=14_000)
    jobs = [story.train("one", large) for _ in range(2)]
    assert story.plan() == jobs[:1]


def test_interference_is_measured_and_jobs_that_suffer_are_separated() -> None:
    story = Mixed(fast=1, slow=0)
    story.import_profile("one", 10.0, 50.0)
    story.import_profile("other", 10.0, 50.0)
    one, other = story.train("one", shareable()), story.train("other", shareable(), epochs=100)
    assert story.plan() == [one, other]  # interference is not measured yet
    story.begin(one, other)
    story.wait(600.0)
    story.about(e.EpochsCounted, one, done=1, seconds=40.0)
    story.about(e.EpochsCounted, other, done=1, seconds=20.0)
    profiles = story.state.record.profiles
    assert profiles["ada: one"].interference == {colocation_key(FAST, "ada: other"): 0.25}
    assert profiles["ada: other"].interference == {colocation_key(FAST, "ada: one"): 0.5}
    assert profiles["ada: one"].epoch_time_at(1, FAST) == EpochTime(1, FAST, 10.0, reference=10.0)
    assert story.plan() == [other]
    assert story.is_stopping(other)


# -- makespan -----------------------------------------------------------------------------


def test_makespan_assigns_jobs_where_they_are_fast_compared_with_others() -> None:
    # Both are faster on the fast GPU, and the longer one is hardly so.
    story = Mixed(policy="makespan")
    story.import_profile("hardly", 100.0, 110.0)
    story.import_profile("much", 20.0, 200.0)
    hardly, much = story.train("hardly", epochs=20), story.train("much", epochs=20)
    more = [story.train("much", epochs=20), story.train("hardly", epochs=20)]
    assert len(story.plan()) == 2
    on = {job: story.where(job) for job in (hardly, much, *more) if story.job(job).placement}
    assert sorted(map(str, on.values())) == [f"['{SLOW}']", f"['{FAST}']"]
    assert {job for job, nodes in on.items() if nodes == [SLOW]} <= {hardly, more[1]}
    assert {job for job, nodes in on.items() if nodes == [FAST]} <= {much, more[0]}


def test_makespan_pairs_jobs_that_make_more_progress() -> None:
    story = Mixed(fast=1, slow=0, policy="makespan")
    story.import_profile("one", 10.0, 50.0, one=0.8, other=0.5)
    story.import_profile("other", 10.0, 50.0, one=0.5)
    first = story.train("one", shareable(), epochs=30)
    other = story.train("other", shareable(), epochs=20)
    second = story.train("one", shareable(), epochs=10)
    assert sorted(story.plan()) == [first, second]
    assert story.is_(other) == "PENDING"


# -- elastic jobs, strict queues, large clusters --------------------------------------------


def incompatible_jobs(story: Mixed) -> list[int]:
    """Submit two jobs whose interference was measured: they do not fit on one GPU."""
    story.import_profile("one", 10.0, 50.0, other=0.0)
    story.import_profile("other", 10.0, 50.0, one=0.0)
    return [story.train("one", shareable()), story.train("other", shareable())]


def test_jobs_that_do_not_fit_do_not_share_a_gpu_beside_an_elastic_job() -> None:
    story = Mixed(fast=2, slow=0)
    elastic = story.train("elastic", gpus(1, max_amount=1000))
    assert story.plan() == [elastic]
    jobs = incompatible_jobs(story)
    assert story.plan() == jobs[:1]
    assert story.is_(jobs[1]) == "PENDING"


def test_fast_gpu_is_left_to_the_job_that_gains_most_beside_an_elastic_job() -> None:
    story = Mixed(fast=1, slow=2)
    story.import_profile("hardly", 10.0, 11.0)
    story.import_profile("much", 20.0, 200.0)
    story.import_profile("elastic", 1.0, 1.0)
    elastic = story.train("elastic", gpus(1, max_amount=2000, model=SLOW))
    hardly, much = story.train("hardly"), story.train("much")
    assert sorted(story.plan()) == [elastic, hardly, much]
    assert (story.where(hardly), story.where(much)) == ([SLOW], [FAST])


def test_elastic_job_grows_in_an_assignment() -> None:
    story = Mixed(fast=4, slow=0)
    story.import_profile("other", 10.0, 50.0)
    fixed = story.train("other", gpus(3), epochs=100, non_preemptible=True)
    elastic = story.train("elastic", gpus(1, max_amount=4000), epochs=100)
    assert sorted(story.plan()) == [fixed, elastic]
    story.begin(fixed, elastic)
    story.exited(fixed)
    story.wait(60.0)
    story.about(e.EpochsCounted, elastic, done=1, seconds=1000.0)
    assert story.plan() == [elastic]
    progress = story.job(elastic).progress
    assert progress is not None
    assert progress.stop is not None
    assert progress.stop.resize_to == 2
    story.exited(elastic, 75, stopped=True)
    assert story.plan() == [elastic]
    assert len(story.on(elastic)) == 2


def test_higher_priority_preempts_an_elastic_job_on_the_requested_model() -> None:
    story = Mixed(fast=2, slow=0)
    story.import_profile("one", 10.0, 50.0)
    elastic = story.train("elastic", gpus(1, max_amount=2000), epochs=100)
    story.plan()
    story.begin(elastic)
    story.about(e.EpochsCounted, elastic, done=1, seconds=1000.0)
    story.wait(600.0)
    high = story.train("one", gpus(2, model=FAST), priority=5)
    assert story.plan() == [elastic]
    assert story.is_stopping(elastic)
    story.exited(elastic, 75, stopped=True)
    assert story.plan() == [high]


def test_strict_queue_keeps_its_order_in_an_assignment() -> None:
    story = Mixed(fast=2, slow=2)
    story.tell(e.QueueDefined(at=story.now, name="strict", strict=True))
    story.import_profile("one", 10.0, 50.0)
    running = story.train("one", gpus(1, model=FAST), non_preemptible=True)
    story.plan()
    story.begin(running)
    first = story.train("one", gpus(2, model=FAST), epochs=1, queue="strict")
    second = story.train("one", gpus(1, model=SLOW), epochs=50, queue="strict")
    delaying = story.train("one", gpus(1, model=FAST), epochs=60)
    other = story.train("one", gpus(1, model=SLOW), epochs=100)
    assert story.plan() == [other]
    assert [story.is_(job) for job in (first, second)] == ["PENDING", "PENDING"]
    assert story.is_(delaying) == "PENDING"  # the head of the strict queue has a reservation


def test_quotas_hold_in_an_assignment_and_others_get_what_they_leave() -> None:
    story = Mixed(fast=2, slow=0)
    story.tell(e.QueueDefined(at=story.now, name="small", max_running=1))
    story.import_profile("one", 10.0, 50.0)
    limited = [story.train("one", epochs=1, queue="small") for _ in range(2)]
    other = story.train("one", epochs=50)
    assert story.cycle() == [limited[0], other]


def test_overdue_job_is_not_delayed_in_an_assignment() -> None:
    story = Mixed(fast=2, slow=0)
    story.import_profile("one", 10.0, 50.0)
    running = story.train("one", epochs=100_000, non_preemptible=True)
    story.plan()
    story.begin(running)
    story.import_profile("wide", 1.0, 5.0)
    overdue = story.train("wide", gpus(2), epochs=1)
    story.wait(8 * 86_400.0)
    short = story.train("one", epochs=1)
    assert story.cycle() == []
    assert [story.is_(job) for job in (overdue, short)] == ["PENDING", "PENDING"]


def test_jobs_that_do_not_fit_do_not_share_a_gpu_on_a_large_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment, "MAX_ASSIGNED", 0)
    story = Mixed(fast=1, slow=0)
    jobs = incompatible_jobs(story)
    assert story.plan() == jobs[:1]
    story.begin(jobs[0])
    story.exited(jobs[0])
    assert story.plan() == jobs[1:]
