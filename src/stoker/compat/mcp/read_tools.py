"""Tools that change nothing."""

from __future__ import annotations

from functools import partial

from stoker.cli.output import times
from stoker.cli.screens.model import rows_of
from stoker.client.client import Client
from stoker.client.errors import NotFound
from stoker.compat.mcp import tool as t
from stoker.compat.mcp.diagnose import diagnose
from stoker.compat.mcp.job_log import MAX_LINES, log
from stoker.compat.mcp.submission import SUBMIT_PROPERTIES, submission
from stoker.compat.mcp.text import MAX_ROWS, page, pick, tidy
from stoker.compat.mcp.tool import Tool
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

JOB = t.text("job id: 42, 42_3 for task 3 of array 42, or last", maxLength=100)
SUMMARY = (
    "label", "name", "user", "state", "queue", "node", "submitted_at", "started_at", "ended_at",
    "expected_start", "expected_end", "reason_text", "cause",
)  # fmt: skip
DETAILS = (
    *SUMMARY, "command", "directory", "labels", "params", "devices", "attempt", "attempts",
    "elapsed", "time_limit", "time_left", "exit_code", "signal", "depends", "client", "training",
    "objective", "log_bytes",
)  # fmt: skip
WHY_FIELDS = (
    "label", "name", "state", "reason", "text", "position", "standing", "unblocks", "coming",
    "room", "expected_start", "expected_end",
)  # fmt: skip
MAX_AHEAD = 10
MAX_POINTS = 40
MAX_METRICS = 10


def tools(client: Client) -> list[Tool]:
    """Return the tools that every server has."""
    return [
        Tool("queue", "List running, pending and newly failed jobs, in starting order.",
             partial(queue, client), {
                 "state": t.text("only these states: RUNNING,PENDING,FAILED"),
                 "user": t.text("only jobs of this user"),
                 "queue": t.text("only jobs of this queue"),
                 "text": t.text("words that label, name, user, %label or command contain"),
                 "offset": t.whole("skip this many jobs"),
             }),
        Tool("job", "Show one job: command, request, state, progress, attempts.",
             partial(job, client), {"job": JOB}, ("job",)),
        Tool("log", "Read the output of a job: its end, lines with a text, or its first error.",
             partial(log, client), {
                 "job": JOB,
                 "lines": t.whole("number of lines (100)", 1, MAX_LINES),
                 "find": t.text("only lines that contain this text, whatever its case"),
                 "around_error": t.switch("the lines around the first error instead of the end"),
                 "attempt": t.whole("attempt number; default: the last", 1),
                 "stream": t.text("err: the standard error, if it has its own file",
                                  enum=["out", "err"]),
             }, ("job",)),
        Tool("why", "Explain why a job is pending, what is ahead of it, what would let it start.",
             partial(why, client), {"job": JOB}, ("job",)),
        Tool("eta", "Predict when jobs start and end, with an 80 % range and its basis.",
             partial(eta, client), {"jobs": t.several("default: all", JOB)}),
        Tool("gpus", "List GPUs: use, memory, jobs, processes of others.",
             partial(gpus, client), {"state": t.text("only this state, e.g. free")}),
        Tool("nodes", "List nodes: state, free resources, jobs.", partial(nodes, client), {}),
        Tool("history", "List finished jobs, newest last.", partial(history, client), {
            "state": t.text("only these states: FAILED,TIMEOUT"),
            "user": t.text("only jobs of this user"),
            "name": t.text("only jobs with this name"),
            "hours": t.number("only jobs that ended in the last hours"),
        }),
        Tool("sweep", "Show a sweep with its best trials; without a sweep, list all.",
             partial(sweep, client), {"sweep": t.text("id or name of a sweep")}),
        Tool("metrics", "Read the metrics that a job has reported, downsampled.",
             partial(metrics, client), {
                 "job": JOB, "names": t.several("only these metrics", t.text("name")),
             }, ("job",)),
        Tool("diagnose", "Find out what is wrong with a job: state, cause, log, use, hints.",
             partial(diagnose, client), {"job": JOB}, ("job",)),
        Tool("plan_submit", "Check a submission without queueing it: is it possible, when and "
             "where would it start.", partial(plan_submit, client), SUBMIT_PROPERTIES,
             ("command",)),
    ]  # fmt: skip


def queue(client: Client, given: JsonObject) -> JsonObject:
    """List jobs; the columns tell which, their views why they wait."""
    offset = given.get("offset", 0)
    reply = client.columns(
        state=given.get("state"), user=given.get("user"), queue=given.get("queue"),
        text=given.get("text"), offset=offset, limit=MAX_ROWS,
    )  # fmt: skip
    ids = [row["id"] for row in rows_of(reply)]
    views = client.jobs([f"{id}-{id}" for id in ids])["jobs"] if ids else []
    return {
        "jobs": summaries(views), "more": max(int(reply["total"]) - offset - len(ids), 0),
        "counts": reply["counts"],
    }  # fmt: skip


def summaries(views: Iterable[JsonObject]) -> list[JsonObject]:
    """Return jobs in a few fields each."""
    return [summary(view) for view in views]


