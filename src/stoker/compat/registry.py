"""The compat commands by name, the module of each, and their entry points."""

from __future__ import annotations

import sys

from stoker.cli.errors import run_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    "simple_gpu_scheduler": "run the commands on stdin, one GPU each",
    "simple_gpu_submit": "append a whole script to a queue file, as one job",
    "simple_hypersearch": "print one command for each combination of parameters",
    "grass": "queues with their own devices",
    "auto": "a GPU task server and its client",
    "execute_batch": "run the lines of a file on nodes over SSH",
    "execute_remote": "run one command on a node over SSH",
    "run-scheduler": "run a training script, measured and preemptible",
    "scheduler-state": "show the jobs of run-scheduler",
    "scheduler-cancel-job": "cancel a job of run-scheduler",
    "scheduler-get-logs": "print the output of a job of run-scheduler",
    "slurm": "sbatch, squeue and Slurm's other commands, for tools that call them",
}
"""Purpose of every compat command; each is a module here with `main(argv) -> int`, and HELP unless
it has verbs."""

MODULES = {
    "run-scheduler": "run_scheduler",
    "scheduler-state": "run_scheduler.state",
    "scheduler-cancel-job": "run_scheduler.cancel_job",
    "scheduler-get-logs": "run_scheduler.get_logs",
    "slurm": "slurm.command",
}
"""Modules of commands that are not named like their module."""

NEVER_ON_PATH = ("slurm",)
"""Commands that bring a directory of their own for PATH, and are not installed themselves."""

ON_PATH = (
    "simple_gpu_scheduler", "simple_gpu_submit", "simple_hypersearch", "execute_batch",
    "execute_remote", "run-scheduler", "scheduler-state", "scheduler-cancel-job",
    "scheduler-get-logs",
)  # fmt: skip
"""Commands that the package installs on PATH: no other tool has these names."""


def run_compat_command(name: str, argv: list[str]) -> int:
    """Run a compat command with these arguments and return its exit code."""

    def run() -> int:
        # __import__ with a list of names returns the module itself, without importlib's weight.
        module_name = MODULES.get(name, name)
        module = __import__(f"stoker.compat.{module_name}", fromlist=["main"])
        before_command = argv[: argv.index("--")] if "--" in argv else argv
        if hasattr(module, "HELP") and {"-h", "--help"} & set(before_command):
            print(module.HELP)
            return 0
        return int(module.main(argv))

    return run_command(run, name)


def _entry_point(name: str) -> Callable[[], int]:
    """Return the function that a script on PATH calls."""
    return lambda: run_compat_command(name, sys.argv[1:])


simple_gpu_scheduler = _entry_point("simple_gpu_scheduler")
simple_gpu_submit = _entry_point("simple_gpu_submit")
simple_hypersearch = _entry_point("simple_hypersearch")
execute_batch = _entry_point("execute_batch")
execute_remote = _entry_point("execute_remote")
run_scheduler = _entry_point("run-scheduler")
scheduler_state = _entry_point("scheduler-state")
scheduler_cancel_job = _entry_point("scheduler-cancel-job")
scheduler_get_logs = _entry_point("scheduler-get-logs")
