"""Every policy against small cases that were worked out by hand."""

from math import inf, log2
from typing import Any

import pytest

from core.scenario import Afar, gpus
from core.test_policy_choice import choose, explanation_of, pending_order
from core.test_training import counted, listens, progress, training
from stoker.core import events as e
from stoker.core.model.spec import Training
from stoker.core.planner.cycle import plan_events
from stoker.core.policies.policy import POLICIES
from stoker.core.policies.ranking import OVERDUE_RANK, rank
from stoker.core.state.reranking import refresh_ranks

MEASURING: dict[str, Any] = {
    "floor": 1200.0,
    "grain": 1.0001,
    "ageing": 30.0,
    "hysteresis": 3.0,
    "fair": 0.0,
}
"""The planner's own figures, but for steps so fine that they can be left out of account."""


def turn(story: Afar) -> tuple[list[int], list[int], list[int]]:
    """One turn of the core: who starts, who is to stop, and who may go on after all."""
    found: dict[type[e.Event], list[int]] = {
        e.AttemptPlanned: [], e.PreemptionRequested: [], e.PreemptionCancelled: [],
    }  # fmt: skip
    story.state.pending.request_planning()
    for fact in plan_events(story.state, story.now, story.boot):
        story.tell(fact)
        if type(fact) in found:
            found[type(fact)].append(fact.job)  # type: ignore[attr-defined]
    return found[e.AttemptPlanned], found[e.PreemptionRequested], found[e.PreemptionCancelled]


def begun(story: Afar) -> list[int]:
    """Who starts in one turn; they have then started."""
    started, _, _ = turn(story)
    for job in started:
        story.started(job)
    return started


def full(story: Afar, job: int) -> None:
    """It starts, and nobody else."""
    assert begun(story) == [job]


def lab(policy: str, gpus: int = 1, **parameters: Any) -> Afar:
    story = Afar(gpus=gpus)
    choose(story, policy, **parameters)
    return story


def says(seconds: int) -> Training:
    """Its owner says how long it takes, and that is what is believed."""
    return Training(expected=seconds)


def job(story: Afar, seconds: int, size: int = 1, **more: Any) -> int:
    return training(story, gpus(size), **{"training": says(seconds), **more})


def runs(story: Afar, *seconds: int, size: int = 1) -> list[int]:
    """Jobs that run, listen, and were said to take so long."""
    jobs = [job(story, each, size) for each in seconds]
    listens(story, *jobs)
    return jobs


def asked(story: Afar, *jobs: int) -> list[bool]:
    return [progress(story, each).stop is not None for each in jobs]


def stops(story: Afar, *jobs: int) -> None:
    """They have come to a checkpoint."""
    for each in jobs:
        story.exited(each, 75, stopped=True)


# -- in order of arrival --------------------------------------------------------------------


def test_fifo_blocks_all_behind_the_first_that_does_not_fit() -> None:
    story = lab("fifo", gpus=2)
    first, wide, narrow = story.submit(), story.submit(gpus(2)), story.submit()
    assert begun(story) == [first]
    story.exited(first)
    assert begun(story) == [wide]
    story.exited(wide)
    assert begun(story) == [narrow]


def test_skip_starts_jobs_ahead_of_those_that_do_not_fit() -> None:
    story = lab("skip", gpus=2)
    first, wide, narrow = story.submit(), story.submit(gpus(2)), story.submit()
    assert begun(story) == [first, narrow]
    story.exited(first)
    other = story.submit()
    assert begun(story) == [other]  # the wide one could wait for ever
    assert story.ready() == [wide]


def test_backfill_fills_the_gap_before_the_head_and_beside_it() -> None:
    story = lab("backfill", gpus=3)
    first = story.submit(gpus(2), limit=600)
    assert begun(story) == [first]
    head = story.submit(gpus(2), limit=600)  # at 610, on two of three GPUs
    beside = story.submit(limit=10_000)
    assert begun(story) == [beside]
    assert story.ready() == [head]


