from collections.abc import Iterator

import pytest

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
