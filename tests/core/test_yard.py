"""The best machine for a request, found without looking at all of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.policy import yard as yards
from stoker.core.policy.fragment import Ask, Room, Typical, cost, fits, take
from stoker.core.policy.yard import Yard

TYPICAL = Typical([Ask(1000, 4000)] * 20 + [Ask(500, 1000)] * 20)


def yard_of(**rooms: Room) -> Yard:
    yard = Yard()
    for name, room in rooms.items():
        yard.put(name, room)
    return yard


def test_the_fullest_machine_that_has_enough():
    yard = yard_of(
        empty=Room((1000,) * 4, 16000), half=Room((1000, 1000, 0, 0), 8000), full=Room((0,) * 4)
    )
    assert yard.best(Ask(1000, 4000), TYPICAL) == ["half"]
    assert yard.best(Ask(4000, 4000), TYPICAL) == ["empty"]
    assert yard.best(Ask(4001, 4000), TYPICAL) == []
    assert yard.best(Ask(1000, 17000), TYPICAL) == []


def test_a_part_goes_into_the_gap_of_its_size():
    yard = yard_of(a=Room((1000,), 4000), b=Room((700,), 4000), c=Room((500,), 4000))
    assert yard.best(Ask(500, 1000), TYPICAL) == ["c"]
    assert yard.best(Ask(501, 1000), TYPICAL) == ["b"]


def test_the_parts_of_a_gang_are_on_different_machines_or_nowhere():
    yard = yard_of(a=Room((1000,) * 4), b=Room((1000,) * 4), c=Room((1000, 0, 0, 0)))
    typical = Typical([Ask(1000)] * 9)
    assert yard.best(Ask(1000), typical, 2) == ["c", "a"]
    assert yard.best(Ask(1000), typical, 3) == ["c", "a", "b"]
    assert yard.best(Ask(2000), typical, 2) == ["a", "b"]
    assert yard.best(Ask(2000), typical, 3) == []


def test_models_and_named_amounts_are_respected():
    disk = (("disk", 10),)
    yard = yard_of(
        a=Room((1000,), model="A"), b=Room((1000,), model="B", more=disk), c=Room((), 1000)
    )
    assert yard.best(Ask(1000, models=("B", "C")), TYPICAL) == ["b"]
    assert yard.best(Ask(1000, models=("C",)), TYPICAL) == []
    assert yard.best(Ask(1000, more=(("disk", 10),)), TYPICAL) == ["b"]
    assert yard.best(Ask(0, more=(("disk", 11),)), TYPICAL) == []
    assert yard.best(Ask(0, 1000), TYPICAL) == ["c"]


def test_a_machine_that_is_dropped_is_not_found_and_comes_back():
    yard = yard_of(a=Room((1000,)), b=Room((1000,)))
    yard.drop("a")
    assert (yard.best(Ask(1000), TYPICAL), len(yard), yard.room("a")) == (["b"], 1, None)
    yard.put("a", Room((1000,)))
    assert (yard.best(Ask(1000), TYPICAL), len(yard)) == (["a"], 2)
    with pytest.raises(KeyError):
        yard.drop("nobody")


def test_room_is_found_however_few_cells_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(yards, "LOOKS", 1)
    monkeypatch.setattr(yards, "CELLS", 1)
    yard = Yard()
    for number in range(200):
        yard.put(f"n{number}", Room((1000,), 1000 + number, 1400 - number))
    assert yard.best(Ask(1000, 1150, 1250), TYPICAL) == ["n150"]
    assert yard.best(Ask(1000, 1150, 1251), TYPICAL) == []


AMOUNT = st.integers(0, 8) | st.integers(0, 5000)
GPUS = st.sampled_from([0, 200, 500, 810, 1000, 1500, 2000, 4000]) | st.integers(0, 3000)
ROOMS = st.builds(
    lambda lefts, cpu, mem, model, disk: Room(
        tuple(sorted(lefts, reverse=True)), cpu, mem, model, (("disk", disk),) if disk else ()
    ),
    st.lists(st.sampled_from([0, 190, 500, 1000, 1000]) | st.integers(0, 1000), max_size=5),
    AMOUNT, AMOUNT, st.sampled_from("AB"), st.integers(0, 3),
)  # fmt: skip
ASKS = st.builds(
    Ask, GPUS, AMOUNT, AMOUNT, st.sampled_from([(), (), ("A",), ("A", "B"), ("C",)]),
    st.sampled_from([(), (), (("disk", 1),), (("disk", 3),)]),
)  # fmt: skip
STEPS = st.lists(st.tuples(st.integers(0, 12), ROOMS | st.none(), ASKS, st.integers(1, 4)))


@given(STEPS, st.sampled_from([1, 16]), st.sampled_from([1, 128]))
def test_there_is_room_exactly_when_a_look_at_everything_finds_it(
    steps: list[tuple[int, Room | None, Ask, int]], looks: int, cells: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yards, "LOOKS", looks)
        patch.setattr(yards, "CELLS", cells)
        yard, rooms, typical = Yard(), dict[str, Room](), Typical()
        for number, room, ask, count in steps:
            name = f"n{number}"
            if room is not None:
                yard.put(name, room)
                rooms[name] = room
            elif name in rooms:
                yard.drop(name)
                del rooms[name]
            typical.note(ask)
            able = {each for each, left in rooms.items() if fits(left, ask)}
            found = yard.best(ask, typical, count)
            assert len(found) == len(set(found)) == (count if len(able) >= count else 0)
            assert able.issuperset(found)
        assert len(yard) == len(rooms)


def crowd(seed: int) -> list[tuple[Ask, list[str]]]:
    """Requests that come and stay, and where each went."""
    chance = random.Random(seed)
    yard, typical = Yard(), Typical()
    for number in range(60):
        cores = chance.choice([8000, 32000])
        yard.put(
            f"n{number}", Room((1000,) * chance.choice([2, 4, 8]), cores, 64000, "AB"[number % 2])
        )
    story = []
    for _ in range(400):
        ask = Ask(
            chance.choice([0, 300, 500, 700, 1000, 1000, 2000]), chance.choice([500, 4000]), 100
        )
        typical.note(ask)
        found = yard.best(ask, typical, chance.choice([1, 1, 1, 2]))
        story.append((ask, found))
        for name in found:
            room = yard.room(name)
            assert room is not None
            yard.put(name, take(room, ask, cost(room, ask, typical)[1]))
    return story


def test_the_same_story_has_the_same_end():
    assert crowd(1) == crowd(1)
    assert crowd(1) != crowd(2)


@given(st.lists(ROOMS, min_size=1, max_size=20), ASKS, st.randoms())
def test_who_came_first_decides_only_among_equals(
    rooms: list[Room], ask: Ask, chance: random.Random
):
    names = {f"n{number}": room for number, room in enumerate(rooms)}
    there = yard_of(**names)
    order = list(names)
    chance.shuffle(order)
    again = yard_of(**{name: names[name] for name in order})
    for one, other in zip(there.best(ask, TYPICAL), again.best(ask, TYPICAL), strict=True):
        assert cost(names[one], ask, TYPICAL)[0] == cost(names[other], ask, TYPICAL)[0]
