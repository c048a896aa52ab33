"""Submit a command, follow its output, return its exit code.

^C detaches and the job continues; a second ^C within two seconds cancels the job. --pty runs an
interactive program: stoker run --gpus 1 --pty bash
"""

from __future__ import annotations

import sys

from stoker.cli import output
from stoker.cli.options.job import JOB, SUBMIT
from stoker.cli.options.submission import build_submission
from stoker.cli.submit.submit import print_warnings, report_dry_run
from stoker.client import reconnect
from stoker.client.client import Client, connect
from stoker.client.errors import UsageError

USAGE = ("run [OPTIONS] [--] COMMAND [ARG ...]", "run [OPTIONS] --pty [SHELL]")
OPTIONS = (*JOB, *SUBMIT)


def main(argv: list[str]) -> int:
    """Submit, follow, and return the job's exit code."""
    submission, args = build_submission(_with_shell(argv), "run")
    pty = bool(submission["options"].get("pty"))
    if pty and not sys.stdin.isatty():
        raise UsageError("--pty needs a terminal.")
    client = connect()
    reply = client.submit(submission)
    print_warnings(reply, args)
    if args.flag("dry_run"):
        return report_dry_run(reply)
    label = str(reply["label"])
    if args.flag("json"):
        return _wait_and_print_json(client, label)
    if not args.flag("quiet"):
        output.say(f"stoker: job {label}{_pending_reason(client, label)}")
    if pty:
        from stoker.cli.session.attach import attach

        return attach(client, label)
    from stoker.cli.session.follow import follow_to_end

    return follow_to_end(client, label, int(reply["count"]), error=bool(args.text("error")))


def _pending_reason(client: Client, label: str) -> str:
    """On a terminal, return why the job is pending."""
    if not output.is_terminal(2):
        return ""
    views = client.jobs([label], limit=1)["jobs"]
    is_pending = bool(views) and views[0]["state"] == "PENDING" and views[0].get("reason_text")
    return f" waits: {output.clean(views[0]['reason_text'])}" if is_pending else ""


def _wait_and_print_json(client: Client, label: str) -> int:
    """Wait without output, then print the job as JSON."""
    views = reconnect.wait(client, [label])["jobs"]
    output.emit(views[0] if len(views) == 1 else views)
    return max((int(view.get("result") or 0) for view in views), default=0)


def _with_shell(argv: list[str]) -> list[str]:
    """Add the user's shell as command for --pty without a command."""
    from stoker.cli.options import parse

    args = parse(OPTIONS, argv, command=True, verb="run")
    if args.flag("pty") and not args.words:
        from stoker.client.submit_environment import shell

        return [*argv, "--wrap", shell()]
    return argv
