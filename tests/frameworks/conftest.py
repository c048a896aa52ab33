"""Fixtures of the framework suites: one home, one daemon, and an environment with everything."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from e2e.box import Box, Run
from frameworks.bench import Bench

LEFT = pytest.StashKey[Path]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.needs(".venv-frameworks/.installed"))
            # An attempt begins with seconds of imports, and on a busy machine with many of them.
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The run directory lies outside the home; it goes when the last process has gone."""
    try:
        return (yield)
    finally:
        if LEFT in item.stash:
            shutil.rmtree(item.stash[LEFT], ignore_errors=True)


@pytest.fixture
def bench(home: Path, stoker: Run, request: pytest.FixtureRequest) -> Bench:
    """A daemon with one declared GPU; the scripts compute on the CPU."""
    box = Box(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return Bench(box.start("{gpu:1,cpu:8}"))


@pytest.fixture
def pair(home: Path, stoker: Run, request: pytest.FixtureRequest) -> Bench:
    """The same with two."""
    box = Box(home, stoker)
    request.node.stash[LEFT] = box.run_dir
    return Bench(box.start("{gpu:2,cpu:8}"))
