"""How `feed` reads and reports lines; no job is run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli.options import Args
from stoker.client.errors import UsageError
from stoker.feed.line_reader import MAX_BATCH_BYTES, MAX_LINE_BYTES, LineReader
from stoker.feed.main import main, named_devices
from stoker.feed.progress import MAX_SHOWN_FAILURES, Progress

BAD = [(2, "it is not valid UTF-8"), (3, "it holds a NUL byte"), (5, "it is longer than 1 MiB")]
TEXT = b"a\n\xff\nb\0c\n# \xff\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\nlast \xc3\xa9"


@pytest.fixture
def piped() -> Iterator[tuple[LineReader, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield LineReader(reader), writer
    os.close(reader)


def from_file(path: Path, text: bytes) -> LineReader:
    path.write_bytes(text)
    return LineReader(os.open(path, os.O_RDONLY))


def test_a_line_that_is_no_text_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    lines = from_file(tmp_path / "lines", TEXT)
    assert lines.expected() == 5
    assert lines.take(100) == ["a", "last é"]
    assert lines.take_skipped() == BAD
    assert lines.take_skipped() == []
    assert lines.is_done


def test_a_pipe_is_read_the_same_way(piped: tuple[LineReader, int]) -> None:
    lines, writer = piped
    rest = TEXT
    while rest:
        rest = rest[os.write(writer, rest[:30_000]) :]
        lines.read()
    os.close(writer)
    while not lines.is_at_end:
        lines.read()
    assert lines.take(100) == ["a", "last é"]
    assert lines.take_skipped() == BAD


def test_a_long_remark_is_a_remark(tmp_path: Path) -> None:
    lines = from_file(tmp_path / "lines", b"#" + b"x" * 3 * MAX_LINE_BYTES + b"\ntrue\n")
    assert lines.expected() == 1
    assert lines.take(9) == ["true"]
    assert lines.take_skipped() == []


def test_a_line_of_just_the_longest_length_is_a_command(tmp_path: Path) -> None:
    lines = from_file(tmp_path / "lines", b"x" * MAX_LINE_BYTES + b"\n")
    assert len(lines.take(9)[0]) == MAX_LINE_BYTES
    assert lines.take_skipped() == []


def test_long_lines_are_not_all_kept_in_memory(tmp_path: Path) -> None:
    lines = from_file(tmp_path / "lines", (b"x" * (MAX_LINE_BYTES - 1) + b"\n") * 20)
    count = 0
    while taken := lines.take(256):
        assert sum(map(len, taken)) <= MAX_BATCH_BYTES + MAX_LINE_BYTES
        count += len(taken)
    assert count == 20
    assert lines.is_done


def ended(progress: Progress, *states: tuple[str, bool]) -> None:
    view = {"id": 1, "label": "1", "command": "x", "cause": "exit 1", "result": 1, "log": "/l"}
    for state, started in states:
        progress.ended(state, started, lambda: view)


def test_only_a_job_that_failed_can_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(None, quiet=False)
    progress.skip([(7, "it holds a NUL byte")])
    ended(progress, ("COMPLETED", True))
    progress.finish("/logs")
    first, last = capsys.readouterr().err.splitlines()
    assert "line 7" in first
    assert "1 done, 1 failed" in last
    assert "retry" not in last
    assert progress.code == 1
    ended(progress, ("TIMEOUT", True))
    progress.finish("/logs")
    assert capsys.readouterr().err.endswith("stoker retry 1\n")
    progress.submitted(1, 40)
    ended(progress, *[("FAILED", True)] * 30)
    progress.finish("/logs")
    assert capsys.readouterr().err.endswith("stoker retry --failed 1-40\n")


def test_cancelled_is_not_the_same_as_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(6, quiet=True)
    ended(progress, ("COMPLETED", True), ("CANCELLED", True), ("CANCELLED", False))
    progress.stopped(1)
    progress.finish("/logs")
    assert "1 done, 1 cancelled, 4 not run" in capsys.readouterr().err
    assert progress.code == 1
    summary = progress.summary("/logs")
    assert (summary["done"], summary["cancelled"], summary["not_run"]) == (1, 1, 4)


def test_very_many_bad_lines_are_only_counted(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(None, quiet=True)
    progress.skip([(number, "it holds a NUL byte") for number in range(5000)])
    assert capsys.readouterr().err.count("\n") == MAX_SHOWN_FAILURES + 1
    assert progress.summary("/l")["failed"] == 5000
    assert len(progress.summary("/l")["left_out"]) == 1000


def test_devices_can_be_named_as_a_range() -> None:
    assert named_devices(Args({"gpus": "0-2,7"}, [])) == ["0", "1", "2", "7"]
    for wrong in (",", "0,0", "3-1"):
        with pytest.raises(UsageError):
            named_devices(Args({"gpus": wrong}, []))


@pytest.mark.parametrize("name", ["nofile", "/", "a\nb"])
def test_an_input_that_cannot_be_read_is_a_mistake_of_the_caller(home: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        main([name])


def test_no_input_at_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="stdin is closed"):
        main([])


def test_a_deleted_directory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="no longer exists"):
        main(["/dev/null"])
