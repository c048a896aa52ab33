"""Replay recorded jobs under several policies, and compare them.

TRACE is a file of stoker's own history, Slurm's accounting (sacct -P), the Standard Workload
Format, a published trace, or any table with columns such as submit_time,duration,num_gpus.
With - it comes on stdin. The table goes to stdout; --html writes a page with plots. No daemon is
needed or touched.

  stoker history --json --limit 1000000 > jobs.json
  stoker simulate jobs.json --cluster 4x8 --html jobs.html
"""

from __future__ import annotations

from stoker.cli.options import Option, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USAGE = ("simulate TRACE ... [--policy A,B,C] [OPTIONS]", "simulate --list-policies")
OPTIONS = (
    Option("--policy", "A,B,C", "compare these (backfill,planner,srsf); see --list-policies"),
    Option("--set", "P.NAME=VALUE", "planner.quantum=1200; =600,1200 compares both", many=True),
    Option("--base", "POLICY", "compare the others with this one (the first)"),
    Option("--list-policies", None, "say which policies there are"),
    Option("--cluster", "8x8", "machines x GPUs, or auto; without: the trace's own, or auto"),
    Option("--load", "0.8", "auto: so many machines that this share of them is busy"),
    Option("--by-queue", None, "each queue, or virtual cluster, by itself on its own machines"),
    Option("--first", "N", "only the first N jobs"),
    Option("--epochs-known", "5%", "a job's epochs are measured after this share of its work"),
    Option("--estimates", "2", "no epochs: owners say how long jobs take, off by this factor"),
    Option("--checkpoint", "10m", "a job saves its state at least so often"),
    Option("--restart", "60s", "what stopping and going on costs a job"),
    Option("--no-preempt", None, "no job can be stopped and go on later"),
    Option("--limits", "KIND", "plan by time limits alone (recorded, exact or guessed); or none"),
    Option("--seed", "N", "for estimates and guessed limits; the same repeats exactly (0)"),
    Option("--format", "NAME", "what TRACE is, where it cannot be told: see docs/traces.md"),
    Option("--html", "FILE", "write a page with plots"),
)  # fmt: skip


def main(argv: list[str]) -> NoReturn:
    """Become the simulator, which is too heavy for a command's start-up."""
    parse(OPTIONS, argv, verb="simulate")
    become("simulate", argv)


def become(verb: str, argv: list[str]) -> NoReturn:
    """Replace this process with the simulator's; its exit code is the command's."""
    import os
    import sys

    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "stoker.simulate", verb, *argv])
