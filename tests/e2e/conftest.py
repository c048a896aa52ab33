"""Fixtures of the end-to-end tests: a box with a real daemon."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import LEFT, DaemonFixture, Run
from fakes.nvml import nvml

__all__ = ["nvml"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def idle(home: Path, stoker: Run, request: pytest.FixtureRequest) -> DaemonFixture:
    """A home in which nothing runs yet."""
    box = DaemonFixture(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return box


@pytest.fixture
def box(idle: DaemonFixture) -> DaemonFixture:
    """A home whose daemon has four declared GPUs and eight cores."""
    return idle.start()
