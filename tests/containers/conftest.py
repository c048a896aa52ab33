"""Fixtures of the container suites: a real podman, and a home whose jobs use it."""

from pathlib import Path

import pytest

from containers.image import Podman, podman
from e2e.conftest import idle
from e2e.daemon_fixture import DaemonFixture

__all__ = ["idle", "podman"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def ship(podman: Podman, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch) -> DaemonFixture:
    """A home whose daemon runs jobs in containers."""
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    return idle.start()


@pytest.fixture
def hasty(podman: Podman, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch) -> DaemonFixture:
    """The same, but nothing has long to end."""
    (idle.home / "config.toml").write_text("grace = 3\n")
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    return idle.start()
