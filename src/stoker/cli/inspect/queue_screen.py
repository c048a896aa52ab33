"""The queue as one screen: clock and counts, GPUs, failures, then as many jobs as fit."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.cluster.gpus import owners
from stoker.cli.inspect.queue import failure_heading, is_failure, job_count
from stoker.cli.output import colour, table
from stoker.cli.output.job_table import counts_text, queue_table
from stoker.cli.session import format_labels
from stoker.wire import JsonObject

MAX_FAILURES = 3
"""Failures that are shown with a line of their output; others are counted."""
MIN_JOB_LINES = 5
"""Lines that failures leave for jobs."""


def watch_screen(
    reply: JsonObject,
    gpus: list[JsonObject],
    *,
    clock: str,
    width: int,
    height: int,
    verbose: bool = False,
) -> list[str]:
    """Return the lines of the screen, `height` of them at most."""
    views: list[JsonObject] = reply["jobs"]
    title = table.shorten(f"{clock}  {counts_text(reply.get('counts') or {})}", width)
    top = [colour.paint(title, "bold")]
    if gpus:
        top.append(table.shorten(gpu_line(gpus), width))
    max_lines = max(height - len(top) - MIN_JOB_LINES, 0)
    top += _failure_lines([view for view in views if is_failure(view)], width, max_lines)
    jobs = [view for view in views if not is_failure(view)]
    rows = _job_lines(jobs, reply, width, height - len(top) - 1, verbose)
    return [*top, "", *rows][:height] if rows else top[:height]


def gpu_line(gpus: list[JsonObject]) -> str:
    """Return `GPUs: 1 of 8 free (6); ana 0-2; bo 3,5`; of several nodes `box 1/8, gpu1 0/4`."""
    free = [gpu for gpu in gpus if gpu["state"] == "free"]
    head = f"GPUs: {len(free)} of {len(gpus)} free"
    nodes = list(dict.fromkeys(str(gpu["node"]) for gpu in gpus))
    if len(nodes) > 1:
        counts = (
            f"{name} {sum(gpu['node'] == name for gpu in free)}"
            f"/{sum(gpu['node'] == name for gpu in gpus)}"
            for name in nodes
        )
        return f"{head}: {', '.join(counts)}"
    used: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu["state"] != "free":
            used.setdefault(owners(gpu) or str(gpu["state"]), []).append(str(gpu["id"]))
    free_ids = [str(gpu["id"]) for gpu in free]
    parts = [head + (f" ({_gpu_ids(free_ids)})" if free else "")]
    parts += [f"{user}: {_gpu_ids(ids)}" for user, ids in used.items()]
    return "; ".join(parts)


def _gpu_ids(ids: list[str]) -> str:
    return format_labels(ids).replace(", ", ",")


def _failure_lines(failures: list[JsonObject], width: int, max_lines: int) -> list[str]:
    """Return the newest failures, each with the last line of its output, and count the others."""
    lines: list[str] = []
    shown = 0
    for view in failures[:MAX_FAILURES]:
        failure = [failure_heading(view, width)]
        tail = [line for line in view.get("tail") or () if line.strip()]
        failure += [table.shorten(f"    | {output.clean(line)}", width) for line in tail[-1:]]
        if len(lines) + len(failure) + (len(failures) > shown + 1) > max_lines:
            break
        lines += failure
        shown += 1
    hidden = sum(map(job_count, failures[shown:]))
    noun = "more failure" if shown else "failure"
    return [*lines, f"… {output.counted(hidden, noun)}"] if hidden else lines


def _job_lines(
    jobs: list[JsonObject], reply: JsonObject, width: int, max_lines: int, verbose: bool
) -> list[str]:
    """Return the table of the jobs that fit, and count the others."""
    sweeps = reply.get("sweeps") or []
    more = int(reply.get("more") or 0)
    count = len(jobs) + len(sweeps)
    if count + bool(more) > max_lines - 1:
        kept = max(max_lines - 2 - len(sweeps), 0)
        more += sum(map(job_count, jobs[kept:])) + len(sweeps[max(max_lines - 2, 0) :])
        jobs, sweeps = jobs[:kept], sweeps[: max(max_lines - 2, 0)]
    columns, rows = queue_table(jobs, sweeps, verbose=verbose, width=width)
    lines = table.render(columns, rows, width=width) if rows else []
    return [*lines, f"… {output.counted(more, 'more job')}"] if more else lines