@pytest.mark.parametrize(("limit", "starts"), [(600, True), (601, False)])
def test_backfill_starts_only_jobs_that_end_before_the_reservation(
    limit: int, starts: bool
) -> None:
    story = lab("backfill", gpus=2)
    full(story, story.submit(limit=600))
    story.submit(gpus(2), limit=600)
    last = story.submit(limit=limit)
    assert begun(story) == ([last] if starts else [])


def second_in_line(policy: str, limit: int) -> bool:
    """Whether one starts that fits beside the head, and is over after so many seconds.

    Of three GPUs, one is free. The head wants two from second 110 to 1120, the next one all
    three from then on.
    """
    story = lab(policy, gpus=3)
    full(story, story.submit(gpus(2), limit=100))
    story.submit(gpus(2), limit=1000)
    story.submit(gpus(3), limit=100)
    last = story.submit(limit=limit)
    return begun(story) == [last]


def test_conservative_does_not_delay_the_second_where_backfill_does() -> None:
    assert second_in_line("backfill", 2000)
    assert not second_in_line("conservative", 2000)
    assert second_in_line("conservative", 1100)


def test_conservative_keeps_a_place_for_each_of_a_kind() -> None:
    story = lab("conservative", gpus=2)
    full(story, story.submit(limit=100))
    for _ in range(3):  # from 110, 220 and 330 on
        story.submit(gpus(2), limit=100)
    late = story.submit(limit=90)
    endless = story.submit()
    assert begun(story) == [late]
    assert endless in story.ready()


def test_conservative_uses_a_hole_between_two_places() -> None:
    story = lab("conservative", gpus=4)
    full(story, story.submit(gpus(3), limit=100))
    wide = story.submit(gpus(4), limit=100)  # from 110 to 220
    narrow = story.submit(gpus(2), limit=100)  # from 220 on
    hole = story.submit(limit=95)  # now, until 105
    assert begun(story) == [hole]
    story.now += 50
    no_hole = story.submit(limit=95)
    assert begun(story) == []
    assert story.ready() == [wide, narrow, no_hole]


def test_conservative_moves_all_forward_when_a_job_ends_early() -> None:
    story = lab("conservative", gpus=2)
    first = story.submit(limit=1000)
    assert begun(story) == [first]
    wide, narrow = story.submit(gpus(2), limit=100), story.submit(limit=2000)
    assert begun(story) == []
    story.exited(first)
    assert begun(story) == [wide]
    story.exited(wide)
    assert begun(story) == [narrow]


def test_conservative_with_an_endless_job_keeps_the_devices_from_endless_ones() -> None:
    story = lab("conservative", gpus=2)
    full(story, story.submit())
    story.submit(gpus(2))
    endless, limited = story.submit(), story.submit(limit=60)
    assert begun(story) == [limited]
    assert endless in story.ready()


def test_a_queue_with_easy_beside_a_conservative_one_keeps_its_rule() -> None:
    story = lab("backfill", gpus=3)
    choose(story, "conservative", "careful")
    full(story, story.submit(gpus(2), limit=100))
    story.submit(gpus(2), limit=1000)
    story.submit(gpus(3), limit=100)
    last = story.submit(limit=2000)
    assert begun(story) == [last]


# -- by what owners say ---------------------------------------------------------------------


def test_sjf_starts_the_shortest_and_preempts_no_job() -> None:
    story = lab("sjf")
    (first,) = runs(story, 5000)
    long, short = job(story, 900), job(story, 60)
    assert pending_order(story) == [short, long]
    assert turn(story) == ([], [], [])
    story.exited(first)
    assert begun(story) == [short]


def test_time_and_service_order_wide_jobs_differently() -> None:
    for policy, wide_first in (("sjf", True), ("srtf", True), ("srsf", False)):
        story = lab(policy, gpus=4)
        story.run(story.submit(gpus(4)))
        narrow, wide = job(story, 1000), job(story, 300, 4)
        assert pending_order(story) == ([wide, narrow] if wide_first else [narrow, wide]), policy


