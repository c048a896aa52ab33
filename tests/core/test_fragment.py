"""What is foreseen to be lost of GPUs, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.policy import fragment
from stoker.core.policy.fragment import Ask, Room, Typical, cost, fits, gaps, take


def lost(typical: Typical, room: Room) -> float:
    return typical.foresight(room.model).lost(room)


# ------------------------------------------------------------------------------- rooms


def test_what_fits_where():
    room = Room((1000, 1000, 400, 0), 8000, 100, "A", (("disk", 5),))
    assert (room.whole, room.most) == (2, 2400)
    assert fits(room, Ask(2400, 8000, 100, ("B", "A"), (("disk", 5),)))
    assert fits(room, Ask(1900))
    assert not fits(room, Ask(2401))
    assert not fits(room, Ask(cpu=8001))
    assert not fits(room, Ask(mem=101))
    assert not fits(room, Ask(models=("B",)))
    assert not fits(room, Ask(more=(("disk", 6),)))
    assert not fits(room, Ask(more=(("tape", 1),)))


def test_taking_comes_from_the_smallest_gap_unless_it_is_said():
    room = Room((1000, 1000, 400), 8, 9, "A", (("disk", 5),))
    assert gaps(room, Ask(300)) == [400, 1000]
    assert gaps(room, Ask(1300)) == [400, 1000]
    assert gaps(room, Ask(2000)) == []
    assert take(room, Ask(300, 1, 2)).gpus == (1000, 1000, 100)
    assert take(room, Ask(300), 1000).gpus == (1000, 700, 400)
    after = take(room, Ask(1300, 1, 2, (), (("disk", 3),)))
    assert after == Room((1000, 100, 0), 7, 7, "A", (("disk", 2),))


# ------------------------------------------------------------------------------ losses


def test_a_gap_that_nobody_fits_into_is_lost():
    typical = Typical([Ask(810)] * 50)
    assert lost(typical, Room((190,))) == 190
    assert lost(typical, Room((1000,))) == pytest.approx(190)
    assert lost(typical, Room((0,))) == 0


def test_a_gap_is_filled_by_those_who_come():
    typical = Typical([Ask(500)] * 50)
    assert lost(typical, Room((500,))) == pytest.approx(0)
    assert lost(typical, Room((700,))) == pytest.approx(200)
    assert lost(typical, Room((490,))) == 490


def test_somebody_who_hardly_ever_comes_is_not_waited_for():
    often = Typical([Ask(1000)] * 20 + [Ask(200)] * 20)
    seldom = Typical([Ask(1000)] * 499 + [Ask(200)])
    assert lost(often, Room((200,))) < 1
    assert 180 < lost(seldom, Room((200,))) < 200


def test_gpus_without_cores_are_lost():
    typical = Typical([Ask(1000, cpu=4000)] * 20)
    assert lost(typical, Room((1000, 1000), cpu=8000)) == pytest.approx(0)
    assert lost(typical, Room((1000, 1000), cpu=4000)) == pytest.approx(1000)
    assert lost(typical, Room((1000, 1000), cpu=0)) == pytest.approx(2000)


def test_the_scarcer_of_cores_and_memory_counts():
    typical = Typical([Ask(1000, 4000, 100)] * 10 + [Ask(1000)] * 10)
    assert lost(typical, Room((1000, 1000), cpu=4000, mem=0)) == pytest.approx(1000)
    assert lost(typical, Room((1000, 1000), cpu=0, mem=100)) == pytest.approx(1000)
    assert lost(typical, Room((1000, 1000), cpu=4000, mem=100)) == pytest.approx(500)


def test_where_only_gpus_are_counted_nothing_else_is_missing():
    typical = Typical([Ask(1000)] * 20)
    assert lost(typical, Room((1000, 1000))) == 0


def test_nobody_has_asked_yet():
    assert cost(Room((1000, 600)), Ask(500), Typical())[0][1:] == (1100, 0)


# --------------------------------------------------------------------------- decisions


def better(ask: Ask, typical: Typical, this: Room, that: Room) -> bool:
    return cost(this, ask, typical)[0] < cost(that, ask, typical)[0]


def test_the_exact_complement_is_better_than_a_new_gpu():
    typical = Typical([Ask(700)] * 20 + [Ask(300)] * 20)
    assert cost(Room((1000, 700, 300)), Ask(300), typical)[1] == 300
    assert better(Ask(700), typical, Room((700,)), Room((1000,)))


def test_those_who_want_few_cores_go_where_there_are_few():
    typical = Typical([Ask(1000, 2000)] * 20 + [Ask(1000, 12000)] * 20)
    poor, rich = Room((1000,) * 4, 16000), Room((1000,) * 4, 48000)
    assert better(Ask(1000, 2000), typical, poor, rich)
    assert better(Ask(1000, 12000), typical, rich, poor)


def test_who_wants_no_gpu_goes_where_cores_are_spare():
    typical = Typical([Ask(1000, 4000)] * 20 + [Ask(0, 4000)] * 5)
    assert better(Ask(0, 4000), typical, Room((1000,), 40000), Room((1000,), 4000))
    assert better(Ask(0, 4000), typical, Room((), 4000), Room((1000,), 40000))


def test_among_equals_the_fullest_machine_is_taken():
    typical = Typical([Ask(1000)] * 20)
    assert better(Ask(1000), typical, Room((1000, 1000, 0)), Room((1000, 1000, 1000)))


def test_a_model_that_others_insist_on_is_kept_for_them():
    typical = Typical([Ask(1000)] * 10 + [Ask(1000, models=("A",))] * 10)
    rare, common = Room((1000,), model="A"), Room((1000, 1000), model="B")
    assert better(Ask(1000), typical, common, rare)


# ------------------------------------------------------------------------------- tally


def test_the_tally_forgets_and_stays_small():
    typical = Typical([Ask(300)] * 100)
    for number in range(20 * fragment.WINDOW):
        typical.note(Ask(1000, cpu=number % 999))
        assert len(typical._weights) <= 2 * fragment.CLASSES
    assert Ask(300) not in typical._weights
    assert lost(typical, Room((300,), cpu=300)) == 300


ASKS = st.builds(
    Ask,
    st.integers(0, 40).map(lambda n: n * 50) | st.integers(0, 3000),
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.sampled_from([(), ("A",), ("A", "B")]),
)
ROOMS = st.builds(
    lambda lefts, cpu, mem, model: Room(tuple(sorted(lefts, reverse=True)), cpu, mem, model),
    st.lists(st.sampled_from([0, 1000, 1000]) | st.integers(0, 1000), max_size=8),
    st.integers(0, 30000),
    st.integers(0, 30000),
    st.sampled_from("AB"),
)


@given(st.lists(ASKS, max_size=40), ROOMS, ASKS)
def test_no_more_is_lost_than_there_is_and_the_order_of_equals_does_not_matter(
    asks: list[Ask], room: Room, ask: Ask
):
    typical = Typical(asks)
    typical._renew()
    foresight = typical.foresight(room.model)
    total = sum(room.gpus)
    assert -1e-6 <= sum(map(foresight.gap, room.gpus)) <= total + 1e-6
    assert -1e-6 <= foresight.beside(total, room.cpu, room.mem) <= total + 1e-6
    other = Typical(asks[::-1])
    other._renew()
    assert other.foresight(room.model).lost(room) == pytest.approx(foresight.lost(room))
    if fits(room, ask):
        (_, gpus, cpu), gap = cost(room, ask, typical)
        after = take(room, ask, gap)
        assert (sum(after.gpus), after.cpu) == (gpus, cpu)
        assert min((*after.gpus, after.cpu, after.mem)) >= 0
        assert len(after.gpus) == len(room.gpus)
