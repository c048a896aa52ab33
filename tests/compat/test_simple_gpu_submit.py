"""simple_gpu_submit: a whole script in one line of a queue file, and out of it again."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.errors import UsageError
from stoker.compat.registry import run_compat_command
from stoker.compat.simple_gpu_scheduler.record import HEAD, TAIL, decode, encode, printable_name
from stoker.compat.simple_gpu_submit import append_line, main
from stoker.feed.line_reader import MAX_LINE_BYTES, LineReader, is_continued

SCRIPTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
SUBMIT = [
    sys.executable, "-c",
    "from stoker.compat.registry import simple_gpu_submit as run; raise SystemExit(run())",
]  # fmt: skip
SCRIPT = """\
#!/bin/sh
# it's a script, with \\n and "$HOME" and\ttabs \\\\
echo 'one' \\
  two
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gpu.queue"
    path.touch()
    return path


def submitted(path: Path) -> list[tuple[str, str] | None]:
    """What a scheduler would make of the queue file's lines."""
    return [decode(line) for line in path.read_text().split("\n")[:-1]]


# ----------------------------------------------------------------------------------- the record


@given(name=st.text(), script=SCRIPTS)
def test_every_script_survives_in_one_line_that_does_not_go_on(name: str, script: str) -> None:
    line = encode(name, script)
    assert "\n" not in line
    assert line == line.rstrip()
    assert not is_continued(line.encode())
    assert decode(line) == (printable_name(name), script)


@given(name=st.text(max_size=5), script=SCRIPTS, more=st.text(min_size=1, max_size=5))
def test_a_line_that_is_only_like_a_record_is_not_one(name: str, script: str, more: str) -> None:
    line = encode(name, script)
    for other in (
        line[1:],
        more + line,
        line.replace(TAIL, TAIL[:-3]),
        line[: -len(printable_name(name))],
    ):
        assert decode(other) is None or encode(*decode(other)) == other  # type: ignore[misc]
    assert decode(HEAD + "\\x" + TAIL + "a") is None
    assert decode(HEAD + "it's" + TAIL + "a") is None
    assert decode("echo a") is None


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_could_run_the_record_unchanged(shell: str, tmp_path: Path) -> None:
    odd = "".join(map(chr, range(1, 128))) + "é 'x' \\0101 \\"
    script = (
        f"#!/usr/bin/env python3\ntext = {odd!r}\nprint(text == {odd!r}); raise SystemExit(3)\n"
    )
    line = encode("odd.py", script + "# " + odd.replace("\n", "").replace("\r", "") + "\n")
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == (b"True\n", 3), done.stderr


def test_a_person_can_read_it() -> None:
    assert "python a.py\\npython b.py\\n" in encode("job.sh", "python a.py\npython b.py\n")
    assert encode("job.sh", "true").endswith(" # job.sh")


@given(
    lines=st.lists(
        st.text(st.sampled_from("ab \\#"), max_size=6).filter(
            lambda text: text.strip() and not text.lstrip().startswith("#")
        ),
        min_size=1,
        max_size=8,
    )
)
def test_lines_are_joined_as_a_shell_joins_them(lines: list[str]) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, "".join(f"{line}\n" for line in lines).encode())
        os.close(writer)
        found = LineReader(reader, joins_lines=True)
        while not found.is_at_end:
            found.read()
    finally:
        os.close(reader)
    joined = found.take(100)
    assert "\n".join(joined) == "\n".join(lines)
    for command in joined[:-1]:
        *parts, last = command.split("\n")
        assert all(is_continued(part.encode()) for part in parts)
        assert not is_continued(last.encode())


def test_a_joined_line_has_a_longest_length_and_the_number_of_its_first_part(
    tmp_path: Path,
) -> None:
    (tmp_path / "lines").write_bytes(b"\n" + (b"x" * 1000 + b"\\\n") * 1100 + b"x\ntrue \\")
    found = LineReader(os.open(tmp_path / "lines", os.O_RDONLY), joins_lines=True)
    assert found.take(9) == ["true \\"]
    assert found.skipped == [(2, "it is longer than 1 MiB")]


# ---------------------------------------------------------------------------------- the command


def test_sgs_23_a_script_is_one_line_of_the_queue_file(queue: Path) -> None:
    Path("job.sh").write_text(SCRIPT)
    assert main(["gpu.queue", "job.sh"]) == 0
    assert submitted(queue) == [("job.sh", SCRIPT)]


def test_a_script_from_stdin(queue: Path) -> None:
    done = subprocess.run(
        [*SUBMIT, "gpu.queue", "-"], input=SCRIPT.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert submitted(queue) == [("stdin", SCRIPT)]


def test_a_last_line_without_an_end_does_not_swallow_the_script(queue: Path) -> None:
    queue.write_text("echo a")
    Path("job.sh").write_text("true")
    main(["gpu.queue", "job.sh"])
    assert queue.read_text().startswith("echo a\n(")
    assert submitted(queue) == [None, ("job.sh", "true")]


@pytest.mark.parametrize(
    ("content", "word"),
    [(b" \n", "empty"), (b"a\0b", "NUL"), (b"\xff", "UTF-8"), (b"x" * MAX_LINE_BYTES, "1 MiB")],
    ids=["empty", "NUL", "no text", "too long"],
)
def test_what_cannot_be_run_is_refused_and_nothing_is_queued(
    queue: Path, content: bytes, word: str
) -> None:
    Path("job.sh").write_bytes(content)
    with pytest.raises(UsageError, match=word):
        main(["gpu.queue", "job.sh"])
    assert queue.read_bytes() == b""


@pytest.mark.parametrize(
    ("argv", "word"),
    [((), "required"), (("gpu.queue",), "required"), (("gpu.queue", "a", "b"), "required"),
     (("gpu.queue", "-x"), "no option"), (("gpu.queue", "none.sh"), "cannot be read"),
     (("gpu.queue", "."), "cannot be read"), (("none.queue", "job.sh"), "touch none.queue"),
     ((".", "job.sh"), "cannot be written"), (("/dev/null", "job.sh"), "regular"),
     (("gpu.queue", "job.py"), "#!")],
    ids=str,
)  # fmt: skip
def test_bad_input_is_one_line_and_2(queue: Path, argv: tuple[str, ...], word: str) -> None:
    Path("job.sh").write_text("true")
    Path("job.py").write_text("import os")
    done = subprocess.run([*SUBMIT, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("simple_gpu_submit: ")
    assert word in done.stderr
    assert queue.read_bytes() == b""
    assert not Path("none.queue").exists()


def test_a_script_never_mixes_with_what_others_append(queue: Path) -> None:
    script = "echo " + "y" * 100_000
    line = encode("job.sh", script).encode() + b"\n"

    def submit() -> None:
        for _ in range(20):
            append_line("gpu.queue", line)

    def echo() -> None:
        fd = os.open(queue, os.O_WRONLY | os.O_APPEND)
        for _ in range(2000):
            os.write(fd, b"echo plain\n")
        os.close(fd)

    threads = [threading.Thread(target=work) for work in (submit, submit, echo, echo)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # An append that crosses a page can be seen half done: a blank line then separates it from the
    # script, which schedulers skip.
    lines = [line for line in queue.read_text().split("\n") if line]
    assert [decode(line) for line in lines].count(("job.sh", script)) == 40
    assert lines.count("echo plain") == len(lines) - 40 == 4000


def test_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_compat_command("simple_gpu_submit", ["--help"]) == 0
    assert "simple_gpu_submit gpu.queue" in capsys.readouterr().out