@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_what_is_left_of_a_running_job_counts_not_what_it_took(policy: str) -> None:
    story = lab(policy)
    (first,) = runs(story, 1000)
    story.wait(900)
    longer = job(story, 101)
    assert turn(story) == ([], [], [])
    shorter = job(story, 50)
    assert turn(story) == ([], [first], [])
    stops(story, first)
    assert begun(story) == [shorter]
    story.exited(shorter)
    assert begun(story) == [first]  # 100 are left of it
    assert story.ready() == [longer]


def test_srsf_stops_as_many_as_a_wide_job_needs() -> None:
    story = lab("srsf", gpus=4)
    a, b, c = runs(story, 900, 5000, 4000)
    wide = job(story, 100, 3)  # 300 GPU-seconds; one GPU is free
    assert sorted(turn(story)[1]) == [b, c]  # those who need most
    stops(story, b, c)
    assert begun(story) == [wide]
    assert story.is_(a) == "RUNNING"


# -- by what they have had ------------------------------------------------------------------


def test_tiresias_is_fifo_within_a_level() -> None:
    story = lab("tiresias")
    (first,) = runs(story, 100_000)
    second = training(story)
    assert turn(story) == ([], [], [])
    story.wait(3199)
    assert turn(story) == ([], [], [])
    story.wait(1)  # 3,200 GPU-seconds: from now on it is behind all that have had less
    assert turn(story) == ([], [first], [])
    stops(story, first)
    assert begun(story) == [second]


def test_tiresias_counts_gpus_and_seconds() -> None:
    story = lab("tiresias", gpus=4)
    (wide,) = runs(story, 100_000, size=4)
    training(story)
    story.wait(799)
    assert turn(story)[1] == []
    story.wait(1)
    assert turn(story)[1] == [wide]


def test_tiresias_has_three_steps() -> None:
    rules = POLICIES["tiresias"]
    story = lab("tiresias")
    (first,) = runs(story, 100_000)
    levels = []
    for _ in range(4):
        levels.append(rank(story.state.ranking_input(story.job(first)), story.now)[0])
        story.now += 6400
    assert (rules.service_levels, levels) == ((3200.0, 12800.0), [0.0, 1.0, 2.0, 2.0])


# -- the planner ----------------------------------------------------------------------------


def level(story: Afar, id: int) -> float:
    return rank(story.state.ranking_input(story.job(id)), story.now)[0]


def planner(gpus: int = 1, **parameters: Any) -> Afar:
    """The planner in a queue of which a job has reported epochs."""
    story = lab("planner", gpus, **{**MEASURING, **parameters})
    first = training(story, name="first")
    listens(story, first)
    counted(story, first, 1, seconds=60.0)
    story.exited(first)
    return story


def test_an_unmeasured_job_counts_as_the_floor() -> None:
    story = planner()
    runs(story, 10)
    new, short, long = training(story), job(story, 1000), job(story, 1500)
    assert pending_order(story) == [short, new, long]
    assert level(story, new) == pytest.approx(log2(1200), abs=0.001)


def test_job_without_estimate_is_ranked_by_levels_of_attained_service() -> None:
    story = planner(4)
    single, wide = training(story), training(story, gpus(2))
    for id in (single, wide):
        listens(story, id)
    assumed = []
    for seconds in (0, 599, 2, 598, 2):
        story.now += seconds
        assumed += [2 ** level(story, id) for id in (single, wide)]
    # The first level lasts 1200 GPU-seconds and counts as 1200 s; the next is 16 times as large.
    first, second = 1200 * 2**0.75, 19200 / 2**0.25
    expected = [1200, first, 1200, first, 1200, second, 1200, second, 19200, second]
    assert assumed == pytest.approx(expected, rel=0.001)
    story.now += 16 * 19200
    assert 2 ** level(story, single) == pytest.approx(307200, rel=0.001)


def test_the_planner_counts_a_wide_job_as_less_than_its_gpu_seconds() -> None:
    story = planner()
    runs(story, 10)
    by_gpus = {count: level(story, job(story, 1000, count)) for count in (1, 4)}
    assert by_gpus[4] - by_gpus[1] == pytest.approx(0.75 * log2(4), abs=0.001)
    choose(story, "srsf")
    by_gpus = {count: level(story, job(story, 1000, count)) for count in (1, 4)}
    assert by_gpus[4] - by_gpus[1] == pytest.approx(log2(4))


