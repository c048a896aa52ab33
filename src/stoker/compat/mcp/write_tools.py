"""Tools that change something, with --write only."""

from __future__ import annotations

import re

from stoker.client.client import Client
from stoker.compat.mcp import tool as t
from stoker.compat.mcp.limits import CLIENT, WriteLimits, gpus_of, minutes
from stoker.compat.mcp.submission import OPTION_PROPERTIES, SUBMIT_PROPERTIES, submission
from stoker.compat.mcp.text import MAX_ROWS, pick
from stoker.compat.mcp.tool import InvalidArguments, Tool
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEY = t.text(
    "a new name of yours for this change: a call that is repeated with it changes nothing more",
    maxLength=100,
)
JOBS = t.several("ids of jobs: 42, or 42_3 for task 3 of array 42; 42 means the whole array",
                 t.text("job id", maxLength=40), 1)  # fmt: skip
JOB_ID = re.compile(r"[0-9]{1,15}(_[0-9]{1,9})?")
MAX_REMEMBERED = 1000
MAX_CHANGED = 1000
SWEEP_PROPERTIES = {
    "command": t.text("shell command line; {lr} stands for the value of parameter lr"),
    "parameters": {
        "type": "object",
        "description": 'values per parameter: {"lr": {"values": [0.1, 0.01]}}, or '
        '{"lr": {"min": 1e-5, "max": 0.1, "distribution": "log_uniform_values"}}',
    },
    "method": t.text("how trials are chosen", enum=["grid", "random", "sobol", "tpe"]),
    "samples": t.whole("number of trials; all combinations of a grid if not given", 1, 100_000),
    "minimize": t.text("metric to minimize"),
    "maximize": t.text("metric to maximize"),
    "max_running": t.whole("trials at a time", 1, 100_000),
    **{name: each for name, each in OPTION_PROPERTIES.items() if name != "after"},
}


def tools(client: Client, limits: WriteLimits) -> list[Tool]:
    """Return the tools of a server that may change jobs."""
    changes = Changes(client, limits)

    def tool(
        name: str, description: str, call: Callable[[JsonObject], JsonObject],
        properties: dict[str, JsonObject], required: tuple[str, ...], *, destructive: bool = False,
    ) -> Tool:  # fmt: skip
        return Tool(
            name, description, changes.once(name, call), {**properties, "key": KEY},
            (*required, "key"), writes=True, destructive=destructive,
        )  # fmt: skip

    return [
        tool("submit", "Queue a job, or an array of jobs.", changes.submit, SUBMIT_PROPERTIES,
             ("command",)),
        tool("sweep_submit", "Queue a parameter sweep: one job per set of parameters.",
             changes.sweep, SWEEP_PROPERTIES, ("command", "parameters")),
        tool("cancel", "Cancel jobs: running ones are ended.", changes.act("cancel"),
             {"jobs": JOBS}, ("jobs",), destructive=True),
        tool("hold", "Hold pending jobs: they do not start.", changes.act("hold"),
             {"jobs": JOBS}, ("jobs",)),
        tool("release", "Release held jobs.", changes.act("release"), {"jobs": JOBS}, ("jobs",)),
        tool("retry", "Queue finished jobs again.", changes.retry, {"jobs": JOBS}, ("jobs",)),
        tool("edit", "Change pending jobs, or the time limit and priority of running ones.",
             changes.edit, {
                 "jobs": JOBS, "name": t.text("new name"),
                 "hours": t.number("new time limit", 87_600),
                 "priority": t.whole("new priority; larger starts earlier", -1000, 1000),
             }, ("jobs",)),
    ]  # fmt: skip


