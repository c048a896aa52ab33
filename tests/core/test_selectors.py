"""What people mean by `5`, `3-7`, `last` or a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import Scenario
from stoker.core.selectors import NotFound, select
from stoker.core.units import BadValue


@pytest.fixture(scope="module")
def story() -> Scenario:
    """Jobs 1-3 alike, 4-6 an array, 7 with a label, 8 in a group."""
    told = Scenario()
    told.submit(count=3, name="train")
    told.submit(count=3, array=True, name="sweep")
    told.submit(name="eval", labels=("lr",))
    told.submit(name="last-one", group="night")
    return told


def chosen(story: Scenario, *words: str) -> list[int]:
    def members(array: int) -> list[int]:
        return [job.id for job in story.state.jobs.values() if job.array == array]

    return select(list(words), story.state, lambda _: None, lambda _: [], members)


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
def test_a_selector_means(story: Scenario, words: list[str], ids: list[int]) -> None:
    assert chosen(story, *words) == ids


@pytest.mark.parametrize("word", ["9", "0", "7-9", "4_9", "nobody", "%nothing", "99999999999"])
def test_what_is_not_there_is_said(story: Scenario, word: str) -> None:
    with pytest.raises(NotFound):
        chosen(story, word)


@pytest.mark.parametrize("word", ["", " ", "3-1", "1-9999999", "1-3:0"])
def test_what_makes_no_sense_is_said(story: Scenario, word: str) -> None:
    with pytest.raises(BadValue):
        chosen(story, word)


@given(word=st.text(alphabet="0123456789-_,:%alst ", max_size=12))
def test_any_word_means_known_jobs_or_is_refused(story: Scenario, word: str) -> None:
    try:
        found = chosen(story, word)
    except (NotFound, BadValue):
        return
    assert set(found) <= set(range(1, 9))
