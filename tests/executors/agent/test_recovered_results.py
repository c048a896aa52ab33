"""Results of an attempt after a restart of the daemon, with files that were changed meanwhile."""

import os
import secrets
import shutil
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


def test_results_that_are_listed_while_the_daemon_restarts_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent of the new connection removes temporary files, but not those in use."""
    (programs := tmp_path / "bin").mkdir()
    slow_find = programs / "find"
    slow_find.write_text(
        f'#!/bin/sh\n{shutil.which("find")} "$@" || exit\n'
        'case "$*" in *-print0) touch $HOME/lists ;; *) exit 0 ;; esac\n'
        "until [ -e $HOME/go ]; do sleep 0.05; done\n"
    )
    slow_find.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    bench = AgentBench(tmp_path / "here", tmp_path, f"c{secrets.token_hex(4)}")
    bench.executor.start(bench.script(FIRST, "echo kept >made"))
    bench.until((tmp_path / "lists").exists)
    [run] = (tmp_path / ".stoker/run").iterdir()
    (unused := run / "9.9.list.4194304").touch()
    os.utime(unused, (0, 0))
    bench.restart(FIRST)
    bench.until(lambda: not unused.exists())
    (tmp_path / "go").touch()
    assert bench.exit(FIRST).note is None
    bench.stop()
    assert (bench.base / "work" / "made").read_text() == "kept\n"