class Changes:
    """The changes of one server, within its limits."""

    def __init__(self, client: Client, limits: WriteLimits) -> None:
        self.client, self.limits = client, limits
        self._replies: dict[str, tuple[object, JsonObject]] = {}
        """By key: what was requested, and the result."""

    def once(
        self, name: str, call: Callable[[JsonObject], JsonObject]
    ) -> Callable[[JsonObject], JsonObject]:
        """Return a function that makes each change once per key."""

        def change(given: JsonObject) -> JsonObject:
            request, key = (name, given), given["key"]
            if not key.strip():
                raise InvalidArguments("key must not be empty.")
            earlier = self._replies.get(key)
            if earlier is not None:
                if earlier[0] != request:
                    raise InvalidArguments("This key was used for another change; take a new one.")
                return earlier[1]
            reply = call(given)
            self._replies[key] = request, reply
            if len(self._replies) > MAX_REMEMBERED:
                del self._replies[next(iter(self._replies))]
            return reply

        return change

    def submit(self, given: JsonObject) -> JsonObject:
        """Queue jobs."""
        body = self._within_limits(submission(given), given)
        count = 1
        if "array" in given:
            count = int(self.client.submit({**body, "dry_run": True})["count"])
        self.limits.check_size(self.client, count, count * given.get("gpus", 0))
        return pick(self.client.submit(body), ("label", "count", "warnings"))

    def sweep(self, given: JsonObject) -> JsonObject:
        """Queue a sweep."""
        if "minimize" in given and "maximize" in given:
            raise InvalidArguments("Give minimize or maximize, not both.")
        definition: JsonObject = {
            "line": given["command"], "parameters": given["parameters"],
            "method": given.get("method") or ("random" if "samples" in given else "grid"),
        }  # fmt: skip
        definition |= {
            name: given[name] for name in ("name", "samples", "max_running") if name in given
        }
        for goal in ("minimize", "maximize"):
            if goal in given:
                definition["metric"] = {"name": given[goal], "goal": goal}
        options = {name: each for name, each in given.items() if name != "name"}
        body = self._within_limits(submission(options, {"definition": definition}), given)
        plan = self.client.sweep({**body, "dry_run": True})
        total = plan["total"]
        if total is None and (self.limits.max_jobs or self.limits.max_gpus):
            raise InvalidArguments("The sweep has no end: give samples.")
        at_once = min(total or 0, given.get("max_running") or total or 0)
        self.limits.check_size(self.client, total or 0, at_once * given.get("gpus", 0))
        reply = self.client.sweep(body)
        return pick(reply, ("label", "name", "added", "retried", "total", "warnings"))

    def _within_limits(self, body: JsonObject, given: JsonObject) -> JsonObject:
        self.limits.check_hours(given.get("hours"))
        options = self.limits.apply(body["options"])
        return {**body, "options": options, "key": f"{CLIENT}-{given['key']}"}

    def act(self, verb: str) -> Callable[[JsonObject], JsonObject]:
        """Return the function of a verb without options."""

        def call(given: JsonObject) -> JsonObject:
            self._views(given["jobs"])
            return _changed(self.client.act(verb, given["jobs"]))

        return call

    def retry(self, given: JsonObject) -> JsonObject:
        """Queue jobs again."""
        views = self._views(given["jobs"])
        gpus = sum(map(gpus_of, views))
        self.limits.check_size(self.client, len(views), gpus)
        return _changed(self.client.retry(given["jobs"]))

    def edit(self, given: JsonObject) -> JsonObject:
        """Change options of jobs."""
        self._views(given["jobs"])
        self.limits.check_hours(given.get("hours"))
        options: dict[str, object] = {}
        if "name" in given:
            options["name"] = given["name"]
        if "hours" in given:
            options["time"] = minutes(given["hours"])
        if "priority" in given:
            options["priority"] = str(given["priority"])
        if not options:
            raise InvalidArguments("Nothing to change: give name, hours or priority.")
        return _changed(self.client.edit(given["jobs"], options))

    def _views(self, jobs: list[str]) -> list[JsonObject]:
        """Return the jobs that these ids mean, after checking that they may be changed."""
        for job in jobs:
            if not JOB_ID.fullmatch(job):
                raise InvalidArguments(f"{job[:40]!r} is not a job id; write 42 or 42_3.")
        reply = self.client.jobs(jobs, limit=MAX_CHANGED)
        if reply.get("more"):
            raise InvalidArguments(f"These are more than {MAX_CHANGED} jobs; change fewer at once.")
        if not reply["jobs"]:
            raise InvalidArguments("There are no such jobs.")
        self.limits.check_jobs(reply["jobs"])
        return list(reply["jobs"])


def _changed(reply: JsonObject) -> JsonObject:
    """Return which jobs were changed, and which were not and why."""
    done, skipped = reply.get("done") or [], reply.get("skipped") or []
    return {
        "done": [str(job["label"]) for job in done[:MAX_ROWS]],
        "skipped": [pick(job, ("label", "why")) for job in skipped[:MAX_ROWS]],
        "done_count": len(done), "skipped_count": len(skipped),
    }  # fmt: skip
