"""The server of training reports over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require
from daemon.reports.report_server import ReportServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    require("openssl")
    made = ReportServer(tmp_path)
    yield made
    made.close()
