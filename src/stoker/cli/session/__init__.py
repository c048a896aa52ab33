"""How verbs reach the daemon, and what the ones that change jobs have in common."""

from __future__ import annotations

import os
import sys

from stoker import places, wire
from stoker.cli import output
from stoker.cli.options import Args
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MAX_LISTED_TASKS = 20
"""Of so many jobs of one array at most, each is named."""


def was_used() -> bool:
    """Whether anything was ever queued here; if not, no daemon need be started to say so."""
    if os.environ.get("STOKER_SERVER"):
        return True
    paths = (places.journal_path(), places.socket_path(), places.install_path())
    return any(map(os.path.exists, paths))


def connect_without_start() -> Client:
    """Return a client for verbs that only look: a view never starts a daemon."""
    return connect(autostart=False)


def connect_existing(*, autostart: bool = True) -> Client:
    """Return a client for verbs about jobs that must exist already."""
    if not was_used():
        raise StokerError(
            "There are no jobs yet. Start with: stoker submit COMMAND",
            wire.EXIT_NOT_FOUND,
            "not_found",
        )
    return connect(autostart)


def require_selectors(args: Args, verb: str) -> list[str]:
    """Return the selectors typed, or say that some are needed."""
    if not args.words:
        raise UsageError(f"No job given. For example: stoker {verb} 42, stoker {verb} last")
    return args.words


def confirm(args: Args, client: Client, doing: str) -> bool:
    """Ask before something is done to every job, when there is a person to ask."""
    if "all" not in args.words or args.flag("yes") or args.flag("json"):
        return True
    if not (output.is_terminal(0) and output.is_terminal(2)):
        return True
    found = client.jobs(["all"], limit=1)
    count = len(found["jobs"]) + int(found.get("more") or 0)
    return ask_yes_no(f"{doing} {output.counted(count, 'job')}?")


def ask_yes_no(question: str) -> bool:
    """Ask on the terminal and return True for yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def print_result(reply: dict[str, Any], args: Args, past: str) -> int:
    """Say what was done and what was not; 1 when nothing could be done."""
    done, skipped = reply.get("done") or [], reply.get("skipped") or []
    sweeps = reply.get("sweeps") or []
    if args.flag("json"):
        output.emit(reply)
    else:
        for line in _changed_lines(done, [str(sweep) for sweep in sweeps]):
            output.say(f"stoker: {past} {line}")
        _print_unreachable(done)
        # Trials that were over, or run already, are no news of a sweep that was meant as a whole.
        _print_skipped([job for job in skipped if _group_label(job) not in map(str, sweeps)])
        if not (done or skipped or sweeps):
            output.say("stoker: nothing to do")
    return wire.EXIT_FAILED if skipped and not (done or sweeps) else wire.EXIT_OK


def _changed_lines(done: list[dict[str, Any]], sweeps: list[str]) -> list[str]:
    """Return what something was done to: sweeps and large arrays as wholes, others one by one."""
    groups: dict[str, list[dict[str, Any]]] = {sweep: [] for sweep in sweeps}
    for job in done:
        groups.setdefault(_group_label(job), []).append(job)
    lines, alone = [], []
    for whole, jobs in groups.items():
        if whole in sweeps:
            waiting = all(job["state"] == "PENDING" for job in jobs)
            count = f"{len(jobs):,} waiting" if waiting else output.counted(len(jobs), "trial")
            lines.append(f"sweep {whole}" + (f" ({count})" if jobs else ""))
        elif len(jobs) > MAX_LISTED_TASKS and whole:
            lines.append(f"{len(jobs):,} jobs of {whole}")
        else:
            alone += [str(job["label"]) for job in jobs]
    return [*lines, format_labels(alone)] if alone else lines


def _group_label(job: dict[str, Any]) -> str:
    """Return the sweep or array that a job is part of; empty if it is of none."""
    array, member, _ = str(job["label"]).partition("_")
    return array if member else ""


def _print_skipped(skipped: list[dict[str, Any]]) -> None:
    """Say what was left as it is and why; of many that are one array or sweep, in a line."""
    groups: dict[str, list[dict[str, Any]]] = {}
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


def _print_unreachable(done: list[dict[str, Any]]) -> None:
    """What was done to a job on a machine that does not answer, it learns when it does."""
    late = [job for job in done if job.get("unreachable")]
    if not late:
        return
    machines = list(dict.fromkeys(name for job in late for name in job["unreachable"]))
    where, answer = " and ".join(machines[:3]), "answers" if len(machines) == 1 else "answer"
    labels = format_labels([str(job["label"]) for job in late])
    output.say(
        f"stoker: of {labels} this takes effect when {where}"
        f" {answer} again; to abandon jobs there: stoker nodes remove {machines[0]} --force"
    )


def format_labels(labels: list[str]) -> str:
    """Write many labels short: `1-3, 7, 42_1`."""
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
