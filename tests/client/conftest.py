"""Fixture: a fake daemon in a temporary home."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon, in_home


@pytest.fixture
def fake(home: Path) -> Iterator[FakeDaemon]:
    daemon = in_home(home)
    yield daemon
    daemon.close()
