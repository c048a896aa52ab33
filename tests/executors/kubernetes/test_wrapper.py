"""The first process of a container, under the shells that images have."""

import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.executors.kubernetes.handover.pod_spec import wrapper

SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    return words


def run(
    shell: list[str], base: Path, flags: str, script: str, barrier: int = 0, **files: str
) -> "tuple[subprocess.CompletedProcess[str], str]":
    """Run a script by the wrapper; return the end and the termination message."""
    (base / "reports").mkdir()
    for name, content in files.items():
        (base / f"reports/.{name}").write_text(content)
    text = wrapper().replace("/stoker/reports", f"{base}/reports")
    text = text.replace("/dev/termination-log", f"{base}/message")
    words = [*shell, "-c", text, "stoker", "N", flags, str(barrier), "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, cwd=base, check=False)
    return done, (base / "message").read_text()


def test_the_exit_code_is_the_last_line(shell: list[str], tmp_path: Path) -> None:
    done, message = run(shell, tmp_path, "", "echo out; echo err >&2; printf end; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\nerr\nendN x 7\n")
    assert message == "N x 7\n"


def test_reports_and_stderr_are_marked(shell: list[str], tmp_path: Path) -> None:
    script = "printf 'one\\ntw' >>reports/report; echo bad >&2; sleep 1.5; echo o >>reports/report"
    done, message = run(shell, tmp_path, "re", f"{script}; printf last >&2")
    assert done.stdout == "N x 0\n"
    lines = done.stderr.splitlines()
    assert [line for line in lines if " r " in line] == ["N r 0 one", "N r 4 two"]
    assert [line for line in lines if " e " in line] == ["N e 0 bad", "N e 4 last"]
    assert message == "N r 0 one\nN r 4 two\nN x 0\n"


def test_a_part_says_that_it_has_passed_its_barrier(shell: list[str], tmp_path: Path) -> None:
    go = "export MEET='it'\"'\"'s here'\n"
    done, _ = run(shell, tmp_path, "", 'echo "$MEET"', barrier=9, go=go, cancelled="")
    assert (done.stderr, done.stdout) == ("N b\nN g\n", "it's here\nN x 0\n")


def test_a_part_without_the_others_never_runs(shell: list[str], tmp_path: Path) -> None:
    done, message = run(shell, tmp_path, "", "touch ran", barrier=1)
    assert (done.returncode, done.stderr, done.stdout) == (0, "N b\n", "N x cancelled\n")
    assert message == "N x cancelled\n"
    assert not (tmp_path / "ran").exists()


def test_a_signal_of_the_command_is_its_code(shell: list[str], tmp_path: Path) -> None:
    done, _ = run(shell, tmp_path, "r", "kill -TERM $$")
    assert done.returncode == 143


def test_the_message_has_the_last_lines_of_a_long_report(shell: list[str], tmp_path: Path) -> None:
    script = "n=0; while [ $n -lt 50 ]; do n=$((n + 1)); echo l$n; done >>reports/report"
    _, message = run(shell, tmp_path, "r", script)
    lines = message.splitlines()
    assert (len(lines), lines[-2].split()[-1], lines[-1]) == (13, "l50", "N x 0")
