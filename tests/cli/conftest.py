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


@pytest.fixture(autouse=True)
def fresh_output() -> Iterator[None]:
    """What the option parser remembers about one command must not reach the next."""
    from stoker.cli import output

    output.wants_json, output.force_colour = False, None
    yield
    output.wants_json, output.force_colour = False, None