def test_until_a_job_reports_epochs_jobs_are_ordered_as_by_tiresias() -> None:
    story = lab("planner", 4, **MEASURING)
    single, wide = training(story, name="single"), training(story, gpus(3))
    listens(story, single, wide)
    pending = training(story, gpus(2))
    assert level(story, single) == level(story, wide) == level(story, pending)
    story.now += 1100  # 3,300 GPU-seconds of the wide job
    assert level(story, single) < level(story, wide) - 1
    story.now += 10_000  # waiting does not count: FIFO within a level
    assert level(story, pending) < level(story, single) - 1
    story.now += 10_000
    assert level(story, single) == level(story, wide)
    counted(story, single, 1, seconds=60.0)
    waited, weight = 21_100 / (30 * 1200), 2**0.75
    assert level(story, pending) == pytest.approx(log2(1200 * weight / (1 + waited)), abs=0.01)
    assert story.state.pending.rank_of[pending] == level(story, pending)


def test_next_level_of_attained_service_is_reached_at_the_predicted_time() -> None:
    story = planner()
    first = training(story)
    listens(story, first)
    now, moment, _ = rank(story.state.ranking_input(story.job(first)), story.now)
    assert moment - story.now == pytest.approx(1200)
    assert rank(story.state.ranking_input(story.job(first)), moment - 1)[0] == now
    assert rank(story.state.ranking_input(story.job(first)), moment + 1)[0] > now


def test_once_measured_epochs_to_go_count() -> None:
    story = planner()
    first = training(story, training=Training(epochs=100))
    listens(story, first)
    story.wait(60)
    counted(story, first, 1, seconds=60.0)
    assert 2 ** level(story, first) == pytest.approx(99 * 60, rel=0.001)
    story.wait(600)
    assert 2 ** level(story, first) == pytest.approx(89 * 60, rel=0.02)


def test_a_measurement_counts_for_pending_jobs_of_the_same_profile() -> None:
    story = planner()
    first, second, other = (
        training(story, name=name, training=Training(epochs=epochs))
        for name, epochs in (("net", 100), ("net", 10), ("else", 10))
    )
    listens(story, first)
    before = story.state.pending.rank_of[other]
    assert story.state.pending.rank_of[second] == before
    story.wait(60)
    counted(story, first, 1, seconds=60.0)
    assert story.state.pending.rank_of[second] < story.state.pending.rank_of[other] == before


def test_a_time_limit_is_better_than_nothing_and_worse_than_epochs() -> None:
    story = planner()
    runs(story, 10)
    limited = story.submit(limit=7200)
    both = job(story, 100, limit=7200)
    assert 2 ** level(story, limited) == 2 ** int(log2(7200))  # limits are told apart by doublings
    assert 2 ** level(story, both) == pytest.approx(100, rel=0.001)


@pytest.mark.parametrize(("seconds", "makes_room"), [(1003, False), (997, True)])
def test_a_running_job_is_preempted_for_one_that_needs_less_by_the_hysteresis(
    seconds: int, makes_room: bool
) -> None:
    story = planner()
    (first,) = runs(story, 3000)
    job(story, seconds)
    assert turn(story)[1] == ([first] if makes_room else [])


def test_the_less_remains_the_less_a_job_is_preempted() -> None:
    story = planner()
    (first,) = runs(story, 3000)
    story.now += 2000
    second = job(story, 400)
    assert turn(story)[1] == []
    third = job(story, 300)
    assert turn(story)[1] == [first]
    assert pending_order(story) == [third, second]


def test_no_job_is_preempted_that_would_lose_its_work() -> None:
    story = planner()
    deaf = job(story, 100_000)
    story.run(deaf)  # its library has not spoken up
    job(story, 10)
    assert turn(story)[1] == []
    story.about(e.TrainingBegan, deaf)
    assert turn(story)[1] == [deaf]


def test_a_requeueable_job_is_preempted_by_higher_priority_only() -> None:
    story = planner()
    requeueable = story.submit(requeueable=True, limit=90_000)
    story.run(requeueable)
    job(story, 10)
    assert turn(story)[1] == []
    job(story, 10, priority=1)
    assert turn(story)[1] == [requeueable]


