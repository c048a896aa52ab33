"""Reconciliation: abandoned attempts must have ended before a node is used again."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.executors.agent.reconciliation import Reconciliation
from stoker.executors.port import AttemptId

Answer = Callable[[list[str]], None]


class ScriptedNode:
    """A node that replies from a script, immediately."""

    def __init__(self, **script: list[list[list[str]]]) -> None:
        self.script, self.requests = script, list[list[str]]()
        self.is_up, self.session = True, object()

    def request(self, answer: Answer | None, verb: str, *words: str, max_lines: int = 1) -> None:
        self.requests.append([verb, *words])
        if answer is not None:
            for line in self.script[verb].pop(0):
                answer(line)

    def submit(self, _: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(None)  # the pause between two polls


class Records:
    """Knows ten jobs, all of which have finished."""

    def is_superseded(self, attempt: AttemptId) -> bool:
        return True

    def next_job_id(self) -> int:
        return 10


def reconcile(node: ScriptedNode, abandoned: list[AttemptId]) -> list[str]:
    done: list[str] = []
    reconciliation = Reconciliation(
        node, node, lambda _: False, Records(), lambda _: None,  # type: ignore[arg-type]
        lambda: done.append("done"),
    )  # fmt: skip
    reconciliation.start(abandoned)
    assert reconciliation.ended == tuple(abandoned)
    return done


def test_an_abandoned_attempt_is_killed_until_it_has_no_process() -> None:
    node = ScriptedNode(
        signal=[[["done", "71", "72"]], [["done", "73"]], [["done"]]],
        poll=[
            [["busy", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
            [["gone", "5.0"], ["done"]],
        ],
        list_attempts=[[["done"]]],
    )
    assert reconcile(node, [AttemptId(5, 0)]) == ["done"]
    assert [words[0] for words in node.requests].count("signal") == 3
    assert ["forget", "5.0"] in node.requests


@pytest.mark.parametrize("state", ["revoked", "not-begun"])
def test_a_revoked_claim_is_not_deleted(state: str) -> None:
    node = ScriptedNode(
        signal=[[["done"]]], poll=[[[state, "5.0"], ["done"]]], list_attempts=[[["done"]]]
    )
    assert reconcile(node, [AttemptId(5, 0)]) == ["done"]
    assert ["forget", "5.0"] not in node.requests


def test_an_abandoned_attempt_with_a_failed_start_has_ended() -> None:
    node = ScriptedNode(
        signal=[[["done"]]], poll=[[["failed", "5.0", "why"], ["done"]]], list_attempts=[[["done"]]]
    )
    assert reconcile(node, [AttemptId(5, 0)]) == ["done"]
    assert ["forget", "5.0"] in node.requests
