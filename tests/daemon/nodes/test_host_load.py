"""Foreign load of a node is computed from readings."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.units import THOUSAND
from stoker.daemon.nodes.host_load import (
    busy_share,
    foreign_load,
    guessed_share,
    is_significant,
)

CORES = st.integers(0, 512)
SHARE = st.floats(-1, 2)
MEMORY = st.integers(0, 10**7)
HELD = st.integers(0, 10**6)
AMOUNTS = st.tuples(st.integers(0, 64_000), st.integers(0, 10**6))


def test_foreign_load_is_all_use_minus_allocations_and_idle_load():
    assert foreign_load(24, 0.5, 4000, 32000, 12000, 8000) == (7000, 12000)
    assert foreign_load(24, 0.04, 0, 32000, 32000, 0) == (0, 0)


def test_what_we_hold_and_do_not_use_is_not_negative_use_of_others():
    assert foreign_load(24, 0.1, 20_000, 32000, 31000, 8000) == (0, 0)


def test_what_we_use_beyond_what_we_hold_looks_like_others():
    assert foreign_load(8, 1.0, 2000, 1000, 0, 100) == (5000, 900)


@given(CORES, SHARE, HELD, MEMORY, MEMORY, HELD)
def test_others_never_use_less_than_nothing_nor_more_than_there_is(
    cores, share, held, total, available, held_memory
):
    cpu, memory = foreign_load(cores, share, held, total, available, held_memory)
    assert 0 <= cpu <= cores * THOUSAND
    assert 0 <= memory <= total


@given(CORES, SHARE, HELD, HELD, MEMORY, MEMORY)
def test_the_more_we_hold_the_less_is_others(cores, share, held, more, total, available):
    before = foreign_load(cores, share, held, total, available, held)
    after = foreign_load(cores, share, held + more, total, available, held + more)
    assert after[0] <= before[0]
    assert after[1] <= before[1]


def test_a_share_lies_between_two_looks():
    assert busy_share((100, 1000), (150, 1100)) == 0.5


def test_no_share_lies_between_a_moment_and_itself_or_across_a_reboot():
    assert busy_share((100, 1000), (100, 1000)) is None
    assert busy_share((100, 1000), (5, 50)) is None
    assert busy_share((100, 1000), (5, 5000)) is None


@given(st.floats(0, 1000), CORES)
def test_a_guess_is_a_share(load, cores):
    assert 0.0 <= guessed_share(load, cores) <= 1.0


def test_a_twentieth_is_worth_telling_if_it_is_a_core_and_less_is_not():
    totals = (64_000, 100_000)
    assert not is_significant((5000, 5000), (8199, 9999), totals)
    assert is_significant((5000, 5000), (8200, 5000), totals)
    assert is_significant((5000, 5000), (5000, 10_000), totals)
    assert not is_significant((300, 0), (1299, 0), (2000, 100_000))
    assert is_significant((300, 0), (1300, 0), (2000, 100_000))


def test_the_end_of_all_use_is_significant_and_a_flicker_on_an_idle_node_is_not():
    totals = (64_000, 100_000)
    assert is_significant((400, 0), (0, 0), totals)
    assert not is_significant((0, 0), (200, 3), totals)


@given(st.lists(AMOUNTS, max_size=30), AMOUNTS)
def test_the_last_reported_load_is_never_far_from_the_measured_one(looks, totals):
    reported = (0, 0)
    for now in looks:
        if is_significant(reported, now, totals):
            reported = now
        assert abs(now[0] - reported[0]) < max(totals[0] / 20, THOUSAND)
        assert abs(now[1] - reported[1]) < max(totals[1] / 20, 1)


@given(AMOUNTS, AMOUNTS)
def test_an_unchanged_load_is_never_significant(now, totals):
    assert not is_significant(now, now, totals)
