import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.events import BeginTimeReached, NodeReached, NodeUnreachable
from stoker.daemon import daemon_log
from stoker.daemon.daemon_log import DaemonLogHandler, log_events


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    """A logger whose only handler writes to daemon.log in the test's directory."""
    logger = logging.getLogger("stoker.test")
    handler = DaemonLogHandler(str(tmp_path / "daemon.log"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def test_a_record_is_one_line_with_its_level_and_no_control_characters(
    log: logging.Logger, tmp_path: Path
) -> None:
    log.warning("job %s\nforged line", "\x1b]0;title\x07 \u202eabc")
    lines = (tmp_path / "daemon.log").read_text().splitlines()
    assert "WARNING stoker.test: job \\x1b]0;title\\x07 \\u202eabc" in lines[0]
    assert lines[1] == "  forged line"
    assert (tmp_path / "daemon.log").stat().st_mode & 0o777 == 0o600


def test_an_exception_comes_with_its_traceback(log: logging.Logger, tmp_path: Path) -> None:
    try:
        raise KeyError("1")
    except KeyError:
        log.exception("planning failed")
    lines = (tmp_path / "daemon.log").read_text().splitlines()
    assert lines[1] == "  Traceback (most recent call last):"
    assert lines[-1] == "  KeyError: '1'"


def test_it_rotates_by_size_and_keeps_three(
    log: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_log, "MAX_BYTES", 100)
    for number in range(12):
        log.info("%d %s", number, "x" * 100)
    assert sorted(os.listdir(tmp_path)) == [
        "daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3",
    ]  # fmt: skip
    assert " 11 xxx" in (tmp_path / "daemon.log").read_text()
    assert " 8 xxx" in (tmp_path / "daemon.log.3").read_text()


def test_a_removed_file_is_created_again(log: logging.Logger, tmp_path: Path) -> None:
    log.info("one")
    (tmp_path / "daemon.log").unlink()
    log.info("two")
    assert "two" in (tmp_path / "daemon.log").read_text()


def test_a_message_that_repeats_itself_is_written_once(log: logging.Logger, tmp_path: Path) -> None:
    for _ in range(1000):
        log.error("disk full")
    log.info("other")
    lines = (tmp_path / "daemon.log").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1] == "  the line above was repeated 999 times"


def test_a_log_that_cannot_be_written_raises_nothing_and_reports_it_later(
    log: logging.Logger, tmp_path: Path
) -> None:
    path = tmp_path / "daemon.log"
    path.symlink_to("/dev/full")
    log.error("first")
    log.error("second")
    path.unlink()
    log.error("third")
    lines = path.read_text().splitlines()
    assert lines[0] == "  2 lines could not be written here"
    assert "third" in lines[1]


def test_stderr_goes_to_the_new_file_after_a_rotation(tmp_path: Path) -> None:
    code = (
        "import logging, os; from stoker.daemon import daemon_log\n"
        "daemon_log.MAX_BYTES = 100; daemon_log.configure('daemon.log')\n"
        "log = logging.getLogger('stoker'); log.info('x' * 100); log.info('y')\n"
        "os.write(2, b'native words\\n'); import faulthandler; faulthandler._sigsegv()\n"
    )
    with (tmp_path / "daemon.log").open("w") as file:
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=file, stderr=file, check=False
        )
    text = (tmp_path / "daemon.log").read_text()
    assert "native words" in text
    assert "Segmentation fault" in text
    assert (tmp_path / "daemon.log.1").exists()


def test_a_full_pipe_at_stderr_does_not_stop_the_daemon(tmp_path: Path) -> None:
    code = (
        "import logging; from stoker.daemon import daemon_log\n"
        "daemon_log.configure('daemon.log'); log = logging.getLogger('stoker')\n"
        "for number in range(5000): log.info('%d %s', number, 'x' * 50)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE
    ) as process:
        assert process.wait(30) == 0
    assert "4999 xxx" in (tmp_path / "daemon.log").read_text()


def test_notable_events_have_a_line_and_others_only_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = [
        NodeReached(at=0.0, node="a"),
        NodeUnreachable(at=0.0, node="b", why="no route", boot=0.0),
        BeginTimeReached(at=0.0, job=7),
    ]
    with caplog.at_level(logging.INFO, "stoker"):
        log_events(events)
    assert caplog.messages == ["node a is up", "node b is unreachable: no route"]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "stoker"):
        log_events(events)
    assert caplog.messages[-1] == "BeginTimeReached job 7"
