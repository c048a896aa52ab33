"""Requeue finished jobs as a new attempt of the same job.

`retry --failed` requeues the failures that `stoker` still lists. Jobs that could never
start because they depend on a requeued job become eligible again.
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import (
    ask_yes_no,
    connect_existing,
    may_ask,
    print_result,
    require_selectors,
)  # fmt: skip

USAGE = ("retry [OPTIONS] JOB ...", "retry --failed [JOB ...]", "retry --all-failed [--since TIME]")
OPTIONS = (
    Option("--failed", None, "failures not dismissed yet; with JOB, only its failed jobs"),
    Option("--all-failed", None, "all failures, dismissed ones included"),
    Option("--since", "TIME", "all failures since TIME: 2h, yesterday, 2026-11-20"),
    Option("--running", None, "also terminate running jobs and requeue them"),
    Option("--same-gpus", None, "use the same GPUs as before"),
    Option("-y/--yes", None, "do not ask for confirmation"),
)
ASK_ABOVE = 10
"""Number of jobs that are requeued without confirmation."""


def main(argv: list[str]) -> int:
    """Requeue the selected jobs."""
    args = parse(OPTIONS, argv, verb="retry")
    since = args.text("since")
    all_failed = args.flag("all_failed") or since is not None
    failed = args.flag("failed") or all_failed
    options: dict[str, object] = {"failed": failed, "same_gpus": args.flag("same_gpus")}
    if args.flag("running"):
        options["running"] = True
    if all_failed and not args.words:
        options["all"] = True
    if since is not None:
        from stoker.cli.output import times

        options["since"] = times.iso(times.parse_time(since))
    select = args.words if failed else require_selectors(args, "retry")
    client = connect_existing()
    if failed and not select and may_ask(args):
        count = int(client.retry(select, **options, dry_run=True)["count"])
        if count > ASK_ABOVE and not ask_yes_no(f"Requeue {count:,} failed jobs?"):
            return 1
    return print_result(client.retry(select, **options), args, "requeued")
