"""Fixtures of the framework suites: one home, one daemon, and an environment with everything."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import LEFT, DaemonFixture, Run
from frameworks.bench import Bench


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.proof)
            item.add_marker(pytest.mark.needs(".venv-frameworks/.installed"))
            # An attempt begins with seconds of imports, and on a busy machine with many of them.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def bench(home: Path, stoker: Run, request: pytest.FixtureRequest) -> Bench:
    """A daemon with one declared GPU; the scripts compute on the CPU."""
    box = DaemonFixture(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return Bench(box.start("{gpu:1,cpu:8}"))


@pytest.fixture
def pair(home: Path, stoker: Run, request: pytest.FixtureRequest) -> Bench:
    """The same with two."""
    box = DaemonFixture(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return Bench(box.start("{gpu:2,cpu:8}"))
