"""Places on GPUs that differ, and in company: cases worked by hand."""

from typing import Any

from core.scenario import Afar, gpus
from stoker.core import events as e
from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.estimate import Pace, company
from stoker.core.job import Training
from stoker.core.request import Request

FAST, SLOW = "v100", "k80"


class Mixed(Afar):
    """A machine with fast GPUs and one with slow ones, and families that were measured before."""

    def __init__(self, fast: int = 1, slow: int = 1, policy: str = "planner") -> None:
        super().__init__(gpus=0)
        self.tell(e.PolicyChosen(at=self.now, queue="*", name=policy))
        for name, count in ((FAST, fast), (SLOW, slow)):
            cards = tuple(
                DeviceFacts(str(n), index=n, model=name, memory=24_000) for n in range(count)
            )
            self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
            self.tell(e.NodeJoined(at=self.now, facts=NodeFacts(name, {"gpu": cards})))
            self.reached(name)

    def known(self, name: str, fast: float, slow: float, **beside: float) -> None:
        """Seconds per epoch of a family, and what is left of its speed beside others."""
        self.tell(
            e.KindMeasured(
                at=self.now,
                family=f"ada: {name}",
                paces=(Pace(1, FAST, fast), Pace(1, SLOW, slow)),
                beside={
                    company(model, f"ada: {other}"): left
                    for other, left in beside.items()
                    for model in (FAST, SLOW)
                },
            )
        )

    def train(
        self, name: str, request: Request | None = None, epochs: int = 10, **more: Any
    ) -> int:
        return self.submit(request, name=name, training=Training(epochs=epochs), **more)

    def begin(self, *jobs: int) -> None:
        """They have started, and their library has spoken up."""
        for job in jobs:
            self.started(job)
            self.about(e.TrainingBegan, job)

    def asked(self, job: int) -> bool:
        progress = self.job(job).progress
        return progress is not None and progress.stop is not None


def beside(**more: Any) -> Request:
    return gpus(1, beside=True, memory=10_000, **more)


# -- models -------------------------------------------------------------------------------


def test_a_job_goes_where_it_is_fastest() -> None:
    for fast, slow, there in ((10.0, 50.0, FAST), (50.0, 10.0, SLOW)):
        story = Mixed()
        story.known("one", fast, slow)
        job = story.train("one")
        assert story.plan() == [job]
        assert story.where(job) == [there]


def test_a_fast_gpu_is_left_to_whom_it_helps_most() -> None:
    # The first in line needs 100 s there and 110 s on the slow one; the second 200 s and 2000 s.
    # One of two GPUs is wanted behind the first, so that 0.25 of its time there counts against
    # it, and a share of 1/5.55 of that on the slow one, as slow ones usually are: 125 against 115.
    story = Mixed()
    story.known("hardly", 10.0, 11.0)
    story.known("much", 20.0, 200.0)
    hardly, much = story.train("hardly"), story.train("much")
    assert sorted(story.plan()) == [hardly, much]
    assert (story.where(hardly), story.where(much)) == ([SLOW], [FAST])


def test_nobody_starts_on_a_model_that_was_not_asked_for() -> None:
    story = Mixed(fast=1, slow=2)
    story.known("one", 10.0, 50.0)
    story.known("other", 10.0, 50.0)
    first = story.train("one", gpus(1, model=FAST))
    second = story.train("other", gpus(1, models=(FAST, "p100")))
    assert story.plan() == [first]
    assert story.is_(second) == "PENDING"


def test_any_of_several_models_will_do() -> None:
    story = Mixed(fast=1, slow=1)
    story.known("one", 10.0, 50.0)
    jobs = [story.train("one", gpus(1, models=(FAST, SLOW))) for _ in range(2)]
    assert story.plan() == jobs
    assert [story.where(job) for job in jobs] == [[FAST], [SLOW]]


