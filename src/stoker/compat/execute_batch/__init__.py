"""execute_batch: runs the lines of a file on machines over SSH, as many at once as fit."""

from __future__ import annotations

from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.execute_batch.arguments import BatchArguments
    from stoker.compat.execute_batch.plan import Plan
    from stoker.compat.execute_batch.slots import Need

DOOR = "execute_batch"
MOMENT = 0.2
"""Seconds over which it is measured how busy cores are."""
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
    """Run a batch."""
    from stoker.compat.execute_batch.arguments import MANY, ONE, SWITCH, read

    kinds = {
        "--machines": MANY, "--copy-forward": MANY, "--copy-backwards": MANY,
        "--num-cpus": ONE, "--memory-required": ONE, "--gpu-memory-required": ONE,
        "--gpu-utilization": ONE, "--no-gpu-required": SWITCH, "--no-reserve-gpu": SWITCH,
        "--reserve": SWITCH, "--dry-run": SWITCH, "--verbose": SWITCH, "--help": SWITCH,
        "-h": SWITCH,
    }  # fmt: skip
    words = read(argv, kinds, DOOR)
    if words.switches & {"-h", "--help"}:
        print(HELP)
        return 0
    if len(words.free) != 1:
        raise UsageError(
            "No batch file given. Usage: execute_batch batch.sh --machines machine.yaml"
            if not words.free
            else f"Only one batch file can be given, not {' '.join(words.free)!r}."
        )
    if not words.lists.get("--machines"):
        raise UsageError("No machines given. Add: --machines machine.yaml")
    return _run(words, _need(words))


def _need(words: BatchArguments) -> Need:
    from stoker.compat.execute_batch.slots import Need

    return Need(
        cores=words.whole("--num-cpus", 1),
        memory=words.whole("--memory-required", 7000),
        gpu="--no-gpu-required" not in words.switches,
        gpu_memory=words.whole("--gpu-memory-required", 1000),
        gpu_share=words.thousandths("--gpu-utilization", 750),
        reserve_gpu="--no-reserve-gpu" not in words.switches,
        reserve="--reserve" in words.switches,
    )


def _run(words: BatchArguments, need: Need) -> int:
    from time import sleep

    from stoker.client.client import connect
    from stoker.compat.execute_batch.batch import Batch
    from stoker.compat.execute_batch.lines import read_lines, tell
    from stoker.compat.execute_batch.node_lease import NodeLease
    from stoker.compat.execute_batch.plan import Plan
    from stoker.compat.execute_batch.transfer_options import travel

    lines = read_lines(words.free[0])
    carried = travel(
        words.lists.get("--copy-forward", ["./"]), words.lists.get("--copy-backwards", ["./"])
    )
    client = connect()
    party = NodeLease(client, words.lists["--machines"], DOOR)
    try:
        party.join()
        plan = Plan(party.members, need, client.gpus()["gpus"])
        if plan.crowded:
            # The first look at a machine goes by its load average, which remembers a minute.
            sleep(MOMENT)
            party.insist(party.look())
            plan = Plan(party.members, need, client.gpus()["gpus"])
        tell(f"machine limits:  {plan.limits}")
        tell(f"machine gpu choices: {plan.choices}")
        _insist_on_slots(plan)
        if "--dry-run" in words.switches:
            plan.rehearse(lines)
            return 0
        return Batch(client, plan, lines, carried, "--verbose" in words.switches).run()
    finally:
        party.leave()


def _insist_on_slots(plan: Plan) -> None:
    if not plan.slots:
        whys = "; ".join(f"{name}: {why}" for name, why in plan.excuses().items())
        raise StokerError(f"No machine has enough free resources for a job. {whys}.")
