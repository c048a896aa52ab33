"""Connect to the daemon; selectors, confirmation and result of verbs that change jobs."""

from __future__ import annotations

import os
import sys

from stoker import places, wire
from stoker.cli import output
from stoker.cli.options import Args, parse
from stoker.client.client import Client, connect
from stoker.client.errors import NotFound, UsageError
from stoker.client.route import system_socket
from stoker.wire import JsonObject

NOTHING_QUEUED = "nothing queued. Start with: stoker submit COMMAND"
MAX_LISTED_TASKS = 20
"""Arrays with more changed jobs than this are one line."""


def has_state() -> bool:
    """Return False if nothing was ever queued, so that no daemon is needed to report that."""
    if os.environ.get("STOKER_SERVER") or system_socket():
        return True
    paths = (places.journal_path(), places.socket_path(), places.install_path())
    return any(map(os.path.exists, paths))


def connect_without_start() -> Client:
    """Return a client for verbs that only read: they never start a daemon."""
    return connect(autostart=False)


def connect_existing(*, autostart: bool = True) -> Client:
    """Return a client for verbs about existing jobs; raise if there are none."""
    if not has_state():
        raise NotFound("There are no jobs yet. Start with: stoker submit COMMAND")
    return connect(autostart)


def require_selectors(args: Args, verb: str) -> list[str]:
    """Return the selectors; raise if there are none."""
    if not args.words:
        raise UsageError(f"No job given. For example: stoker {verb} 42, stoker {verb} last")
    return args.words


def change_jobs(verb: str, argv: list[str], participle: str) -> int:
    """Run a verb without options on the selected jobs; return the exit code."""
    args = parse((), argv, verb=verb)
    select = require_selectors(args, verb)
    return print_result(connect_existing().act(verb, select), args, participle)


def confirm(args: Args, client: Client, action: str) -> bool:
    """On a terminal, ask before all jobs are changed."""
    if "all" not in args.words or not may_ask(args):
        return True
    reply = client.jobs(["all"], limit=1)
    count = len(reply["jobs"]) + int(reply.get("more") or 0)
    return ask_yes_no(f"{action} {output.counted(count, 'job')}?")


def may_ask(args: Args) -> bool:
    """Return True on a terminal, unless --yes or --json is given."""
    is_silent = args.flag("yes") or args.flag("json")
    return not is_silent and output.is_terminal(0) and output.is_terminal(2)


def ask_yes_no(question: str) -> bool:
    """Ask on the terminal; return True for yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def print_result(reply: JsonObject, args: Args, participle: str) -> int:
    """Print which jobs were changed and which were not; return 1 if none was."""
    done, skipped = reply.get("done") or [], reply.get("skipped") or []
    sweeps = reply.get("sweeps") or []
    if args.flag("json"):
        output.emit(reply)
    else:
        for line in _changed_lines(done, [str(sweep) for sweep in sweeps]):
            output.say(f"stoker: {participle} {line}")
        _print_unreachable(done)
        # For a whole sweep, trials that were not changed are not worth a message.
        _print_skipped([job for job in skipped if _group_label(job) not in map(str, sweeps)])
        if not (done or skipped or sweeps):
            output.say("stoker: nothing to do")
    return wire.EXIT_FAILED if skipped and not (done or sweeps) else wire.EXIT_OK


def _changed_lines(done: list[JsonObject], sweeps: list[str]) -> list[str]:
    """Return the changed jobs as text: sweeps and large arrays as a whole, others by label."""
    groups: dict[str, list[JsonObject]] = {sweep: [] for sweep in sweeps}
    for job in done:
        groups.setdefault(_group_label(job), []).append(job)
    lines, labels = [], []
    for group, jobs in groups.items():
        if group in sweeps:
            all_pending = all(job["state"] == "PENDING" for job in jobs)
            count = f"{len(jobs):,} waiting" if all_pending else output.counted(len(jobs), "trial")
            lines.append(f"sweep {group}" + (f" ({count})" if jobs else ""))
        elif len(jobs) > MAX_LISTED_TASKS and group:
            lines.append(f"{len(jobs):,} jobs of {group}")
        else:
            labels += [str(job["label"]) for job in jobs]
    return [*lines, format_labels(labels)] if labels else lines


def _group_label(job: JsonObject) -> str:
    """Return the label of a job's sweep or array; empty if it has none."""
    array, member, _ = str(job["label"]).partition("_")
    return array if member else ""


def _print_skipped(skipped: list[JsonObject]) -> None:
    """Print which jobs were not changed and why; one line per large array or sweep."""
    groups: dict[str, list[JsonObject]] = {}
    for job in skipped:
        groups.setdefault(_group_label(job) or f"job {job['label']}", []).append(job)
    lines = []
    for array, jobs in groups.items():
        if len(jobs) > 3:
            first = jobs[0]
            lines.append(
                f"{len(jobs):,} jobs of {array} not changed; {first['label']}: {first['why']}"
            )
        else:
            lines += [f"job {job['label']} not changed: {job['why']}" for job in jobs]
    for line in lines[:20]:
        output.say(f"stoker: {line}")
    if len(lines) > 20:
        output.say(f"stoker: ... and {len(lines) - 20:,} more not changed")


def _print_unreachable(done: list[JsonObject]) -> None:
    """Print which changes take effect only when a node is reachable again."""
    delayed = [job for job in done if job.get("unreachable")]
    if not delayed:
        return
    nodes = list(dict.fromkeys(name for job in delayed for name in job["unreachable"]))
    where, answer = " and ".join(nodes[:3]), "answers" if len(nodes) == 1 else "answer"
    labels = format_labels([str(job["label"]) for job in delayed])
    output.say(
        f"stoker: of {labels} this takes effect when {where}"
        f" {answer} again; to abandon jobs there: stoker nodes remove {nodes[0]} --force"
    )


def format_labels(labels: list[str]) -> str:
    """Return labels with ranges: `1-3, 7, 42_1`."""
    parts: list[str] = []
    start = end = None
    for label in labels:
        number = int(label) if label.isdecimal() else None
        if number is not None and end is not None and number == end + 1:
            end = number
        else:
            start = end = number
            parts.append("")
        parts[-1] = label if start is None or start == end else f"{start}-{end}"
    text = ", ".join(parts[:50])
    return text + (f" and {len(parts) - 50:,} more" if len(parts) > 50 else "")
