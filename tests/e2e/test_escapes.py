"""Names and messages full of terminal escapes, shown by every command that shows something."""

import json
import re
import sys

import pytest

from e2e.daemon_fixture import DaemonFixture
from stoker.cli.verbs import VERBS
from stoker.compat.registry import COMMANDS

NASTY = "n\x1b]0;own\x07\x1b[7mb\x9b31mc\u202ed\u2066e\u200e\u200ff\x7f\x08g\rh\x1b[2J"
OURS = re.compile(r"\x1b\[(?:[0-2]|3[1-6])(?:;(?:[0-2]|3[1-6]))*m")

LOOKS = [
    (), ("queue", "-a"), ("queue", "-v", "-e"), ("queue", "--json"), ("queue", "--json-lines"),
    ("queue", "-o", "name,comment,command"), ("queue", "--format", "{name} {command} {cause}"),
    ("show", "1"), ("show", "1", "--json"), ("show", "all"), ("why", "3"), ("why", "3", "--json"),
    ("eta",), ("eta", "3"), ("eta", "--json"), ("logs", "--path", "1"), ("logs", "1", "--json"),
    ("metrics", "2"), ("metrics", "2", "--csv"), ("metrics", "2", "--json"), ("wait", "1"),
    ("wait", "1", "--json"), ("history",), ("history", "--csv"), ("history", "--json"),
    ("history", "-o", "name,command"), ("gpus",), ("gpus", "--json"), ("nodes",),
    ("nodes", "--json"), ("sweep", "list"), ("sweep", "list", "--json"), ("sweep", "show", "4"),
    ("sweep", "show", "4", "--csv"), ("sweep", "show", "4", "--json"), ("policy",),
    ("policy", "--list"), ("daemon", "status"), ("daemon", "log"), ("daemon", "log", "--json"),
    ("db", "path"), ("hold", "3"), ("release", "3"),
    ("move", "3", "--first"), ("edit", "3", "--comment", NASTY), ("drain", "1", "--reason", NASTY),
    ("undrain", "1"), ("pause", "2"), ("resume", "2"), ("__complete", "show", ""),
    ("completion", "bash"), ("what-if", "--policy", "fifo"), ("usage", "--by", "label"),
    ("usage", "--json"), ("top", "--once"), ("ui", "--sessions"), ("alarms",),
    ("alarms", "--json"), ("notify", "list"), ("notify", "list", "--json"),
    ("limit",), ("limit", "--json"), ("share",), ("share", "--json"), ("reserve",),
    ("reserve", "--json"), ("token", "list"), ("token", "list", "--json"),
    ("compat", "scheduler-state"), ("compat", "grass", "show"),
    ("compat", "scheduler-get-logs", NASTY),
    ("compat", "grass", "enqueue", NASTY, "x"), ("compat", "auto", "status", NASTY),
    ("compat", "execute_remote", NASTY, "true"), ("compat", "execute_batch", NASTY, NASTY),
    ("compat", "scheduler-cancel-job", NASTY), ("compat", "run-scheduler", NASTY),
    ("compat", "simple_gpu_scheduler", f"--{NASTY}"), ("compat", "simple_gpu_submit", f"--{NASTY}"),
    ("compat", "simple_hypersearch", f"--{NASTY}"),
    ("compat", "slurm", "squeue", f"--name={NASTY}"),
]  # fmt: skip
ERRORS = [
    (NASTY,), ("queue", "--state", NASTY), ("queue", "-o", NASTY),
    ("queue", "--format", "{" + NASTY), ("queue", "--limit", NASTY), ("queue", f"--{NASTY}"),
    ("submit", "--queue", NASTY, "true"),
    ("submit", "--gpus", NASTY, "true"), ("submit", "--time", NASTY, "true"),
    ("submit", "--chdir", f"/{NASTY}", "true"), ("submit", "--dependency", NASTY, "true"),
    ("submit", "--begin", NASTY, "true"), ("run", "--gpus", NASTY, "true"), ("feed", f"--{NASTY}"),
    ("sweep", "show", NASTY), ("sweep", "--method", NASTY, "true"), ("cancel", f"x{NASTY}"),
    ("kill", "2", "--signal", NASTY), ("show", f"x{NASTY}"), ("why", f"x{NASTY}"),
    ("logs", f"x{NASTY}"), ("metrics", f"x{NASTY}"), ("wait", f"x{NASTY}"),
    ("history", "--since", NASTY), ("nodes", "add", NASTY, NASTY), ("drain", NASTY),
    ("undrain", NASTY), ("policy", NASTY), ("daemon", NASTY), ("db", NASTY), ("help", NASTY),
    ("simulate", NASTY), ("what-if", "--policy", NASTY), ("compat", NASTY), ("completion", NASTY),
    ("hold", f"x{NASTY}"), ("release", f"x{NASTY}"), ("pause", f"x{NASTY}"),
    ("resume", f"x{NASTY}"), ("retry", f"x{NASTY}"), ("edit", f"x{NASTY}", "--priority", "1"),
    ("move", f"x{NASTY}", "--first"), ("gpus", f"--{NASTY}"), ("eta", f"x{NASTY}"),
    ("alarms", f"--{NASTY}"), ("notify", "test", NASTY), ("mcp", f"--{NASTY}"),
    ("limit", f"queue:{NASTY}", "--max-gpus", NASTY), ("share", NASTY, NASTY),
    ("reserve", "--gpus", NASTY, "--from", NASTY), ("reserve", "--cancel", NASTY),
    ("token", "create", "--name", NASTY, "--rights", NASTY), ("token", "revoke", NASTY),
    ("system", NASTY),
]  # fmt: skip


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


