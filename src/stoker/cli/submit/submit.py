"""Submit a command, a script, a job array or many lines; print the job id.

One argument that names a file is a script; its #STOKER and #SBATCH lines are read. One argument
with spaces or shell characters is a shell command line, one plain word a program. Several arguments
run without a shell. Options of stoker come before the command. Precedence: options, STOKER_* and
SBATCH_* variables, script lines.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args
from stoker.cli.options.job import JOB, SUBMIT
from stoker.cli.options.submission import build_submission
from stoker.cli.output.progress import elapsed
from stoker.client.client import Client, connect
from stoker.wire import JsonObject

USAGE = (
    "submit [OPTIONS] COMMAND [ARG ...]",
    "submit [OPTIONS] SCRIPT",
    "submit [OPTIONS] 'shell | line'",
    "submit [OPTIONS] --each-line FILE",
)
OPTIONS = (*JOB, *SUBMIT)


def main(argv: list[str]) -> int:
    """Submit and print only the id; with --wait or --follow, wait for the end."""
    submission, args = build_submission(argv, "submit")
    client = connect()
    with elapsed(_progress_text(submission)):
        reply = client.submit(submission)
    print_warnings(reply, args)
    if args.flag("dry_run"):
        return report_dry_run(reply)
    if args.flag("json"):
        output.emit({"id": reply.get("first"), **reply})
    else:
        print(reply["label"], flush=True)
    return wait_or_follow(client, reply, args)


def _progress_text(submission: JsonObject) -> str:
    lines = submission["what"].get("lines")
    return f"submitting {output.counted(len(lines), 'job')}" if lines else "submitting"


def wait_or_follow(client: Client, reply: JsonObject, args: Args) -> int:
    """With --wait or --follow, wait for the submitted jobs; return the exit code."""
    label = str(reply["label"])
    if args.flag("follow") and not args.flag("json"):
        from stoker.cli.session.follow import follow_to_end

        return follow_to_end(client, label, int(reply["count"]), error=bool(args.text("error")))
    if args.flag("wait") or args.flag("follow"):
        from stoker.cli.session.follow import wait_to_end

        return wait_to_end(client, label)
    return 0


def print_warnings(reply: JsonObject, args: Args) -> None:
    """Print the warnings of the daemon."""
    if not args.flag("quiet"):
        for text in reply.get("warnings") or ():
            output.say(f"stoker: {text}")


def report_dry_run(reply: JsonObject) -> int:
    """Print when a job would start."""
    text = f"stoker: this would {start_text(reply)}"
    return output.report({"id": reply.get("first"), **reply}, text)


def start_text(reply: JsonObject) -> str:
    """Return `start now`, `start in 14 min`, or that there is no estimate."""
    from stoker.cli.output.times import absolute, relative

    expected = reply.get("expected_start")
    if not expected:
        return "be pending; there is no estimate of its start yet"
    distance = relative(expected)
    if distance == "now" or distance.endswith("ago"):
        nodes = " and ".join(reply.get("nodes") or ())
        return f"start now on {nodes}" if nodes else "start now"
    return f"start {distance} ({absolute(expected)})"
