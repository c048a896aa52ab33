"""A node answers again: what was given up must be over there before the node is used."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.executors.agent.attempt import Key
from stoker.executors.agent.reconciliation import Reconciliation

Answer = Callable[[list[str]], None]


class Node:
    """Answers requests from a script, at once."""

    def __init__(self, **script: list[list[list[str]]]) -> None:
        self.script, self.asked = script, list[list[str]]()
        self.up, self.link = True, object()

    def ask(self, answer: Answer | None, verb: str, *words: str, lines: int = 1) -> None:
        self.asked.append([verb, *words])
        if answer is not None:
            for line in self.script[verb].pop(0):
                answer(line)

    def do(self, _: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(None)  # the pause between two looks


def reunited(node: Node, strays: list[Key]) -> list[str]:
    done: list[str] = []
    reunion = Reconciliation(
        node, node, lambda _: False, lambda _: True, lambda: 10,  # type: ignore[arg-type]
        lambda _: None, lambda: done.append("done"),
    )  # fmt: skip
    reunion.end(strays)
    assert reunion.ended == tuple(strays)
    return done


def test_a_given_up_attempt_is_killed_until_nothing_of_it_lives() -> None:
    node = Node(
        signal=[[["done", "71", "72"]], [["done", "73"]], [["done"]]],
        look=[
            [["busy", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
        ],
        keys=[[["done"]]],
    )
    assert reunited(node, [(5, 0)]) == ["done"]
    assert [words[0] for words in node.asked].count("signal") == 3
    assert ["forget", "5.0"] in node.asked


@pytest.mark.parametrize("standing", ["free", "void"])
def test_what_keeps_an_attempt_from_beginning_is_not_forgotten(standing: str) -> None:
    node = Node(signal=[[["done"]]], look=[[[standing, "5.0"], ["done"]]], keys=[[["done"]]])
    assert reunited(node, [(5, 0)]) == ["done"]
    assert ["forget", "5.0"] not in node.asked


def test_a_given_up_attempt_that_could_not_be_started_is_over() -> None:
    node = Node(signal=[[["done"]]], look=[[["failed", "5.0", "why"], ["done"]]], keys=[[["done"]]])
    assert reunited(node, [(5, 0)]) == ["done"]
    assert ["forget", "5.0"] in node.asked
