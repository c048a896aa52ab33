"""Who waits for a look at a directory gets one that is recent enough."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.core.job import Carry
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.agent.transfer.uploads import SnapshotCache, TreeUploads
from stoker.executors.linux.thread_pool import TransferPool


class Later:
    """A worker that waits to be told, and a machine that has every tree."""

    def __init__(self) -> None:
        self.todo: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Remember it."""
        self.todo.append((work, then))

    def request(self, answer: Callable[[list[str]], None], *_: str) -> None:
        """Yes, it is here."""
        answer(["done", "yes"])


@pytest.fixture
def later() -> Later:
    return Later()


def test_one_that_comes_during_a_look_and_was_submitted_later_has_another(
    tmp_path: Path, later: Later
) -> None:
    travel = TreeUploads(
        cast("ReconnectingSession", later), cast("TransferPool", later), SnapshotCache()
    )
    found: dict[str, DirectorySnapshot | None] = {}

    def want(name: str, since: float) -> None:
        def tell(tree: DirectorySnapshot | None, why: str, again: bool) -> None:
            found[name] = tree

        travel.ensure(str(tmp_path), Carry(), since, tell)

    config = tmp_path / "config"
    config.write_text("1")
    want("first", 1.0)
    want("same batch", 1.0)
    (work, then), later.todo = later.todo[0], []
    tree = work()
    config.write_text("22")
    want("second", 1e12)
    want("third", 1e12)
    then(tree)
    assert found == {"first": tree, "same batch": tree}
    ((work, then),) = later.todo
    then(work())
    assert found["second"] == found["third"] != tree


def test_what_becomes_of_its_files_is_known_from_the_look_on(tmp_path: Path, later: Later) -> None:
    travel = TreeUploads(
        cast("ReconnectingSession", later), cast("TransferPool", later), SnapshotCache()
    )
    travel.ensure(str(tmp_path), Carry(), 1.0, lambda *_: None)
    reading = travel.progress(str(tmp_path), Carry())
    assert reading is not None
    assert reading.total is None
    ((work, then),) = later.todo
    then(work())
    assert travel.progress(str(tmp_path), Carry()) is None, "the node has it"