def test_no_job_is_preempted_within_its_quantum() -> None:
    story = planner(quantum=600.0)
    (first,) = runs(story, 100_000)
    job(story, 10)
    story.now += 599
    assert turn(story)[1] == []
    story.now += 1
    assert turn(story)[1] == [first]


def test_waiting_improves_the_rank_at_predicted_times() -> None:
    story = lab("planner", fair=0.0)
    runs(story, 10)
    waiting = job(story, 1000)
    known = story.state.ranking_input(story.job(waiting))
    before, moment, _ = rank(known, story.now)
    planner = POLICIES["planner"]
    grain = log2(planner.grain)
    # log2(1 + waited / (ageing × 1000)) reaches a step of the grain.
    assert moment - story.now == pytest.approx(planner.ageing * 1000 * (2**grain - 1))
    assert rank(known, moment - 1)[0] == before
    assert rank(known, moment + 1)[0] == pytest.approx(before - grain)
    assert story.state.rank_timers.time_of(waiting) == pytest.approx(moment)


def test_ageing_lets_a_long_job_overtake_a_later_shorter_one() -> None:
    story = planner()
    runs(story, 10)
    old = job(story, 1000)
    story.wait(29_000)
    new = job(story, 600)
    assert pending_order(story) == [new, old]
    refresh_ranks(story.state, story.now)
    story.wait(1500)  # 30.5 times what it needs: it counts as 496, the other as 554
    refresh_ranks(story.state, story.now)
    assert pending_order(story) == [old, new]


def test_ageing_improves_the_rank_of_a_measured_job_by_a_factor_of_eight_at_most() -> None:
    story = planner()
    runs(story, 10)
    known, since = story.state.ranking_input(story.job(job(story, 1000))), story.now
    new, waited = rank(known, since)[0], 7 * MEASURING["ageing"] * 1000
    assert rank(known, since + waited / 2)[0] > new - 2.5
    longest, until, _ = rank(known, since + waited + 10)
    assert longest == pytest.approx(new - 3, abs=0.001)
    assert until - since == POLICIES["planner"].patience, "the next change: it is overdue"
    assert rank(known, until - 1)[0] == longest
    silent = story.state.ranking_input(story.job(training(story, gpus(1))))
    waited = 15 * MEASURING["ageing"] * MEASURING["floor"]
    assert rank(silent, since + waited)[0] == pytest.approx(rank(silent, since)[0] - 4, abs=0.001)


# -- the bound on waiting -------------------------------------------------------------------

SOON: dict[str, Any] = {"patience": 1000.0, "overdue": 2.0}
"""Overdue after a thousand seconds, and twice what it needs."""


def test_one_is_overdue_after_its_patience_and_so_many_times_what_it_needs() -> None:
    for seconds, late in ((100, 1000), (5000, 10_000)):
        story = planner(**SOON)
        runs(story, 10)
        waiting = job(story, seconds)
        known, since = story.state.ranking_input(story.job(waiting)), story.now
        assert rank(known, since + late - 1)[0] > OVERDUE_RANK
        assert rank(known, since + late + 1) == (OVERDUE_RANK, inf, inf)


def test_a_job_that_starts_when_it_becomes_overdue_stays_overdue() -> None:
    """Rounding of its waiting time changes neither its rank nor the time when it changes."""
    for n in range(50):
        story = planner(ageing=1e6, **SOON)
        (first,) = runs(story, 100)
        story.wait(n / 7)
        waiting = job(story, 100)
        known, since = story.state.ranking_input(story.job(waiting)), story.now
        seen = {rank(known, since + share * 1000 / 3)[1] for share in (2.8, 2.9, 2.99)}
        assert seen == {since + 1000}
        story.wait(since + 1000 - story.now)
        story.exited(first)
        refresh_ranks(story.state, story.now)
        assert begun(story) == [waiting]
        listens(story, waiting)
        known = story.state.ranking_input(story.job(waiting))
        for step in range(20):
            assert rank(known, story.now + step / 3)[0] == OVERDUE_RANK


