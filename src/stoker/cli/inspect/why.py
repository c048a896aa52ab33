"""Explain why a job is pending, per node and constraint, and when it is expected to start.

Prints the job's queue position and what decides it, the jobs ahead of it, and what would let it
start. For a running job: which jobs may preempt it. For a sweep: why it does not progress, or why
its first pending trial does not start.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, parse
from stoker.cli.output import colour
from stoker.cli.output.estimates import estimate_sentence
from stoker.cli.session import connect_existing
from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.wire import JsonObject

USAGE = ("why JOB ...",)
OPTIONS = (VERBOSE,)
BY_ARRIVAL, CAME_FIRST = "arrival", "came first"
"""Values of the reply that need no explanation."""


def main(argv: list[str]) -> int:
    """Explain each job, by default the newest."""
    args = parse(OPTIONS, argv, verb="why")
    client = connect_existing(autostart=False)
    selectors = args.words or ["last"]
    replies = [_request_why(client, selector) for selector in selectors]
    if args.flag("json"):
        return output.emit(replies[0] if len(replies) == 1 else replies)
    print("\n\n".join("\n".join(explanation_lines(reply)) for reply in replies))
    return 0


def _request_why(client: Client, selector: str) -> JsonObject:
    """Return why a job is pending; for a sweep, why its first pending trial is."""
    reply = client.why(selector)
    label = str(reply["label"])
    if "_" not in label or label == selector:
        return reply
    try:
        details = client.get_sweep(selector)
    except StokerError as error:
        if error.code != "not_found":
            raise
        return reply  # an array, or a trial by its number
    sweep, pending = details["sweep"], [t for t in details["trials"] if t["state"] == "PENDING"]
    if sweep.get("note") or not pending:
        return {**reply, "label": sweep["label"], "state": sweep["state"], "sweep": sweep}
    return {**client.why(str(pending[0]["label"])), "sweep": sweep}


def _sweep_line(sweep: JsonObject) -> str:
    """Return state and progress of a sweep in one line."""
    from stoker.cli.output.sweep_text import progress_text

    head = colour.paint(f"Sweep {sweep['label']}", "bold")
    note = f": {output.clean(sweep['note'])}" if sweep.get("note") else ""
    return f"{head} is {sweep['state']} ({progress_text(sweep)}){note}."


def explanation_lines(reply: JsonObject) -> list[str]:
    """Return the lines of an explanation."""
    sweep = reply.get("sweep")
    if isinstance(sweep, dict):
        trial = {**reply, "sweep": None}
        return [
            _sweep_line(sweep),
            *(explanation_lines(trial) if reply["label"] != sweep["label"] else ()),
        ]
    head = colour.paint(f"Job {reply['label']}", "bold") + f" is {reply['state']}"
    if reply.get("reason"):
        head += f" ({reply['reason']})"
    text = output.clean(reply.get("text") or "")
    if any(constraint in text for constraint in _constraint_texts(reply)):
        text = ""  # the nodes below have more detail
    lines = [f"{head}: {text}" if text else f"{head}."]
    lines += _position_lines(reply)
    for node in reply.get("nodes") or ():
        if node.get("constraints"):
            lines += _node_lines(node)
    for text in (*(reply.get("coming") or ()), *(reply.get("room") or ())):
        sentence = output.clean(text)
        lines.append(f"{sentence[:1].upper()}{sentence[1:]}.")
    opens = [f"  {output.clean(text)}" for text in reply.get("unblocks") or ()]
    lines += ["What would let it start:", *opens] if opens else []
    for alarm in reply.get("alarms") or ():
        from stoker.cli.output.alarm_text import alarm_line

        lines.append(f"{alarm_line(alarm)}; try: {output.clean(alarm['action'])}")
    forecast = reply.get("foreseen") or {}
    for key in ("start", "end"):
        if forecast.get(key):
            lines.append(f"Expected {key}: {estimate_sentence(forecast[key])}.")
    if forecast.get("never"):
        lines.append(f"There is no estimate: {output.clean(forecast['never'])}.")
    return lines


def _position_lines(reply: JsonObject) -> list[str]:
    """Return the queue position, what decides it, and the jobs ahead."""
    position, ahead = reply.get("position"), reply.get("ahead") or []
    standing, first = reply.get("standing"), reply.get("before") or []
    if not position and not standing:
        return []
    of = f" of {standing['of']:,}" if standing and standing["of"] > 1 else ""
    where = f"It is number {position:,}{of} in the queue" if position else f"It is far back{of}"
    if standing and standing["by"] != BY_ARRIVAL:
        text = standing["figure"]["text"]
        where += f", by {standing['by']} ({standing['policy']}){f': {text}' if text else ''}"
    if all(job["why"] == CAME_FIRST for job in first):
        names = ", ".join(str(label) for label in ahead[:8]) + (", ..." if len(ahead) > 8 else "")
        return [f"{where}{f'; ahead of it: {names}' if ahead else ''}."]
    lines = [f"{where}. Ahead of it:"]
    width = max(len(str(job["label"])) for job in first)
    lines += [f"  {job['label']:<{width}}  {output.clean(job['why'])}" for job in first]
    more = (position - 1 if position else len(first)) - len(first)
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def _constraint_texts(reply: JsonObject) -> list[str]:
    """Return the constraint texts of all nodes."""
    constraints = [c for node in reply.get("nodes") or () for c in node.get("constraints") or ()]
    return [output.clean(c["text"]) for c in constraints if c.get("text")]


def _node_lines(node: JsonObject) -> list[str]:
    never = (
        "" if node.get("fits_empty", True) else " (the job would not fit even on the empty node)"
    )
    lines = [f"  {output.clean(node['node'])}{never}"]
    for constraint in node.get("constraints") or ():
        text = constraint.get("text") or (
            f"needs {constraint.get('needs')}, {constraint.get('free')} is free"
        )
        lines.append(f"    {constraint['name']}: {output.clean(text)}")
        details = constraint.get("details") or []
        lines += [f"      {output.clean(detail)}" for detail in details[:32]]
    return lines
