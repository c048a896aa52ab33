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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = ("why JOB ...",)
OPTIONS = (VERBOSE,)
BY_ARRIVAL, CAME_FIRST = "arrival", "came first"
"""What goes without saying."""


def main(argv: list[str]) -> int:
    """Explain each job; without a name, the newest."""
    args = parse(OPTIONS, argv, verb="why")
    client = connect_existing(autostart=False)
    selectors = args.words or ["last"]
    replies = [_request_why(client, selector) for selector in selectors]
    if args.flag("json"):
        output.emit(replies[0] if len(replies) == 1 else replies)
        return 0
    print("\n\n".join("\n".join(explanation_lines(reply)) for reply in replies))
    return 0


def _request_why(client: Client, selector: str) -> dict[str, Any]:
    """Return why a job waits; of a sweep, why the first trial does that waits."""
    reply = client.why(selector)
    label = str(reply["label"])
    if "_" not in label or label == selector:
        return reply
    try:
        whole = client.get_sweep(selector)
    except StokerError as error:
        if error.code != "not_found":
            raise
        return reply  # an array, or a trial by its number
    sweep, waiting = whole["sweep"], [t for t in whole["trials"] if t["state"] == "PENDING"]
    if sweep.get("note") or not waiting:
        return {**reply, "label": sweep["label"], "state": sweep["state"], "sweep": sweep}
    return {**client.why(str(waiting[0]["label"])), "sweep": sweep}


def _sweep_line(sweep: dict[str, Any]) -> str:
    """Return where a sweep stands, in a line."""
    from stoker.cli.output.sweep_text import progress_text

    head = colour.paint(f"Sweep {sweep['label']}", *(("bold",) if colour.is_enabled() else ()))
    note = f": {output.clean(sweep['note'])}" if sweep.get("note") else ""
    return f"{head} is {sweep['state']} ({progress_text(sweep)}){note}."


def explanation_lines(reply: dict[str, Any]) -> list[str]:
    """Return the explanation in lines."""
    sweep = reply.get("sweep")
    if isinstance(sweep, dict):
        trial = {**reply, "sweep": None}
        return [
            _sweep_line(sweep),
            *(explanation_lines(trial) if reply["label"] != sweep["label"] else ()),
        ]
    bold = ("bold",) if colour.is_enabled() else ()
    head = colour.paint(f"Job {reply['label']}", *bold) + f" is {reply['state']}"
    if reply.get("reason"):
        head += f" ({reply['reason']})"
    text = output.clean(reply.get("text") or "")
    if any(said in text for said in _constraint_texts(reply)):
        text = ""  # the machines below say it in more detail
    lines = [f"{head}: {text}" if text else f"{head}."]
    lines += _position_lines(reply)
    for node in reply.get("nodes") or ():
        if node.get("constraints"):
            lines += _node_lines(node)
    for text in (*(reply.get("coming") or ()), *(reply.get("room") or ())):
        said = output.clean(text)
        lines.append(f"{said[:1].upper()}{said[1:]}.")
    opens = [f"  {output.clean(text)}" for text in reply.get("unblocks") or ()]
    lines += ["What would let it start:", *opens] if opens else []
    found = reply.get("foreseen") or {}
    for key in ("start", "end"):
        if found.get(key):
            lines.append(f"Expected {key}: {estimate_sentence(found[key])}.")
    if found.get("never"):
        lines.append(f"There is no estimate: {output.clean(found['never'])}.")
    return lines


def _position_lines(reply: dict[str, Any]) -> list[str]:
    """Return where it stands, by what, and who is before it."""
    place, ahead = reply.get("position"), reply.get("ahead") or []
    stands, first = reply.get("standing"), reply.get("before") or []
    if not place and not stands:
        return []
    of = f" of {stands['of']:,}" if stands and stands["of"] > 1 else ""
    where = f"It is number {place:,}{of} in the queue" if place else f"It is far back{of}"
    if stands and stands["by"] != BY_ARRIVAL:
        text = stands["figure"]["text"]
        where += f", by {stands['by']} ({stands['policy']}){f': {text}' if text else ''}"
    if all(each["why"] == CAME_FIRST for each in first):
        names = ", ".join(str(label) for label in ahead[:8]) + (", ..." if len(ahead) > 8 else "")
        return [f"{where}{f'; ahead of it: {names}' if ahead else ''}."]
    lines = [f"{where}. Ahead of it:"]
    wide = max(len(str(each["label"])) for each in first)
    lines += [f"  {each['label']:<{wide}}  {output.clean(each['why'])}" for each in first]
    more = (place - 1 if place else len(first)) - len(first)
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def _constraint_texts(reply: dict[str, Any]) -> list[str]:
    """Return what the machines say about this job."""
    constraints = [c for node in reply.get("nodes") or () for c in node.get("constraints") or ()]
    return [output.clean(c["text"]) for c in constraints if c.get("text")]


def _node_lines(node: dict[str, Any]) -> list[str]:
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
