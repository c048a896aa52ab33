"""The doors: which module holds each, and how one is entered."""

from __future__ import annotations

import sys

from stoker.cli.errors import run_command

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
}
"""Every door and what it is for. Each is a module beside this one with `main(argv) -> int`."""

MODULES = {
    "run-scheduler": "run_scheduler",
    "scheduler-state": "run_scheduler.state",
    "scheduler-cancel-job": "run_scheduler.cancel_job",
    "scheduler-get-logs": "run_scheduler.get_logs",
}
"""Where to find those that are called otherwise than their module."""

ON_PATH = (
    "simple_gpu_scheduler", "simple_gpu_submit", "simple_hypersearch", "execute_batch",
    "execute_remote", *MODULES,
)  # fmt: skip
"""What installing the package puts on PATH: no other tool has these names."""


def run_compat_command(name: str, argv: list[str]) -> int:
    """Run a door as the command of that name."""

    def run() -> int:
        # __import__ with a list of names returns the module itself, without importlib's weight.
        where = MODULES.get(name, name)
        module = __import__(f"stoker.compat.{where}", fromlist=["main"])
        return int(module.main(argv))

    return run_command(run, name)


def simple_gpu_scheduler() -> int:
    """The command of this name."""
    return run_compat_command("simple_gpu_scheduler", sys.argv[1:])


def simple_gpu_submit() -> int:
    """The command of this name."""
    return run_compat_command("simple_gpu_submit", sys.argv[1:])


def simple_hypersearch() -> int:
    """The command of this name."""
    return run_compat_command("simple_hypersearch", sys.argv[1:])


def execute_batch() -> int:
    """The command of this name."""
    return run_compat_command("execute_batch", sys.argv[1:])


def execute_remote() -> int:
    """The command of this name."""
    return run_compat_command("execute_remote", sys.argv[1:])


def run_scheduler() -> int:
    """The command of this name."""
    return run_compat_command("run-scheduler", sys.argv[1:])


def scheduler_state() -> int:
    """The command of this name."""
    return run_compat_command("scheduler-state", sys.argv[1:])


def scheduler_cancel_job() -> int:
    """The command of this name."""
    return run_compat_command("scheduler-cancel-job", sys.argv[1:])


def scheduler_get_logs() -> int:
    """The command of this name."""
    return run_compat_command("scheduler-get-logs", sys.argv[1:])
