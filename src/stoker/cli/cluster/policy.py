"""Show or set the scheduling policy of queues: order, backfill and preemption.

Without NAME, print the policy of each queue and since when it applies; `*` is the default of all
queues without their own. With NAME, set the policy of one queue or the default. Running jobs are
not affected. Durations are written as 90s, 20m, 6h or 7d.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, Args, Option, parse
from stoker.cli.output import colour, table, times
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = (
    "policy [--list]",
    "policy NAME [PARAMETER=VALUE ...] [--queue QUEUE]",
    "policy --reset [--queue QUEUE]",
)
OPTIONS = (
    Option("-p/--queue", "QUEUE", "only this queue (default: all queues without their own policy)"),
    Option("--list", None, "list the available policies"),
    Option("--reset", None, "return to the configured policy (for a queue: to the default)"),
    Option("--no-header", None, "print no header line"),
    VERBOSE,
)
DURATION_PARAMETERS = frozenset(("floor", "quantum", "patience"))
DEFAULT = "*"


def main(argv: list[str]) -> int:
    """Show or set policies."""
    args = parse(OPTIONS, argv, verb="policy")
    queue = args.text("queue")
    if queue is not None and not queue.strip():  # an unset shell variable
        raise UsageError("--queue takes the name of a queue; leave it out for all of them.")
    if args.flag("reset"):
        if args.words or args.flag("list"):
            raise UsageError("--reset takes no policy: stoker policy --reset [--queue Q]")
        return _set_policy("", {}, args)
    if args.words:
        if args.flag("list"):
            raise UsageError("Write stoker policy --list, or stoker policy NAME to set one.")
        return _set_policy(*_parse_policy(args.words), args)
    reply = connect_without_start().policies()
    if args.flag("json"):
        return output.emit(
            reply["policies"] if args.flag("list") else _filter_queue(reply["queues"], args)
        )
    print("\n".join(_policy_lines(reply, args) if args.flag("list") else _queue_lines(reply, args)))
    if queue and not args.flag("list") and not any(v["queue"] == queue for v in reply["queues"]):
        name = output.clean(queue)
        output.say(f"stoker: queue '{name}' has no policy of its own; it uses {DEFAULT}")
    return 0


def _parse_policy(words: list[str]) -> tuple[str, dict[str, object]]:
    """Return name and parameters of a policy: `planner quantum=20m hysteresis=3`."""
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise UsageError(
            "No policy given. For example: stoker policy planner quantum=20m"
            if not names
            else f"Give one policy, not {output.clean(' and '.join(names[:3]))}."
        )
    parameters: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        if key in parameters:
            raise UsageError(f"{output.clean(key)} is given twice.")
        parameters[key] = value
    return names[0], parameters


# -- setting --------------------------------------------------------------------------------


def _set_policy(name: str, parameters: dict[str, object], args: Args) -> int:
    reply = connect().choose_policy(name, parameters, args.text("queue") or DEFAULT)
    return output.report(reply, "\n".join(f"stoker: {line}" for line in change_lines(reply)))


def change_lines(reply: JsonObject) -> list[str]:
    """Return the lines about a change of policy."""
    queue, after = reply["queue"], _policy_text(reply["after"])
    where = "all queues" if queue == DEFAULT else f"queue {queue}"
    kept = reply.get("kept") or []
    if kept:
        where += f" but {', '.join(kept)}"
    if not reply["changed"]:
        use = "use" if queue == DEFAULT else "uses"
        return [f"{where} already {use} {after}; nothing changed"]
    waiting = int(reply["waiting"])
    reordered = (
        f"{output.counted(waiting, 'pending job')} reordered" if waiting else "no pending jobs"
    )
    before = _policy_text(reply["before"])
    lines = [f"{where}: {before} → {after}; {reordered}; running jobs are unaffected"]
    if reply.get("preempts"):
        lines.append("from now on jobs that can be resumed may be preempted")
    if not reply.get("known", True) and reply["after"]["own"]:
        lines.append(f"queue '{queue}' has no jobs and is not defined yet")
    return lines


def _policy_text(choice: JsonObject) -> str:
    """Return a policy's name, the policy in effect and the changed parameters."""
    text = str(choice["chosen"])
    if choice["policy"] != text:
        text += f" (now {choice['policy']})"
    changed = _parameters(choice["changed"])
    return f"{text} with {changed}" if changed else text


# -- showing --------------------------------------------------------------------------------


def _filter_queue(views: list[JsonObject], args: Args) -> list[JsonObject]:
    """Return the selected queue; the default for a queue without its own policy."""
    queue = args.text("queue")
    if queue is None:
        return views
    selected = [view for view in views if view["queue"] == queue]
    return selected or [view for view in views if view["queue"] == DEFAULT]


def _queue_lines(reply: JsonObject, args: Args) -> list[str]:
    columns = [
        Column("QUEUE"), Column("POLICY"), Column("SINCE"), Column("PENDING", right=True),
        Column("RUNNING", right=True), Column("PARAMETERS"), Column("ABOUT", cut=True),
    ]  # fmt: skip
    views = _filter_queue(reply["queues"], args)
    rows = [_row(view, args.flag("verbose")) for view in views]
    lines = _table(columns, rows, args)
    if not args.flag("no_header") and not args.flag("verbose") and output.is_terminal(1):
        hint = "All policies: stoker policy --list   Set one: stoker policy NAME [--queue QUEUE]"
        lines += ["", colour.paint(hint, "dim")]
    return lines


def _row(view: JsonObject, verbose: bool) -> list[str]:
    policy = str(view["policy"])
    if view["chosen"] != policy:
        policy += f" ({view['chosen']})"
    about = view["why"] or view["about"]
    if view["strict"]:
        about = f"strict queue without backfill; otherwise {about}"
    is_default = view["queue"] == DEFAULT
    counts = ["", ""] if is_default else [str(view["waiting"]), str(view["running"])]
    parameters = view["parameters"]
    if not verbose:  # hide what is switched off, unless it was set
        changed = view["changed"]
        parameters = {k: value for k, value in parameters.items() if value or k in changed}
    since = times.list_time(view.get("since"), verbose) or "-"
    return [view["queue"], policy, since, *counts, _parameters(parameters) or "-", about]


def _policy_lines(reply: JsonObject, args: Args) -> list[str]:
    columns = [Column("POLICY"), Column("ABOUT", cut=True)]
    rows = [[policy["name"], policy["about"]] for policy in reply["policies"]]
    if args.flag("verbose"):
        columns.insert(1, Column("PARAMETERS"))
        for row, policy in zip(rows, reply["policies"], strict=True):
            row.insert(1, _parameters(policy["parameters"]) or "-")
    return _table(columns, rows, args)


def _table(columns: list[Column], rows: list[list[str]], args: Args) -> list[str]:
    header = not args.flag("no_header")
    return table.render(columns, rows, header=header, width=table.terminal_width())


def _parameters(values: dict[str, float]) -> str:
    """Return parameters as they are typed."""
    return " ".join(f"{name}={_parameter_text(name, value)}" for name, value in values.items())


def _parameter_text(name: str, value: float) -> str:
    if name not in DURATION_PARAMETERS:
        return f"{value:g}"
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if value and value % seconds == 0:
            return f"{value / seconds:g}{unit}"
    return f"{value:g}s" if value else "0"
