"""srun and salloc: outside a job they submit one, follow its output and return its exit code."""

from __future__ import annotations

import os
import sys

from stoker.compat.slurm.columns.job_fields import SlurmError
from stoker.compat.slurm.submit.given_options import (
    STEP_SWITCHES,
    STEP_VALUES,
    join_words,
    split_options,
)


def srun(argv: list[str]) -> int:
    """Run a command as a job with one step; inside a job, start a step of it."""
    if os.environ.get("SLURM_JOB_ID") and os.environ.get("STOKER_JOB_ID"):
        from stoker.executors import slurm_tools

        path = os.path.join(next(iter(slurm_tools.__path__)), "srun")
        os.execv("/bin/sh", ["sh", path, *argv])
    from stoker.cli.submit import run

    given, command = split_options(argv, is_step=True)
    if not command:
        raise SlurmError("srun: error: No command given to execute.")
    step = [option for option in given if option.name in STEP_SWITCHES | STEP_VALUES]
    job = [option for option in given if option not in step and not option.is_ignored]
    if any(option.name == "--pty" for option in job):
        return run.main(["--slurm-env", *join_words(job, command)])
    name = ["--job-name", os.path.basename(command[0])]
    command = ["srun", *join_words(step, command)]
    return run.main(["--slurm-env", "--quiet", *name, *join_words(job, command)])


def salloc(argv: list[str]) -> int:
    """Run a command, or a shell in a terminal, with the requested resources."""
    from stoker.cli.submit import run

    given, command = split_options([word for word in argv if word != "--no-shell"])
    terminal = ["--pty"] if sys.stdin is not None and sys.stdin.isatty() else []
    options = [option for option in given if not option.is_ignored]
    return run.main(["--slurm-env", *terminal, *join_words(options, command)])
