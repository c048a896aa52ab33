"""Results of an attempt whose daemon ended, beside files that were changed here meanwhile."""

import secrets
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from executors.process_contract import recoverable
from executors.test_contract import AgentBed
from stoker.core.events import ProcessStarted


class UploadingBed(AgentBed):
    """A node with files of its own."""

    shares_files = False


def test_a_file_that_was_changed_before_the_attempt_started_is_not_overwritten_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    bed = UploadingBed(tmp_path, f"c{secrets.token_hex(4)}")
    bed.until(lambda: bed.sink.ups)
    go, script = bed.place / "go", bed.place / "work" / "train.py"
    script.write_text("old\n")
    hold = f"until [ -e {go} ]; do sleep 0.05; done; echo its >>train.py"
    launch = replace(bed.launch(hold), label="1")
    bed.executor.start(launch)
    bed.until(lambda: bed.reported(ProcessStarted))
    script.write_text("mine\n")
    journalled = recoverable(launch)
    journalled.job.started_at = time.time()  # the directory was read before
    bed.executor.close()
    bed.open()
    bed.executor.recover([journalled])
    go.touch()
    assert bed.exit_of().note == "train.py was changed locally; the job's version is train.py.1"
    assert script.read_text() == "mine\n"
    assert (bed.place / "work" / "train.py.1").read_text() == "old\nits\n"
    bed.executor.close()
