"""Run finished jobs again, as a further attempt of the same job.

`retry --failed` takes every job that did not end well; jobs that depend on them revive.
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import existing, report, selected

USAGE = ("retry [OPTIONS] JOB ...", "retry --failed [JOB ...]")
OPTIONS = (
    Option("--failed/--all-failed", None, "those that failed", key="failed"),
    Option("--same-gpus", None, "on the same GPUs as before"),
)


def main(argv: list[str]) -> int:
    """Queue again what was selected."""
    args = parse(OPTIONS, argv, verb="retry")
    failed = args.flag("failed")
    select = args.words if failed else selected(args, "retry")
    reply = existing().retry(select, failed=failed, same_gpus=args.flag("same_gpus"))
    return report(reply, args, "queued again:")
