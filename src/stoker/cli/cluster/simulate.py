"""Replay recorded jobs under several policies and compare them.

TRACE is stoker's history, Slurm accounting (sacct -P), Standard Workload Format, a published
trace, or a table with columns such as submit_time,duration,num_gpus; - reads stdin. Prints a table;
--html writes a page with plots. Needs no daemon.

  stoker history --json --limit 1000000 > jobs.json
  stoker simulate jobs.json --cluster 4x8 --html jobs.html
"""

from __future__ import annotations

from stoker.cli.options import Args, Option, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


USAGE = ("simulate TRACE ... [--policy A,B,C] [OPTIONS]", "simulate --list-policies")
OPTIONS = (
    Option("--policy", "A,B,C", "policies to compare (backfill,planner,srsf)"),
    Option("--set", "P.NAME=VALUE", "planner.quantum=1200; =600,1200 compares both", many=True),
    Option("--base", "POLICY", "baseline of the comparison (the first policy)"),
    Option("--list-policies", None, "list the available policies"),
    Option("--cluster", "8x8", "nodes x GPUs, or auto (default: from the trace, else auto)"),
    Option("--load", "0.8", "auto: choose the cluster size for this utilisation"),
    Option("--by-queue", None, "simulate each queue (virtual cluster) on its own nodes"),
    Option("--first", "N", "use only the first N jobs"),
    Option("--epochs-known", "5%", "epoch times are known after this share of a job's work"),
    Option("--estimates", "2", "no epoch times; users' estimates, wrong by this factor"),
    Option("--checkpoint", "10m", "checkpoint interval of jobs"),
    Option("--restart", "60s", "cost of a preemption and restart"),
    Option("--no-preempt", None, "jobs cannot be preempted"),
    Option("--limits", "KIND", "plan with time limits only: recorded, exact, guessed or none"),
    Option("--seed", "N", "random seed of estimates and guessed limits (0)"),
    Option("--format", "NAME", "format of TRACE if detection fails: see docs/traces.md"),
    Option("--time-unit", "minutes", "unit of times in a table whose columns do not name one"),
    Option("--html", "FILE", "write a page with plots"),
)  # fmt: skip


def main(argv: list[str]) -> NoReturn:
    """Replace this process with the simulator; its imports are too slow for a command."""
    args = parse(OPTIONS, argv, verb="simulate")
    exec_simulator("simulate", args)


def exec_simulator(verb: str, args: Args) -> NoReturn:
    """Replace this process with the simulator; it gets the options as JSON, then the words."""
    import os
    import sys

    from stoker.client import fast_json

    sys.stdout.flush()
    options = fast_json.dumps(args.values)
    os.execv(sys.executable, [sys.executable, "-m", "stoker.simulate", verb, options, *args.words])