def test_a_job_moves_to_a_faster_gpu_that_becomes_free() -> None:
    story = Mixed()
    story.known("one", 10.0, 50.0)
    first, second = story.train("one", epochs=50), story.train("one", epochs=100)
    story.plan()
    story.begin(first, second)
    assert story.where(second) == [SLOW]
    story.wait(600.0)
    story.about(e.EpochsCounted, second, done=12, seconds=50.0)
    story.exited(first)
    assert story.plan() == [second]
    assert story.asked(second)
    story.exited(second, 75, stopped=True)
    assert story.plan() == [second]
    assert story.where(second) == [FAST]


def test_a_job_near_its_end_does_not_move() -> None:
    story = Mixed()
    story.known("one", 10.0, 40.0)
    first, second = story.train("one", epochs=12), story.train("one", epochs=13)
    story.plan()
    story.begin(first, second)
    story.wait(600.0)
    story.about(
        e.EpochsCounted, second, done=12, seconds=40.0
    )  # 40 s here, 10 s and a restart there
    story.exited(first)
    assert story.plan() == []


def test_one_that_has_just_begun_does_not_move() -> None:
    story = Mixed()
    story.known("one", 10.0, 50.0)
    first, second = story.train("one", epochs=50), story.train("one", epochs=100)
    story.plan()
    story.begin(first, second)
    story.wait(10.0)
    story.exited(first)
    assert story.plan() == []


def test_the_more_urgent_takes_the_place_of_the_less_urgent() -> None:
    story = Mixed()
    story.known("one", 10.0, 50.0)
    low = [story.train("one", epochs=100) for _ in range(2)]
    story.plan()
    story.begin(*low)
    story.wait(600.0)
    high = story.train("one", epochs=100, priority=5)
    fast = low[0] if story.where(low[0]) == [FAST] else low[1]
    assert story.plan() == [fast]
    assert story.asked(fast)
    story.exited(fast, 75, stopped=True)
    assert story.plan() == [high]
    assert story.where(high) == [FAST]


def test_one_that_cannot_stop_is_left_where_it_is() -> None:
    story = Mixed(fast=1, slow=0)
    story.known("one", 10.0, 50.0)
    first = story.train("one", epochs=1000, steady=True)
    story.plan()
    story.begin(first)
    story.wait(600.0)
    story.train("one", epochs=1, priority=5)
    assert story.plan() == []


def test_where_jobs_were_slow_before_is_not_held_against_them() -> None:
    story = Mixed(fast=0, slow=1)
    story.known("one", 10.0, 50.0)
    job = story.train("one", epochs=100)
    story.plan()
    story.begin(job)
    story.about(e.EpochsCounted, job, done=1, seconds=50.0)
    assert story.wait(20_000.0) == []


def test_what_runs_on_a_drained_gpu_goes_on_there() -> None:
    story = Mixed()
    story.known("one", 10.0, 50.0)
    job = story.train("one", gpus(1, model=SLOW), epochs=100)
    story.plan()
    story.begin(job)
    story.wait(600.0)
    story.tell(e.DevicesDrained(at=story.now, devices=((SLOW, "gpu", "0"),), reason="it smells"))
    assert story.plan() == []
    assert not story.asked(job)


def test_jobs_without_gpus_and_gpus_without_a_name_have_their_place_too() -> None:
    story = Mixed()
    story.known("one", 10.0, 50.0)
    story.add("plain", gpus=0)
    cards = (DeviceFacts("0", index=0),)
    story.tell(e.NodeJoined(at=story.now, facts=NodeFacts("plain", {
        "gpu": cards, "cpu": (DeviceFacts("cpu", capacity=4000),)
    })))  # fmt: skip
    idle = story.submit(Request(cpus=2000), name="idle")
    jobs = [story.train("one", epochs=100) for _ in range(3)]
    assert sorted(story.plan()) == [idle, *jobs]
    story.begin(idle, *jobs)
    story.wait(600.0)
    assert story.plan() == []