@pytest.fixture
def full(box: DaemonFixture) -> DaemonFixture:
    """A daemon with control characters in all names."""
    box.script("report.py", (
        "from stoker.training import report\nimport sys, time\n"
        f"report(step=1, **{{{NASTY!r}: 0.5}})\nprint('reported', flush=True)\ntime.sleep(600)\n"
    ))  # fmt: skip
    named = ("--job-name", NASTY, "--comment", NASTY)
    assert box.submit(*named, f"printf '{NASTY}\\n'; exit 3") == "1"
    assert box.submit(*named, "--gpus", "4", f"exec {sys.executable} report.py") == "2"
    assert box.submit(*named, "--gpus", "4", f"echo '{NASTY}'") == "3"
    rows = box.script(
        "rows.jsonl", "".join(json.dumps({"p": f"{n}{NASTY}"}) + "\n" for n in (1, 2))
    )
    swept = box.stoker("sweep", "--jsonl", rows, "--metric", "m", "--gpus", "4", "echo {p}")
    assert swept.stdout == "4\n", swept.stderr
    box.end_of("1")
    box.says(2, "reported")
    return box


@pytest.mark.timeout(300)
def test_no_command_prints_control_characters_of_data(full: DaemonFixture) -> None:
    for words in LOOKS + ERRORS:
        done = full.stoker(*words, timeout=60)
        assert is_harmless(done.stdout + done.stderr), words
        assert "Traceback" not in done.stderr, words
        if "--json" in words and done.returncode == 0:
            json.loads(done.stdout)


@pytest.mark.timeout(300)
def test_coloured_output_has_only_our_own_escapes(full: DaemonFixture) -> None:
    painted = 0
    for words in LOOKS:
        if words[:1] in ((), ("queue",), ("show",), ("why",), ("eta",), ("history",), ("gpus",)):
            done = full.stoker(*words, "--color", timeout=60)
            assert is_harmless(OURS.sub("", done.stdout)), words
            painted += bool(OURS.search(done.stdout))
    assert painted > 5


def test_the_output_of_a_job_is_printed_unchanged(full: DaemonFixture) -> None:
    assert NASTY.replace("\r", "\n") in full.stoker("logs", "1").stdout  # text mode converts \r


def test_every_verb_and_compat_command_is_tried() -> None:
    tried = {words[0] for words in LOOKS + ERRORS if words}
    assert set(VERBS) <= tried
    assert {words[1] for words in LOOKS if words[:1] == ("compat",)} == set(COMMANDS)
