"""Output of jobs: its size, and losses that are not numbers."""

from pathlib import Path

import pytest

from stoker.daemon.alarms.log_scanner import MAX_BYTES, LogScanner


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "1.out"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("text", "has_nan"),
    [
        ("loss: nan\nloss: nan\n", True),
        ("step 1 loss=NaN\rstep 2 loss=NaN\r", True),
        ("train_loss nan\ntrain_loss inf\n", True),
        ("{'loss': -inf}\n{'loss': nan}\n", True),
        ("loss: nan\nloss: 0.5\n", False),
        ("loss: nan\nloss: 0.5\nloss: nan\n", False),
        ("loss: nan\n", False),
        ("info about the loss function\n" * 3, False),
        ("glossy nan\n" * 3, False),
        ("the loss scaler found no problem in the last 200 steps; inf\n" * 3, False),
        ("loss 0.1\n" * 3, False),
    ],
)
def test_two_losses_in_a_row(log: Path, text: str, has_nan: bool) -> None:
    append(log, text)
    scanner = LogScanner()
    assert scanner.read(str(log)) == len(text)
    assert scanner.has_nan is has_nan


def test_only_what_is_new_is_read(log: Path) -> None:
    scanner = LogScanner()
    append(log, "loss nan\n")
    scanner.read(str(log))
    scanner.read(str(log))
    assert not scanner.has_nan
    append(log, "loss nan\n")
    scanner.read(str(log))
    assert scanner.has_nan
    append(log, "loss 2.5\n")
    scanner.read(str(log))
    assert not scanner.has_nan


def test_of_much_output_the_end_is_read(log: Path) -> None:
    append(log, "loss nan\n" * 3 + "x" * MAX_BYTES)
    scanner = LogScanner()
    assert scanner.read(str(log)) == MAX_BYTES + 27
    assert not scanner.has_nan


def test_truncated_missing_and_special_files(log: Path, tmp_path: Path) -> None:
    scanner = LogScanner()
    assert scanner.read(str(log), str(tmp_path / "none")) is None
    append(log, "a" * 100)
    assert scanner.read(str(log), str(tmp_path / "none")) == 100
    log.write_text("loss nan\nloss nan\n")
    assert scanner.read(str(log)) == 18
    assert scanner.has_nan
    assert scanner.read(str(tmp_path)) is None
