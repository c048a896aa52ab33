"""A node answers again: what was given up must be over there before the node is used."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.executors.agent.reconciliation import Reconciliation
from stoker.executors.port import AttemptId

Answer = Callable[[list[str]], None]


class Node:
    """Answers requests from a script, at once."""

    def __init__(self, **script: list[list[list[str]]]) -> None:
        self.script, self.asked = script, list[list[str]]()
        self.is_up, self.session = True, object()

    def request(self, answer: Answer | None, verb: str, *words: str, max_lines: int = 1) -> None:
        self.asked.append([verb, *words])
        if answer is not None:
            for line in self.script[verb].pop(0):
                answer(line)

    def submit(self, _: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(None)  # the pause between two looks


class Records:
    """Knows ten jobs, all of which have finished."""

    def is_superseded(self, attempt: AttemptId) -> bool:
        return True

    def next_job_id(self) -> int:
        return 10


def reunited(node: Node, abandoned: list[AttemptId]) -> list[str]:
    done: list[str] = []
    reconciliation = Reconciliation(
        node, node, lambda _: False, Records(), lambda _: None,  # type: ignore[arg-type]
        lambda: done.append("done"),
    )  # fmt: skip
    reconciliation.start(abandoned)
    assert reconciliation.ended == tuple(abandoned)
    return done


def test_a_given_up_attempt_is_killed_until_nothing_of_it_lives() -> None:
    node = Node(
        signal=[[["done", "71", "72"]], [["done", "73"]], [["done"]]],
        poll=[
            [["busy", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
        ],
        list_attempts=[[["done"]]],
    )
    assert reunited(node, [AttemptId(5, 0)]) == ["done"]
    assert [words[0] for words in node.asked].count("signal") == 3
    assert ["forget", "5.0"] in node.asked


@pytest.mark.parametrize("standing", ["revoked", "not-begun"])
def test_what_keeps_an_attempt_from_beginning_is_not_forgotten(standing: str) -> None:
    node = Node(
        signal=[[["done"]]], poll=[[[standing, "5.0"], ["done"]]], list_attempts=[[["done"]]]
    )
    assert reunited(node, [AttemptId(5, 0)]) == ["done"]
    assert ["forget", "5.0"] not in node.asked


def test_a_given_up_attempt_that_could_not_be_started_is_over() -> None:
    node = Node(
        signal=[[["done"]]], poll=[[["failed", "5.0", "why"], ["done"]]], list_attempts=[[["done"]]]
    )
    assert reunited(node, [AttemptId(5, 0)]) == ["done"]
    assert ["forget", "5.0"] in node.asked
