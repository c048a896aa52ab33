"""Job selectors: `5`, `3-7`, `last`, a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import Scenario
from stoker.core.model.units import BadValue
from stoker.daemon.selectors import NotFound, select


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Jobs 1-3 alike, 4-6 an array, 7 with a label, 8 in a group."""
    scenario = Scenario()
    scenario.submit(count=3, name="train")
    scenario.submit(count=3, array=True, name="sweep")
    scenario.submit(name="eval", labels=("lr",))
    scenario.submit(name="last-one", group="night")
    return scenario


def chosen(scenario: Scenario, *words: str) -> list[int]:
    def members(array: int) -> list[int]:
        return [job.id for job in scenario.state.jobs.values() if job.array == array]

    return select(list(words), scenario.state, lambda _: None, lambda _: [], members)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["2"], [2]),
        (["1-3"], [1, 2, 3]),
        (["1-7:3"], [1, 4, 7]),
        (["1,6-7"], [1, 6, 7]),
        (["3", "1", "3"], [3, 1]),
        (["4"], [4, 5, 6]),
        (["4_2"], [6]),
        (["4_[0,2]"], [4, 6]),
        (["4_[1-2%2]"], [5, 6]),
        (["5"], [5]),
        (["all"], [1, 2, 3, 4, 5, 6, 7, 8]),
        (["last"], [8]),
        (["-1"], [8]),
        (["train"], [1, 2, 3]),
        (["%lr"], [7]),
        (["night"], [8]),
    ],
)
def test_a_selector_means(scenario: Scenario, words: list[str], ids: list[int]) -> None:
    assert chosen(scenario, *words) == ids


@pytest.mark.parametrize(
    "word", ["9", "0", "7-9", "1-9999999", "4_9", "nobody", "%nothing", "99999999999"]
)
def test_a_selector_that_matches_no_job_is_reported(scenario: Scenario, word: str) -> None:
    with pytest.raises(NotFound):
        chosen(scenario, word)


@pytest.mark.parametrize("word", ["", " ", "3-1", "1-3:0"])
def test_an_invalid_selector_is_reported(scenario: Scenario, word: str) -> None:
    with pytest.raises(BadValue):
        chosen(scenario, word)


@given(word=st.text(alphabet="0123456789-_,:%alst ", max_size=12))
def test_every_selector_means_known_jobs_or_is_rejected(scenario: Scenario, word: str) -> None:
    try:
        found = chosen(scenario, word)
    except (NotFound, BadValue):
        return
    assert set(found) <= set(range(1, 9))
