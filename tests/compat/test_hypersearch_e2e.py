"""The guide's two examples, typed as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

GRID = (
    'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" '
    "-p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
)
SAMPLE = (
    'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" --n-samples 5 '
    "-p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
)
TRAIN = """\
import os, sys
with open(f"run-{os.getpid()}", "w") as file:
    print(os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:], file=file)
"""
ALL = {
    f"--lr {lr} --batch_size {bs}" for lr in ("0.001", "0.0005", "0.0001") for bs in (32, 64, 128)
}


def trained(line: str, directory: Path) -> list[str]:
    """Type a line into a shell; return what the training script was called with."""
    (directory / "train_dnn.py").write_text(TRAIN)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=directory,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = [file.read_text().split(maxsplit=1) for file in directory.glob("run-*")]
    assert {gpu for gpu, _ in runs} <= {"0", "1", "2"}
    return [arguments.strip() for _, arguments in runs]


def test_the_guides_grid(home: Path, tmp_path: Path) -> None:
    runs = trained(GRID, tmp_path)
    assert len(runs) == 9
    assert set(runs) == ALL


def test_the_guides_sample(home: Path, tmp_path: Path) -> None:
    runs = trained(SAMPLE, tmp_path)
    assert len(set(runs)) == len(runs) == 5
    assert set(runs) < ALL
