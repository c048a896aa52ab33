"""execute_batch: run the lines of a file on SSH nodes, as many at once as fit."""

from __future__ import annotations

from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.arguments import Arguments
    from stoker.compat.execute_batch.slots import JobNeed

NAME = "execute_batch"
CPU_MEASURE_SECONDS = 0.2
"""Interval over which the load of the cores is measured."""
HELP = """\
  execute_batch batch.sh --machines machine.yaml machine2.yaml

Runs every line of a file on one of the machines, under its bash and with its ~/.bashrc. The number
of concurrent jobs on each machine depends on its free resources at the start. Results are written
to ./job_results: NAME.out, NAME.err and NAME/; a line whose directory exists is skipped.

A machine is a file with username, ip, port and ssh_key_path, here or in ~/.local/var.

Options
  --machines M ...          the machines (required)
  --num-cpus N              cores per job (1)
  --memory-required MB      memory per job (7000)
  --gpu-memory-required MB  GPU memory per job (1000)
  --gpu-utilization F       share of a GPU per job (0.75)
  --no-gpu-required         jobs need no GPU
  --no-reserve-gpu          several jobs may share a GPU
  --reserve                 reserve a whole machine for each job
  --copy-forward PATH ...   paths to copy to the machine (./)
  --copy-backwards PATH ... paths to copy back to job_results/NAME/ (./)
  --dry-run                 print the commands without running them
  --verbose                 print the executed command lines
  -h, --help                show this help

^C terminates running jobs, also on the machines, and still fetches their files.
Exit: 0 all succeeded, 1 some failed or none could be run, 2 usage error, 130 after ^C."""


def main(argv: list[str]) -> int:
    """Run a batch and return the exit code."""
    from stoker.compat.arguments import MANY, ONE, SWITCH, read_arguments

    kinds = {
        "--machines": MANY, "--copy-forward": MANY, "--copy-backwards": MANY,
        "--num-cpus": ONE, "--memory-required": ONE, "--gpu-memory-required": ONE,
        "--gpu-utilization": ONE, "--no-gpu-required": SWITCH, "--no-reserve-gpu": SWITCH,
        "--reserve": SWITCH, "--dry-run": SWITCH, "--verbose": SWITCH,
    }  # fmt: skip
    arguments = read_arguments(argv, kinds, NAME)
    if len(arguments.words) != 1:
        raise UsageError(
            "No batch file given. Usage: execute_batch batch.sh --machines machine.yaml"
            if not arguments.words
            else f"Only one batch file can be given, not {' '.join(arguments.words)!r}."
        )
    if not arguments.lists.get("--machines"):
        raise UsageError("No machines given. Add: --machines machine.yaml")
    return _run(arguments, _read_need(arguments))


def _read_need(arguments: Arguments) -> JobNeed:
    from stoker.compat.execute_batch.slots import JobNeed

    return JobNeed(
        cores=arguments.count("--num-cpus", 1),
        memory=arguments.count("--memory-required", 7000),
        gpu="--no-gpu-required" not in arguments.switches,
        gpu_memory=arguments.count("--gpu-memory-required", 1000),
        gpu_share=arguments.thousandths("--gpu-utilization", 750),
        reserve_gpu="--no-reserve-gpu" not in arguments.switches,
        reserve="--reserve" in arguments.switches,
    )


def _run(arguments: Arguments, need: JobNeed) -> int:
    from time import sleep

    from stoker.client.client import connect
    from stoker.compat.execute_batch.batch import Batch
    from stoker.compat.execute_batch.lines import print_line, read_lines
    from stoker.compat.execute_batch.node_lease import NodeLease
    from stoker.compat.execute_batch.plan import Plan
    from stoker.compat.execute_batch.transfer_options import transfer_options

    lines = read_lines(arguments.words[0])
    transfer = transfer_options(
        arguments.lists.get("--copy-forward", ["./"]),
        arguments.lists.get("--copy-backwards", ["./"]),
    )
    client = connect()
    lease = NodeLease(client, arguments.lists["--machines"], NAME)
    try:
        lease.acquire()
        plan = Plan(lease.nodes, need, client.gpus()["gpus"])
        if plan.has_busy_cores:
            # The first measurement uses the load average of the last minute.
            sleep(CPU_MEASURE_SECONDS)
            lease.require_connected(lease.refresh())
            plan = Plan(lease.nodes, need, client.gpus()["gpus"])
        print_line(f"machine limits:  {plan.limits}")
        print_line(f"machine gpu choices: {plan.choices}")
        if not plan.slots:
            reasons = "; ".join(f"{name}: {why}" for name, why in plan.no_slot_reasons().items())
            raise StokerError(f"No machine has enough free resources for a job. {reasons}.")
        if "--dry-run" in arguments.switches:
            plan.print_dry_run(lines)
            return 0
        return Batch(client, plan, lines, transfer, "--verbose" in arguments.switches).run()
    finally:
        lease.release()
