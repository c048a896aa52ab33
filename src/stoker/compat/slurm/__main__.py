"""Entry point of the scripts that `stoker compat slurm` writes: run one of Slurm's commands."""

from __future__ import annotations

import sys

from stoker.cli.errors import run_command

FUNCTIONS = {
    "sbatch": ("submit.sbatch", "main"),
    "srun": ("submit.interactive", "srun"),
    "salloc": ("submit.interactive", "salloc"),
    "squeue": ("squeue", "main"),
    "sacct": ("sacct", "main"),
    "scancel": ("scancel", "main"),
    "scontrol": ("scontrol", "main"),
    "sinfo": ("sinfo", "main"),
    "sacctmgr": ("accounts", "sacctmgr"),
    "sshare": ("accounts", "sshare"),
}
"""Module and function of each command."""


def main(argv: list[str]) -> int:
    """Run the command that is the first word; every failure has exit code 1, as in Slurm."""
    name, *words = argv
    code = run_command(lambda: _run(name, words), name)
    return 1 if code and not _is_job_code(name, words) else code


def _run(name: str, words: list[str]) -> int:
    from stoker.compat.slurm.columns.job_fields import VERSION, SlurmError

    if words[:1] in (["--version"], ["-V"]):
        print(f"slurm {VERSION}")
        return 0
    module_name, function = FUNCTIONS[name]
    module = __import__(f"stoker.compat.slurm.{module_name}", fromlist=[function])
    if words[:1] in (["--help"], ["--usage"]):
        options = (option for option in getattr(module, "OPTIONS", ()) if option.names)
        print(f"Usage: {name} [OPTIONS]; see stoker's documentation, Slurm's commands.")
        print("\n".join("  " + ", ".join(option.names) for option in options))
        return 0
    try:
        return int(getattr(module, function)(words))
    except SlurmError as error:
        print(error.message, file=sys.stderr)
        return 1


def _is_job_code(name: str, words: list[str]) -> bool:
    """Return True if the exit code may be that of a job."""
    return name in ("srun", "salloc") or (name == "sbatch" and bool({"-W", "--wait"} & {*words}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
