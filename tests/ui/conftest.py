"""Fixtures of the web page's tests: a real daemon with GPUs, and Chromium."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from e2e.daemon_fixture import LEFT, DaemonFixture, Run
from fakes.nvml import FakeNvml, Gpu, nvml
from ui.visitor import Visitor

__all__ = ["nvml"]

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    directory = Path(__file__).parent
    for item in items:
        if directory in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def a100s(count: int, busy: Callable[[int], int] = lambda at: 0) -> list[Gpu]:
    """GPUs of one model, with a utilization of each."""
    return [
        Gpu(uuid=f"GPU-{at}", name="NVIDIA A100-SXM4-80GB", pci=f"0000:{at + 1:02x}:00.0",
            utilization=busy(at))
        for at in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium while the tests of one file run: playwright holds the event loop of the thread."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", headless=True, args=FLAGS
        )
        yield chromium
        chromium.close()


@pytest.fixture
def box(
    home: Path,
    stoker: Run,
    nvml: FakeNvml,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> DaemonFixture:
    """A running daemon with four GPUs of a stand-in driver, or as many as its parameter says."""
    nvml.set(a100s(getattr(request, "param", 4)))
    made = DaemonFixture(home, stoker)
    request.node.stash[LEFT] = made.run_dir
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "FAKE_NVML"):
        monkeypatch.setenv(name, nvml.env()[name])
    return made.up()


@pytest.fixture
def visitor(browser: Browser, box: DaemonFixture) -> Iterator[Visitor]:
    """A browser with a session that may act; the test fails if its page reports a problem."""
    made = Visitor(browser, box.stoker("ui", "--print").stdout.strip())
    yield made
    made.close()
    assert made.problems == []
