"""The first process of a container, under the shells that images have."""

import os
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
    shell: list[str],
    base: Path,
    flags: str,
    script: str,
    barrier: int = 0,
    *,
    sender: str | None = None,
    **files: str,
) -> "tuple[subprocess.CompletedProcess[str], str]":
    """Run a script by the wrapper; return the end and the termination message.

    `sender` is the program that sends the report over HTTP.
    """
    (base / "reports").mkdir()
    for name, content in files.items():
        (base / f"reports/.{name}").write_text(content)
    text = wrapper().replace("/stoker/reports", f"{base}/reports")
    text = text.replace("/dev/termination-log", f"{base}/message")
    text = text.replace("/stoker/lib", f"{base}/lib")
    environment = dict(os.environ)
    if sender is not None:
        path = base / "lib/stoker/training/reports/http_sender.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"import os, sys, time\nbase = sys.argv[1]\n{sender}")
        environment["STOKER_REPORT_ACCESS"] = "server fingerprint secret"
    words = [*shell, "-c", text, "stoker", "N", flags, str(barrier), "sh", "-c", script]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=base, check=False, env=environment
    )
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


CONFIRM = "open(base + '/.new', 'w').write('{}\\n'); os.rename(base + '/.new', base + '/.http')\n"
"""A sender whose daemon has confirmed this number of bytes."""
REPORT = "until [ -e reports/.http ]; do sleep 0.05; done; printf 'one\ntwo\n' >>reports/report"


def marked(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("N r ")]


def test_what_the_daemon_has_is_not_in_the_log(shell: list[str], tmp_path: Path) -> None:
    done, message = run(
        shell, tmp_path, "r", f"{REPORT}; sleep 1.5", sender=CONFIRM.format(4) + "time.sleep(60)"
    )
    assert (done.returncode, marked(done)) == (0, ["N r 4 two"])
    assert message == "N r 4 two\nN x 0\n"


def test_the_log_has_the_rest_while_the_daemon_is_away(shell: list[str], tmp_path: Path) -> None:
    away = CONFIRM.format(4) + "time.sleep(2.5); os.unlink(base + '/.http'); time.sleep(60)"
    script = f"{REPORT}; sleep 4; echo three >>reports/report"
    done, _ = run(shell, tmp_path, "r", script, sender=away)
    assert marked(done) == ["N r 4 two", "N r 8 three"]


def test_the_log_has_all_if_the_sender_cannot_run(shell: list[str], tmp_path: Path) -> None:
    broken = "raise SystemExit(1)"
    done, _ = run(shell, tmp_path, "r", "echo one >>reports/report", sender=broken)
    assert marked(done) == ["N r 0 one"]


def test_the_job_does_not_learn_the_token(shell: list[str], tmp_path: Path) -> None:
    sender = "open(base + '/seen', 'w').write(os.environ['STOKER_REPORT_ACCESS'])"
    script = "env; until [ -s reports/seen ]; do sleep 0.05; done; cat reports/seen >seen"
    done, message = run(shell, tmp_path, "r", script, sender=sender)
    assert "secret" not in done.stdout + done.stderr + message
    assert (tmp_path / "seen").read_text() == "server fingerprint secret"


@pytest.mark.parametrize(("driver", "ended"), [("exit 9", "lacks"), ("echo 'UUID: GPU-1'", "7")])
def test_a_command_is_not_run_without_the_gpus_that_it_should_see(
    shell: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, ended: str
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(f"#!/bin/sh\n{driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    done, message = run(shell, tmp_path, "g", "exit 7")
    assert message == f"N x {ended}\n"
    assert done.stdout == message