def test_no_job_starts_ahead_of_an_overdue_one() -> None:
    story = planner(gpus=2, **SOON)
    deaf = story.submit()
    story.run(deaf)
    wide = job(story, 400, 2)
    story.wait(1001)
    narrow = job(story, 10)
    assert turn(story) == ([], [], [])
    story.exited(deaf)
    assert begun(story) == [wide]
    assert story.ready() == [narrow]


def test_before_it_is_overdue_other_jobs_start_ahead() -> None:
    story = planner(gpus=2, **SOON)
    story.run(story.submit())
    job(story, 400, 2)
    story.wait(900)
    narrow = job(story, 10)
    assert begun(story) == [narrow]


def test_all_preemptible_jobs_are_victims_of_an_overdue_one() -> None:
    story = planner(**SOON)
    (first,) = runs(story, 12_000)  # it does not need three times as long
    long = job(story, 5000)
    story.wait(9000)
    assert turn(story)[1] == []
    story.wait(1001)
    assert turn(story)[1] == [first]
    stops(story, first)
    assert begun(story) == [long]


def test_a_job_that_started_overdue_is_not_preempted_by_a_shorter_one() -> None:
    story = planner(**SOON)
    (first,) = runs(story, 10)
    long = job(story, 5000)
    story.wait(10_001)
    story.exited(first)
    refresh_ranks(story.state, story.now)
    assert begun(story) == [long]
    story.about(e.TrainingBegan, long)
    job(story, 5)
    assert turn(story)[1] == []


def test_without_patience_no_job_is_ever_overdue() -> None:
    story = planner(patience=0.0, overdue=1.0)
    runs(story, 10)
    waiting = job(story, 100)
    assert rank(story.state.ranking_input(story.job(waiting)), story.now + 1e9)[0] > OVERDUE_RANK


# -- what others make room for is kept ------------------------------------------------------


def making_room() -> tuple[Afar, int, int, int]:
    """Two who run on a GPU each were asked to stop for one that needs both; one has."""
    story = planner(gpus=2)
    a, b = runs(story, 50_000, 60_000)
    wide = job(story, 1000, 2)
    assert sorted(turn(story)[1]) == [a, b]
    stops(story, a)
    return story, a, b, wide


def test_the_explanation_of_a_preemptor_names_its_victims() -> None:
    story, _, b, wide = making_room()
    assert explanation_of(story, wide).unblocks == (f"job {b} stops, as it was asked to",)


def test_no_job_behind_takes_a_nominated_placement() -> None:
    story, a, b, wide = making_room()
    behind = job(story, 5000)
    assert turn(story) == ([], [], [])
    said = f"job {wide} starts first: devices are reserved for it"
    assert explanation_of(story, behind).unblocks == (said,)
    stops(story, b)
    assert begun(story) == [wide]
    assert pending_order(story) == [behind, a, b]


def test_a_job_behind_with_its_own_nomination_does_not_take_it() -> None:
    story = planner(gpus=3)
    a, b, c = runs(story, 50_000, 60_000, 70_000)
    wide = job(story, 1000, 2)
    assert sorted(turn(story)[1]) == [b, c]
    stops(story, c)
    behind = job(story, 5000)
    assert turn(story) == ([], [a], [])
    assert turn(story) == ([], [], [])
    stops(story, b)
    assert begun(story) == [wide]
    stops(story, a)
    assert begun(story) == [behind]


def test_a_non_preemptible_job_does_not_start_before_the_preemption_for_one_ahead() -> None:
    """What is free, and what one who stops would free, is what the first in line waits for."""
    story = planner(gpus=2)
    (long,) = runs(story, 50_000)
    plain = story.submit()
    full(story, plain)
    wide = job(story, 10, 2)
    assert turn(story) == ([], [], [])
    narrow = story.submit()
    story.exited(plain)
    assert turn(story) == ([], [long], [])
    stops(story, long)
    assert begun(story) == [wide]
    story.exited(wide)
    assert narrow in begun(story)


