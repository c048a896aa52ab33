"""List or set limits of users, unix groups and queues.

SUBJECT is a user, @GROUP, queue:NAME, or * for each user without limits of its own. A limit that is
not given stays; `none` removes it. A job that would exceed a running limit stays pending; a
submission that would exceed --max-pending or a limit of one job is refused. On a machine with one
user's daemon only queues have limits.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import table, times
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("limit", "limit SUBJECT [LIMITS]", "limit SUBJECT --clear")
LIMITS = (
    Option("--max-gpus", "N", "GPUs in use at a time"),
    Option("--max-running", "N", "running jobs"),
    Option("--max-pending", "N", "pending jobs; more are refused"),
    Option("--max-job-gpus", "N", "GPUs of one job"),
    Option("--max-time", "TIME", "time limit of one job, and of jobs that name none"),
    Option("--gpu-hours-per-week", "N", "GPU-hours in the last seven days"),
    Option("--gpu-memory", "SIZE", "GPU memory in use at a time; all of a GPU that is not shared"),
)
OPTIONS = (
    *LIMITS,
    Option("--clear", None, "remove all limits of SUBJECT"),
    Option("--no-header", None, "print no header line"),
)


def main(argv: list[str]) -> int:
    """List or set limits."""
    args = parse(OPTIONS, argv, verb="limit")
    given = {option.key: args.text(option.key) for option in LIMITS}
    given = {key: text for key, text in given.items() if text is not None}
    if len(args.words) > 1:
        raise UsageError("Give one user, @GROUP or queue:NAME at a time.")
    if given or args.flag("clear"):
        if not args.words:
            raise UsageError(
                "Name a user, @GROUP, queue:NAME or '*': stoker limit ana --max-gpus 4"
            )
        reply = connect().set_limits(args.words[0], **given, clear=args.flag("clear"))
        return output.report(reply, "\n".join(f"stoker: {line}" for line in _change_lines(reply)))
    views = connect_without_start().limits()["limits"]
    if args.words:
        views = [view for view in views if view["subject"] == args.words[0]]
    if args.flag("json"):
        return output.emit(views)
    if not views:
        subject = f"{output.clean(args.words[0])} has no limits" if args.words else "no limits"
        output.say(f"stoker: {subject} that you may see")
        return 0
    print("\n".join(_table(views, args)))
    return 0


def _change_lines(reply: JsonObject) -> list[str]:
    name, view = output.clean(reply["subject"]), reply["limits"]
    text = ", ".join(_limit_texts(view)) if view else "no limits"
    lines = [f"{name}: {text}" + ("" if reply["changed"] else "; nothing changed")]
    return lines + [f"warning: {output.clean(text)}" for text in reply["warnings"]]


def _limit_texts(view: JsonObject) -> list[str]:
    """Return the limits in words, as `policy` prints changes."""
    texts = {
        "max_gpus": "at most {} GPUs", "max_running": "{} running", "max_pending": "{} pending",
        "max_job_gpus": "{} GPUs in one job", "max_time": "{} per job",
        "gpu_hours_per_week": "{:g} GPU-hours per week", "gpu_memory": "{} MiB of GPU memory",
    }  # fmt: skip
    return [text.format(view[key]) for key, text in texts.items() if view.get(key) is not None]


def _table(views: list[JsonObject], args: Args) -> list[str]:
    names = ("GPUS", "RUNNING", "PENDING", "JOB-GPUS", "TIME", "GPU-HOURS/WEEK", "GPU-MEMORY")
    columns = [Column("SUBJECT"), *(Column(name, right=True) for name in names), Column("AGAIN")]
    return table.render(
        columns, [_row(view) for view in views], header=not args.flag("no_header"),
        width=table.terminal_width(),
    )  # fmt: skip


def _row(view: JsonObject) -> list[str]:
    """Return what is used of each limit, as `2/4`; `-`: no limit."""
    is_each = view["subject"] == "*"

    def cell(used: object, limit: str) -> str:
        value = view.get(limit)
        if value is None:
            return "-"
        value = f"{value:g}" if isinstance(value, float) else str(value)
        return value if is_each or used is None else f"{used}/{value}"

    hours = view.get("gpu_hours_used")
    return [
        output.clean(view["subject"]),
        cell(view["gpus"], "max_gpus"),
        cell(view["running"], "max_running"),
        cell(view["pending"], "max_pending"),
        cell(None, "max_job_gpus"),
        cell(None, "max_time"),
        cell(f"{hours:g}" if hours is not None else None, "gpu_hours_per_week"),
        cell(view["gpu_memory_used"], "gpu_memory"),
        times.relative(view.get("gpu_hours_free_at")),
    ]
