"""Commands start fast because they import almost nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon, view

HEAVY = {
    "argparse", "asyncio", "collections", "contextlib", "dataclasses", "datetime", "email", "enum",
    "functools", "hashlib", "http", "importlib.util", "inspect", "json", "logging", "msgspec",
    "pathlib", "pwd", "random", "re", "selectors", "shutil", "signal", "socket", "ssl",
    "subprocess", "tempfile", "threading", "traceback", "typing", "urllib", "uuid", "weakref",
}  # fmt: skip


STOKER = "sys.argv = ['stoker', *sys.argv[1:]]; from stoker.main import main; code = main()"
SLURM = "from stoker.compat.slurm.__main__ import main; code = main(sys.argv[1:])"


def imported_by(*argv: str, program: str = STOKER) -> set[str]:
    """Return the modules that a command imports beyond those of a bare interpreter."""
    code = (
        f"import sys; bare = set(sys.modules); {program}\n"
        "sys.stderr.write('\\n@ ' + ' '.join(set(sys.modules) - bare)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("\n@ ")[2].split())


@pytest.mark.parametrize(
    "argv",
    [(), ("queue", "--json"), ("submit", "--gpus", "1", "python", "x.py"), ("--help",), ("gpus",),
     ("wait", "1"), ("cancel", "1"), ("--version",)],
    ids=" ".join,
)  # fmt: skip
def test_a_command_imports_nothing_heavy(fake: FakeDaemon, argv: tuple[str, ...]) -> None:
    jobs = [view(1), view(2, state="RUNNING", state_code="R", node="box", elapsed=5.0)]
    fake.answers = {
        "GET /v1/jobs": (200, {"jobs": jobs, "more": 0, "counts": {"PENDING": 1}}),
        "GET /v1/gpus": (200, {"gpus": []}),
        "POST /v1/jobs": (200, {"first": 1, "last": 1, "count": 1, "label": "1", "warnings": []}),
        "POST /v1/cancel": (200, {"done": [{"id": 1, "label": "1"}], "skipped": []}),
        "POST /v1/wait": (200, {"finished": True, "jobs": [view(1, result=0)], "stuck": []}),
    }
    found = imported_by(*argv)
    assert not found & HEAVY
    ours = {name for name in found if name.startswith("stoker.cli.")}
    assert len(ours) <= 12, "one module per verb, imported only when chosen"


SLURM_COMMANDS = (
    ("squeue", "-h", "-t", "all", "-o", "%i %t"),
    ("sbatch", "--wrap", "true"),
    ("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", "1"),
    ("scancel", "1"),
    ("sinfo", "-h", "-o", "%P"),
)


@pytest.mark.parametrize("argv", SLURM_COMMANDS, ids=lambda argv: argv[0])
def test_slurms_commands_import_nothing_heavy(fake: FakeDaemon, argv: tuple[str, ...]) -> None:
    job = view(1, state="RUNNING", nodes=["box"], elapsed=5.0)
    fake.answers = {
        "GET /v1/jobs": (200, {"jobs": [job], "more": 0, "counts": {}}),
        "GET /v1/history": (200, {"jobs": [], "more": 0}),
        "GET /v1/queues": (200, {"queues": []}),
        "GET /v1/nodes": (200, {"nodes": []}),
        "POST /v1/jobs": (200, {"first": 1, "last": 1, "count": 1, "label": "1", "warnings": []}),
        "POST /v1/cancel": (200, {"done": [{"id": 1, "label": "1"}], "skipped": []}),
    }
    assert not imported_by(*argv, program=SLURM) & HEAVY


def test_only_the_chosen_verb_is_imported(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = (200, {"jobs": [], "more": 0, "counts": {}})
    found = imported_by("queue")
    assert "stoker.cli.inspect.queue" in found
    assert not found & {
        "stoker.cli.submit.submit",
        "stoker.cli.options.job",
        "stoker.client.autostart",
    }


def test_a_feed_imports_no_options_of_a_job() -> None:
    loaded = modules(["-c", "import stoker.feed.main"])
    assert "stoker.feed.read_ahead" in loaded
    assert not loaded & {"stoker.cli.options.job", "stoker.cli.options.submission", "msgspec"}


def test_the_installed_script_imports_nothing_heavy() -> None:
    script = Path(sys.executable).with_name("stoker")
    bare, command = (modules(argv) for argv in (["-c", "pass"], [str(script), "--version"]))
    assert "stoker.main" in command
    assert not (command - bare) & HEAVY


def modules(argv: list[str]) -> set[str]:
    """Return the modules that an interpreter imports, by -X importtime."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *argv], capture_output=True, text=True, check=True
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
