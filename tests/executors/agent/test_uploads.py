"""Requests for an upload get a snapshot that is recent enough."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.core.model.spec import FileTransfer
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.agent.transfer.uploads import SnapshotCache, TreeUploads
from stoker.executors.linux.thread_pool import TransferPool


class ManualPool:
    """A pool that runs its work on demand, and a node that has every tree."""

    def __init__(self) -> None:
        self.todo: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Store the work."""
        self.todo.append((work, then))

    def request(self, answer: Callable[[list[str]], None], *_: str) -> None:
        """Reply that the tree exists."""
        answer(["done", "yes"])


@pytest.fixture
def pool() -> ManualPool:
    return ManualPool()


def test_a_later_submission_during_a_snapshot_gets_another_snapshot(
    tmp_path: Path, pool: ManualPool
) -> None:
    travel = TreeUploads(
        cast("ReconnectingSession", pool), cast("TransferPool", pool), SnapshotCache()
    )
    found: dict[str, DirectorySnapshot | None] = {}

    def ensure(name: str, since: float) -> None:
        def on_uploaded(tree: DirectorySnapshot | None, why: str, again: bool) -> None:
            found[name] = tree

        travel.ensure(str(tmp_path), FileTransfer(), since, on_uploaded)

    config = tmp_path / "config"
    config.write_text("1")
    ensure("first", 1.0)
    ensure("same batch", 1.0)
    (work, then), pool.todo = pool.todo[0], []
    tree = work()
    config.write_text("22")
    ensure("second", 1e12)
    ensure("third", 1e12)
    then(tree)
    assert found == {"first": tree, "same batch": tree}
    ((work, then),) = pool.todo
    then(work())
    assert found["second"] == found["third"] != tree


def test_progress_is_known_from_the_snapshot_on(tmp_path: Path, pool: ManualPool) -> None:
    travel = TreeUploads(
        cast("ReconnectingSession", pool), cast("TransferPool", pool), SnapshotCache()
    )
    travel.ensure(str(tmp_path), FileTransfer(), 1.0, lambda *_: None)
    reading = travel.progress(str(tmp_path), FileTransfer())
    assert reading is not None
    assert reading.total is None
    ((work, then),) = pool.todo
    then(work())
    assert travel.progress(str(tmp_path), FileTransfer()) is None, "the node has it"