# -- company ------------------------------------------------------------------------------


def test_two_share_a_gpu_if_that_pays() -> None:
    story = Mixed(fast=1, slow=0)
    story.known("one", 10.0, 50.0, other=0.8)
    story.known("other", 10.0, 50.0, one=0.8)
    jobs = [story.train("one", beside()), story.train("other", beside())]
    assert story.plan() == jobs
    assert [story.on(job) for job in jobs] == [["0"], ["0"]]


def test_two_never_share_a_gpu_if_that_does_not_pay() -> None:
    story = Mixed(fast=1, slow=0)
    story.known("one", 10.0, 50.0, other=0.5)
    story.known("other", 10.0, 50.0, one=0.5)
    jobs = [story.train("one", beside()), story.train("other", beside())]
    assert story.plan() == jobs[:1]


def test_a_gpu_alone_comes_before_company() -> None:
    story = Mixed(fast=1, slow=1)
    story.known("one", 10.0, 20.0, one=0.9)
    jobs = [story.train("one", beside()) for _ in range(2)]
    assert story.plan() == jobs
    assert [story.where(job) for job in jobs] == [[FAST], [SLOW]]


def test_memory_counts_whatever_pays() -> None:
    story = Mixed(fast=1, slow=0)
    story.known("one", 10.0, 50.0, one=0.9)
    large = gpus(1, beside=True, memory=14_000)
    jobs = [story.train("one", large) for _ in range(2)]
    assert story.plan() == jobs[:1]


def test_what_company_costs_is_learned_and_those_who_suffer_are_parted() -> None:
    story = Mixed(fast=1, slow=0)
    story.known("one", 10.0, 50.0)
    story.known("other", 10.0, 50.0)
    one, other = story.train("one", beside()), story.train("other", beside(), epochs=100)
    assert story.plan() == [one, other]  # nothing is known against it
    story.begin(one, other)
    story.wait(600.0)
    story.about(e.EpochsCounted, one, done=1, seconds=40.0)
    story.about(e.EpochsCounted, other, done=1, seconds=20.0)
    families = story.state.rest.families
    assert families["ada: one"].beside == {company(FAST, "ada: other"): 0.25}
    assert families["ada: other"].beside == {company(FAST, "ada: one"): 0.5}
    assert families["ada: one"].pace(1, FAST) == Pace(1, FAST, 10.0)
    assert story.plan() == [other]
    assert story.asked(other)


# -- the end of all -----------------------------------------------------------------------


def test_for_the_end_of_all_what_counts_is_where_one_is_fast_compared_with_others() -> None:
    # Both are faster on the fast GPU, and the longer one is hardly so.
    story = Mixed(policy="makespan")
    story.known("hardly", 100.0, 110.0)
    story.known("much", 20.0, 200.0)
    hardly, much = story.train("hardly", epochs=20), story.train("much", epochs=20)
    more = [story.train("much", epochs=20), story.train("hardly", epochs=20)]
    assert len(story.plan()) == 2
    on = {job: story.where(job) for job in (hardly, much, *more) if story.job(job).placement}
    assert sorted(map(str, on.values())) == [f"['{SLOW}']", f"['{FAST}']"]
    assert {job for job, there in on.items() if there == [SLOW]} <= {hardly, more[1]}
    assert {job for job, there in on.items() if there == [FAST]} <= {much, more[0]}


def test_for_the_end_of_all_those_share_who_get_more_done() -> None:
    story = Mixed(fast=1, slow=0, policy="makespan")
    story.known("one", 10.0, 50.0, one=0.8, other=0.5)
    story.known("other", 10.0, 50.0, one=0.5)
    first = story.train("one", beside(), epochs=30)
    other = story.train("other", beside(), epochs=20)
    second = story.train("one", beside(), epochs=10)
    assert sorted(story.plan()) == [first, second]
    assert story.is_(other) == "PENDING"