def summary(view: JsonObject, fields: Sequence[str] = SUMMARY) -> JsonObject:
    """Return a job in a few fields."""
    request = {name: each for name, each in view["request"].items() if each}
    return {**pick(view, fields), "request": tidy(request)}


def one_job(client: Client, selector: str) -> JsonObject:
    """Return the view of one job; the first of an array."""
    views = client.jobs([selector], limit=1)["jobs"]
    if not views:
        raise NotFound(f"There is no job {tidy(selector, 100)!r}.")
    return dict(views[0])


def job(client: Client, given: JsonObject) -> JsonObject:
    """Show one job."""
    view = one_job(client, given["job"])
    return {**summary(view, DETAILS), "usage": tidy(client.usage(f"{view['id']}-{view['id']}"))}


def why(client: Client, given: JsonObject) -> JsonObject:
    """Explain a pending job."""
    reply = client.why(given["job"])
    shown = pick(reply, WHY_FIELDS)
    ahead, fits = reply.get("before") or reply.get("ahead") or [], reply.get("nodes") or []
    return {
        **shown,
        "ahead": tidy(ahead[:MAX_AHEAD]), "more_ahead": max(len(ahead) - MAX_AHEAD, 0),
        "nodes": tidy(fits[:MAX_AHEAD]), "more_nodes": max(len(fits) - MAX_AHEAD, 0),
    }  # fmt: skip


def eta(client: Client, given: JsonObject) -> JsonObject:
    """Predict starts and ends."""
    reply = client.eta(given.get("jobs") or (), limit=MAX_ROWS)
    fields = ("label", "name", "user", "state", "start", "end", "never")
    return {"jobs": [pick(view, fields) for view in reply["jobs"]], "more": reply["more"]}


def gpus(client: Client, given: JsonObject) -> JsonObject:
    """List GPUs; of many the free ones first."""
    views = client.gpus()["gpus"]
    counts: dict[str, int] = {}
    for view in views:
        counts[view["state"]] = counts.get(view["state"], 0) + 1
    chosen = [view for view in views if given.get("state") in (None, view["state"])]
    chosen.sort(key=lambda view: view["state"] != "free")
    fields = ("node", "id", "model", "memory", "memory_used", "utilization", "temperature",
              "power", "state", "drained", "jobs", "foreign_process")  # fmt: skip
    return {**page(chosen, fields, "gpus"), "counts": counts}


def nodes(client: Client, given: JsonObject) -> JsonObject:
    """List nodes."""
    fields = ("name", "kind", "state", "why", "notes", "jobs", "resources", "allocation")
    return page(client.nodes()["nodes"], fields, "nodes")


def history(client: Client, given: JsonObject) -> JsonObject:
    """List finished jobs."""
    import time

    hours = given.get("hours")
    reply = client.history(
        (), state=given.get("state"), user=given.get("user"), name=given.get("name"),
        since=times.iso(time.time() - hours * 3600) if hours is not None else None, limit=MAX_ROWS,
    )  # fmt: skip
    return {"jobs": summaries(reply["jobs"]), "older": reply.get("more") or 0}


def sweep(client: Client, given: JsonObject) -> JsonObject:
    """Show a sweep, or list all."""
    fields = ("label", "name", "user", "state", "method", "metric", "goal", "counts", "total",
              "best", "max_running", "note", "eta")  # fmt: skip
    if "sweep" not in given:
        return page(client.sweeps(all=True)["sweeps"][::-1], fields, "sweeps")
    reply = client.get_sweep(given["sweep"])
    sign = -1 if reply["sweep"]["goal"] == "maximize" else 1
    measured = [trial for trial in reply["trials"] if trial["value"] is not None]
    measured.sort(key=lambda trial: sign * trial["value"])
    failed = [trial for trial in reply["trials"] if trial["state"] == "FAILED"]
    trial_fields = ("label", "state", "params", "value", "step", "elapsed", "cause")
    return {
        **pick(reply["sweep"], fields),
        "best_trials": [pick(trial, trial_fields) for trial in measured[:MAX_ROWS]],
        "more_trials": max(len(measured) - MAX_ROWS, 0),
        "failed_trials": [pick(trial, trial_fields) for trial in failed[:5]],
    }


def metrics(client: Client, given: JsonObject) -> JsonObject:
    """Read metrics."""
    names = ",".join(given.get("names") or ())
    reply = client.metrics(given["job"], names=names or None, points=MAX_POINTS)
    shown = list(reply["series"])[:MAX_METRICS]
    return {
        "job": reply["label"],
        "names": tidy(reply["names"]),
        "columns": ["step", "value", "unix time"],
        "series": {tidy(name, 80): reply["series"][name] for name in shown},
        "summary": {tidy(name, 80): reply["summary"].get(name) for name in shown},
        "more": len(reply["series"]) - len(shown),
    }


def plan_submit(client: Client, given: JsonObject) -> JsonObject:
    """Check a submission."""
    reply = client.submit({**submission(given), "dry_run": True})
    return pick(reply, ("count", "expected_start", "nodes", "warnings"))
