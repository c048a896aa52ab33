"""Results of an attempt after a restart of the daemon, with files that were changed meanwhile."""

import secrets
import time
from pathlib import Path

import pytest

from executors.contract import FIRST
from executors.process_bench import AgentBench


def test_a_file_that_was_changed_before_the_attempt_started_is_not_overwritten_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    bench = AgentBench(tmp_path / "here", tmp_path, f"c{secrets.token_hex(4)}")
    script = bench.base / "work" / "train.py"
    script.write_text("old\n")
    hold = "echo 7.0 >>$HOME/ran; until [ -e $HOME/go ]; do sleep 0.05; done; echo its >>train.py"
    bench.executor.start(bench.script(FIRST, hold))
    bench.until_running(FIRST)
    script.write_text("mine\n")
    bench.sink.events.clear()
    bench.started[FIRST] = time.time()  # as if the directory had been read long before the start
    bench.restart(FIRST)
    (bench.home / "go").touch()
    note = bench.exit(FIRST).note
    bench.stop()
    assert note == "train.py was changed locally; the job's version is train.py.7"
    assert script.read_text() == "mine\n"
    assert (bench.base / "work" / "train.py.7").read_text() == "old\nits\n"
