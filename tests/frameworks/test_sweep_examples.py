"""The examples of sweeps, as they lie in the tree: scikit-learn, and PyTorch with ASHA."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture
from frameworks.bench import PATIENCE, ROOT, Bench, until

Example = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def example(bench: Bench) -> Example:
    """Run an example's run.sh, in a copy, with the frameworks on its PATH."""

    def run(name: str, *options: str) -> "subprocess.CompletedProcess[str]":
        there = bench.user / name
        if not there.exists():
            shutil.copytree(ROOT / "examples" / name, there)
        commands = Path(sys.executable).parent
        path = f"{bench.environment['PATH']}:{commands}"
        return subprocess.run(
            [there / "run.sh", *options],
            capture_output=True,
            text=True,
            env={**os.environ, **bench.environment, "PATH": path},
            timeout=PATIENCE,
            check=False,
        )

    return run


def whole(box: DaemonFixture, sweep: str) -> Any:
    return box.client.get_sweep(sweep)


def test_scikit_learn_by_a_file_of_wandb(bench: Bench, example: Example) -> None:
    done = example("sweep-sklearn", "-n", "3", "--max-running", "2")
    assert done.returncode == 0, done.stderr
    assert "sweep 1 (digits): 3 new of 3" in done.stderr
    assert "ACCURACY" in done.stdout
    found = whole(bench.box, "digits")
    assert found["sweep"]["counts"]["done"] == 3
    assert found["sweep"]["best"]["value"] > 0.5
    assert {trial["step"] for trial in found["trials"]} == {12}
    assert "learning" in (bench.user / "sweep-sklearn" / "sweep.html").read_text().lower()
    again = example("sweep-sklearn", "-n", "3", "--max-running", "2")
    assert "3 done already of 3" in again.stderr


def test_pytorch_with_early_stopping(bench: Bench, example: Example) -> None:
    done = example("sweep-torch", "-n", "3", "--max-running", "2")
    assert done.returncode == 0, done.stderr
    found = whole(bench.box, "torch")
    counts, trials = found["sweep"]["counts"], found["trials"]
    assert counts["done"] + counts["stopped"] == 3
    assert counts["done"] >= 1
    assert found["sweep"]["best"]["value"] == max(
        trial["value"] for trial in trials if trial["state"] == "COMPLETED"
    )


def test_a_trial_that_was_killed_goes_on_from_its_checkpoint(bench: Bench) -> None:
    box, script = bench.box, ROOT / "examples" / "sweep-torch" / "train.py"
    words = ("sweep", "--maximize", "accuracy", "--param", "lr=0.1", "python", script,
             "lr={lr}", "epochs=150")  # fmt: skip
    assert box.stoker(*words, env=bench.environment).stdout == "1\n"
    until(lambda: "epoch 20:" in _output(box, 0))
    assert box.stoker("kill", "1_0").returncode == 0
    box.client.wait(["1"], timeout=PATIENCE)
    again = box.stoker(*words, env=bench.environment)
    assert "1 again of 1" in again.stderr, again.stderr
    box.client.wait(["1"], timeout=PATIENCE)
    (trial,) = whole(box, "1")["trials"]
    assert (trial["state"], trial["attempt"], trial["step"]) == ("COMPLETED", 1, 150)
    (first, *_) = re.findall(r"epoch (\d+):", _output(box, 1))
    assert int(first) > 20


def _output(box: DaemonFixture, attempt: int) -> str:
    return b"".join(box.client.log("1_0", attempt=attempt)).decode()
