"""Completion candidates, requested by the completion scripts."""

from __future__ import annotations

from stoker.cli.options import COMMON, Option
from stoker.cli.output import clean
from stoker.cli.verbs import ALIASES, MODULES, VERBS
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VERBS_WITHOUT_JOBS = frozenset({
    "feed", "submit", "run", "sweep", "gpus", "nodes", "drain", "undrain", "daemon", "db", "policy",
    "limit", "token", "reserve", "share",
    "completion", "simulate", "what-if", "top", "usage", "ui", "alarms", "notify", "system",
})  # fmt: skip
SUBCOMMANDS = {
    "daemon": ("start", "stop", "restart", "status", "log", "run", "install"),
    "db": ("backup", "path"),
    "token": ("create", "list", "revoke"),
    "notify": ("list", "test", "remove"),
    "system": ("install", "status", "run", "adopt", "uninstall"),
    "completion": ("bash", "zsh", "fish"),
}
FILES = "@files"


def main(argv: list[str]) -> int:
    """Print candidates for the last word, each with a tab and a description."""
    words = argv or [""]
    lines = [line for line in candidates(words) if line.startswith(words[-1]) or line == FILES]
    if lines:
        print("\n".join(lines))
    return 0


def candidates(words: list[str]) -> list[str]:
    """Return the candidates for the last word."""
    if len(words) == 1:
        return [f"{verb}\t{text}" for verb, text in VERBS.items()]
    verb = ALIASES.get(words[0], words[0])
    current = words[-1]
    if verb not in VERBS or verb == "feed":
        return [FILES]
    module = __import__(MODULES[verb], fromlist=["OPTIONS"])
    if verb == "compat":
        return module.complete(words[1:]) or [FILES]
    subcommand = verb == "sweep" and len(words) > 2 and module.SUBCOMMANDS.get(words[1])
    if subcommand:
        module = __import__(f"stoker.cli.submit.{subcommand}", fromlist=["OPTIONS"])
    options: tuple[Option, ...] = module.OPTIONS
    if current.startswith("-"):
        return [
            f"{name}\t{option.text}"
            for option in (*options, *COMMON)
            for name in option.names
            if name.startswith("--") or current == "-"
        ]
    previous = next((option for option in options if words[-2] in option.names), None)
    if previous is not None and previous.value == "JOB":
        return jobs()
    if previous is not None and previous.value in {"FILE", "DIR"}:
        return [FILES]
    if verb not in VERBS_WITHOUT_JOBS:
        return jobs()
    if verb == "policy":
        return policies()
    if verb == "limit":
        return limited()
    if subcommand:
        return sweeps()
    if verb == "sweep" and len(words) == 2:
        return [word for word in module.SUBCOMMANDS if word.startswith(current)] or [FILES]
    return list(SUBCOMMANDS.get(verb, ())) or [FILES]


def jobs() -> list[str]:
    """Return ids and names of jobs, with descriptions; none if no daemon runs."""
    reply = _request(lambda client: client.jobs(limit=200, fold="1"))
    views = reply.get("jobs") or []
    lines = [
        f"{sweep['label']}\t{clean(sweep['name'])} sweep" for sweep in reply.get("sweeps") or ()
    ]
    lines += [f"{view['label']}\t{clean(view.get('name') or '')} {view['state']}" for view in views]
    names = {clean(view["name"]): view["state"] for view in views if view.get("name")}
    lines += [f"{name}\t{state}" for name, state in names.items() if " " not in name]
    return [*lines, "last\tthe newest submission", "all\tevery job that is not finished"]


def policies() -> list[str]:
    """Return the policies, with descriptions."""
    views = _request(lambda client: client.policies()).get("policies") or ()
    return [f"{view['name']}\t{clean(view['about'])}" for view in views]


def limited() -> list[str]:
    """Return the users, groups and queues with limits, and the queues without."""
    views = _request(lambda client: client.limits()).get("limits") or ()
    queues = _request(lambda client: client.queues()).get("queues") or ()
    names = [clean(view["subject"]) for view in views]
    return list(dict.fromkeys([*names, *(f"queue:{view['name']}" for view in queues)]))


def sweeps() -> list[str]:
    """Return the ids of sweeps, with names and states."""
    views = _request(lambda client: client.sweeps(all=True)).get("sweeps") or ()
    return [f"{view['label']}\t{clean(view['name'])} {view['state']}" for view in views]


def _request(send: Callable[[Client], JsonObject]) -> JsonObject:
    """Return the reply to a request; an empty one if no daemon runs."""
    try:
        return send(connect(autostart=False))
    except StokerError:
        return {}
