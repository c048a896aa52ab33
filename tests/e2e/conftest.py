"""Fixtures of the end-to-end tests: a home with a real daemon."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import LEFT, DaemonFixture, Run
from fakes.nvml import nvml

__all__ = ["nvml"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    directory = Path(__file__).parent
    for item in items:
        if directory in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def idle(home: Path, stoker: Run, request: pytest.FixtureRequest) -> DaemonFixture:
    """A home without a running daemon."""
    box = DaemonFixture(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return box


@pytest.fixture
def box(idle: DaemonFixture) -> DaemonFixture:
    """A running daemon with four declared GPUs and eight cores."""
    return idle.start()
