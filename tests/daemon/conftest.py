from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.handler_fixture import HandlerFixture
from stoker.executors.linux.inotify import Inotify


@pytest.fixture(autouse=True)
def inotify_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test leaves open: a user has only 128 of them, with all real daemons."""
    opened: list[Inotify] = []
    create = Inotify.__init__

    def tracked(self: Inotify) -> None:
        create(self)
        opened.append(self)

    monkeypatch.setattr(Inotify, "__init__", tracked)
    yield
    for each in opened:
        each.close()


@pytest.fixture
def handlers(tmp_path: Path) -> HandlerFixture:
    """A node with two GPUs and no jobs."""
    return HandlerFixture(tmp_path)