def test_a_higher_ranked_job_takes_a_nominated_placement() -> None:
    story, a, _, wide = making_room()
    urgent = job(story, 100)
    assert begun(story) == [urgent]
    assert pending_order(story) == [wide, a]
    assert story.state.memory.nominations == {}


def test_a_preemption_is_cancelled_when_it_is_not_needed_any_more() -> None:
    story, a, b, wide = making_room()
    story.fact(e.JobCancelled, wide)
    started, stopped, withdrawn = turn(story)
    assert (started, stopped, withdrawn) == ([a], [], [b])
    assert asked(story, b) == [False]


def test_a_preemption_is_not_cancelled_if_another_job_needs_it() -> None:
    story = planner()
    (first,) = runs(story, 50_000)
    second, third = job(story, 100), job(story, 200)
    assert turn(story)[1] == [first]
    story.fact(e.JobCancelled, second)
    turn(story)
    assert asked(story, first) == [True]
    stops(story, first)
    assert begun(story) == [third]


# -- under every policy ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(POLICIES))
def test_priority_comes_first_and_preempts(policy: str) -> None:
    story = lab(policy)
    (first,) = runs(story, 10)
    short, urgent = job(story, 5, limit=600), job(story, 90_000, priority=3, limit=100_000)
    assert pending_order(story)[0] == urgent
    assert turn(story)[1] == [first]
    stops(story, first)
    assert begun(story) == [urgent]
    assert short in story.ready()


@pytest.mark.parametrize("policy", list(POLICIES))
def test_an_idle_cluster_starts_every_job(policy: str) -> None:
    story = lab(policy, gpus=4)
    jobs = [job(story, 10, size) for size in (1, 2, 1)]
    assert sorted(begun(story)) == jobs


# -- fair shares ----------------------------------------------------------------------------

DAY = 86400.0


def shares(policy: str, **parameters: float) -> Afar:
    """Ada has had eight GPU-days, bob has had none, and both have jobs that wait."""
    story = lab(policy, gpus=2, **parameters)
    ada = [story.submit(user="ada") for _ in range(2)]
    story.run(*ada)
    story.now += 4 * DAY
    return story


def test_fair_starts_jobs_of_users_with_less_recent_usage_first() -> None:
    story = shares("fair")
    mine, yours = story.submit(user="ada"), story.submit(user="bob")
    turn(story)
    assert pending_order(story) == [yours, mine]


def test_usage_decays_with_time() -> None:
    story = shares("fair")
    for each in (1, 2):
        story.exited(each)
    story.run(story.submit(gpus(2), user="eve"))
    story.now += 120 * DAY
    mine, yours = story.submit(user="ada"), story.submit(user="bob")
    turn(story)
    assert pending_order(story) == [mine, yours]


def test_the_planner_weighs_what_a_user_has_had_against_what_a_job_needs() -> None:
    for needed, ada_first in ((1000, False), (100, True)):
        story = shares("planner", fair=0.5)
        mine = job(story, needed, user="ada")
        yours = job(story, 1100, user="bob")
        turn(story)
        assert (pending_order(story) == [mine, yours]) is ada_first, needed


def test_an_overdue_job_has_no_fair_share_penalty() -> None:
    story = lab("planner", gpus=2, **{**MEASURING, **SOON, "fair": 0.5})
    first = story.submit(user="ada")
    story.run(first)
    story.now += 4 * DAY
    wide = job(story, 400, 2, user="ada")
    job(story, 90_000, 2, user="bob")
    story.wait(1001)
    turn(story)
    narrow = job(story, 10, user="bob")
    assert begun(story) == []
    story.exited(first)
    assert begun(story) == [wide]
    assert narrow in story.ready()


def test_overdue_jobs_are_fifo_whatever_the_usage_of_their_users() -> None:
    story = lab("planner", gpus=2, **{**MEASURING, **SOON, "fair": 0.5})
    first = story.submit(gpus(2), user="ada")
    story.run(first)
    story.now += 4 * DAY
    mine = job(story, 400, 2, user="ada")
    story.now += 10
    yours = job(story, 400, 2, user="bob")
    turn(story)
    story.wait(1100)
    turn(story)
    assert pending_order(story) == [mine, yours]
