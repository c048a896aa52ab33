"""`stoker compat slurm`: a directory of Slurm's commands for PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from stoker import places
from stoker.cli import output
from stoker.client.errors import UsageError

COMMANDS = (
    "sbatch", "srun", "salloc", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr",
    "sshare",
)  # fmt: skip
_PROGRAM = "import sys; from stoker.compat.slurm.__main__ import main; sys.exit(main(sys.argv[1:]))"
"""Unlike `python -m`, this imports nothing else; -P keeps the current directory out of the path."""
HELP = """\
usage: stoker compat slurm
       stoker compat slurm -- COMMAND [ARG ...]

Slurm's commands with stoker's queue: sbatch srun salloc squeue sacct scancel scontrol sinfo
sacctmgr sshare. The first form prints a line for your shell that puts them first on PATH:

    eval "$(stoker compat slurm)"

The second form runs one command with them, such as snakemake. They are never installed over a
real Slurm."""


def main(argv: list[str]) -> int:
    """Print the PATH, run a command with it, or run one of Slurm's commands."""
    if argv and argv[0] in COMMANDS:
        from stoker.compat.slurm.__main__ import main as run

        return run(argv)
    directory = write_commands()
    real = shutil.which("sinfo", path=places.path_without(directory))
    if real is not None:
        output.say(f"stoker: {os.path.dirname(real)} has a real Slurm; stoker's commands hide it")
    path = os.pathsep.join([directory, *filter(None, [places.path_without(directory)])])
    if not argv:
        print(f'export PATH={shlex.quote(directory)}:"$PATH"')
        return 0
    command = argv[1:] if argv[0] == "--" else argv
    if not command or command[0].startswith("-"):
        raise UsageError("Write stoker compat slurm -- COMMAND.")
    try:
        os.execvpe(command[0], command, {**os.environ, "PATH": path})
    except FileNotFoundError:
        raise UsageError(f"There is no command '{output.clean(command[0])}'.") from None


def write_commands() -> str:
    """Write one small script per command; return their directory."""
    directory = places.slurm_commands_dir()
    os.makedirs(directory, 0o700, exist_ok=True)
    python = shlex.quote(sys.executable)
    for name in COMMANDS:
        text = f'#!/bin/sh\nexec {python} -P -c "{_PROGRAM}" {name} "$@"\n'
        path = os.path.join(directory, name)
        if _read(path) == text:
            continue
        new = f"{path}.{os.getpid()}"
        with open(new, "w") as file:
            file.write(text)
        os.chmod(new, 0o700)
        os.replace(new, path)
    return directory


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None
