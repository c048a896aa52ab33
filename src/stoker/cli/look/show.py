"""Show all details of a job, or the progress and trials of a sweep."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, Option, parse
from stoker.cli.output import colour, sizes, times
from stoker.cli.output.job_table import gpu_range, text
from stoker.cli.session import connect_existing
from stoker.cli.session.listing import LIST_OPTIONS, format_lines
from stoker.client.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = ("show JOB ...", "show SWEEP")
OPTIONS = (
    *(option for option in LIST_OPTIONS if option.key in {"json_lines", "format"}),
    Option("--tail", "N", "also print the last N lines of its output"),
    VERBOSE,
)
TIMES = {"submitted_at": "submitted", "started_at": "started", "ended_at": "ended",
         "begin_at": "not before",
         "deadline_at": "deadline", "unreachable_since": "last heard of"}  # fmt: skip
NAMES = {"on_end": "when it ends", "retry": "tried again", "warning_signal": "warned by",
         "environment_hash": "environment", "termination_note": "note",
         "time_limit": "limit", "time_left": "left"}  # fmt: skip
MOST = 100_000
POOL = "pool"
"""The device of cores and of memory: what a job has of them is what it asks for."""
DURATIONS = ("elapsed", "time_limit", "time_left")
SIZES = ("memory", "gpu_memory", "min_vram")
SKIPPED = frozenset({"id", "label", "name", "state", "state_code", "request", "devices", "reason",
                     "reason_text", "array", "tail", "dismissed", "result", "attempts", "nodes",
                     "parts", "unreachable", "training", "container", "params", "objective",
                     "restartable", "foreseen", "hook", "expected_start",
                     "expected_end", "uploads"})  # fmt: skip

PER_PART = frozenset({"node", "log", "error_log", "log_bytes", "pid", "gpu_uuids"})
"""What is said part by part of a job on several machines, or would be said of the first only."""


def main(argv: list[str]) -> int:
    """Print each job's facts; without a name, the newest job's."""
    args = parse(OPTIONS, argv, verb="show")
    client = connect_existing(autostart=False)
    words = args.words or ["last"]
    views = _selected_jobs(client, words, args.count("tail"))
    if views is None:
        from stoker.cli.run.sweep_show import show_sweep

        return show_sweep(client, words[0], args)
    lines = format_lines(args, views)
    if args.flag("json"):
        output.emit(views[0] if len(views) == 1 else views)
        return 0
    if lines is None:
        lines = "\n\n".join(
            "\n".join(job_lines(view, args.flag("verbose"))) for view in views
        ).split("\n")
        failed = [str(v["label"]) for v in views if v.get("result") and not v.get("dismissed")]
        if failed:
            from stoker.cli.session.follow import dismiss_failures

            dismiss_failures(client, failed)
    print("\n".join(lines))
    return 0


def _selected_jobs(
    client: Client, words: list[str], tail: int | None
) -> list[dict[str, Any]] | None:
    """Return the jobs that were named; None when that is one sweep, however many trials it has."""
    word = words[0] if len(words) == 1 else None
    reply = client.jobs(words, tail=tail, hook=1, estimate=1, limit=MOST if word is None else 1)
    views: list[dict[str, Any]] = reply["jobs"]
    if word is not None and (not views or _is_sweep(word, views[0])):
        return None
    if word is not None and reply.get("more"):
        views = client.jobs(words, tail=tail, hook=1, estimate=1, limit=MOST)["jobs"]
    return views


def _is_sweep(word: str, view: dict[str, Any]) -> bool:
    """Whether a word means the whole sweep that a job is a trial of."""
    sweep = view.get("sweep")
    return sweep is not None and word in {str(sweep), view["name"], "last", "-1"}


def job_lines(view: dict[str, Any], verbose: bool) -> list[str]:
    """Return a job's facts, one per line."""
    coloured = colour.is_enabled()
    name = f" {output.clean(view['name'])}" if view.get("name") else ""
    head = f"Job {view['label']}{name}"
    lines = [colour.paint(head, "bold") if coloured else head]
    for key, value in job_facts(view, verbose):
        lines.append(f"  {key:<15} {value}")
    lines += [f"  | {output.clean(line)}" for line in view.get("tail") or ()]
    return lines


def job_facts(view: dict[str, Any], verbose: bool) -> list[tuple[str, str]]:
    """Return what is worth saying, in a sensible order; what is not known is left out."""
    state = str(view["state"])
    why = view.get("reason_text") or view.get("reason")
    found = [("state", f"{state}: {output.clean(why)}" if why else state)]
    request = dict(view.get("request") or {})
    if request.pop("most_gpus", None):
        request["gpus"] = gpu_range(view["request"])
    asked = [
        f"{key.replace('_', ' ')} {sizes.exact(value) if key in SIZES else text(value)}"
        for key, value in request.items()
        if value not in (None, {}, False, [], "0", 0)
    ]
    found.append(("requests", ", ".join(asked) or "no resources"))
    over = view.get("result") is not None
    found += (
        _device_facts(view, over) + _container_facts(view.get("container")) + _training_facts(view)
    )
    found += _trial_facts(view) + _estimate_facts(view)
    alike = SKIPPED | PER_PART if view.get("parts") else SKIPPED
    for key, value in view.items():
        if key == "node" and view.get("parts"):
            found.append(("nodes", text(view["nodes"])))
        if key in alike or value is None or value in ("", [], {}) or (over and key == "time_left"):
            continue
        if key in TIMES:
            found.append((TIMES[key], _time_text(value, verbose)))
        elif key in DURATIONS:
            found.append((NAMES.get(key, key), times.duration(value)))
        elif key == "retry":
            found.append((NAMES[key], _retry_text(value)))
        elif key == "warning_signal":
            found.append((NAMES[key], _early_signal_text(value)))
        else:
            found.append((NAMES.get(key) or key.replace("_", " "), text(value)))
    for rank, part in enumerate(view.get("parts") or ()):
        for key, what in (("log", "log"), ("error_log", "error log")):
            if part.get(key):
                found.append((f"{what} {rank}", f"{text(part[key])} ({part['node']})"))
    found += _hook_facts(view.get("hook"))
    for past in view.get("attempts") or ():
        if past["attempt"] == view["attempt"]:
            continue
        cause = output.clean(past.get("cause") or "").rstrip(".")
        found.append(
            (f"attempt {past['attempt']}", f"{cause}, {_time_text(past['ended_at'], verbose)}")
        )
    return found


def _device_facts(view: dict[str, Any], over: bool) -> list[tuple[str, str]]:
    """Say which devices it has or had, machine by machine."""
    found = []
    for part in view.get("parts") or [view]:
        held = "; ".join(
            f"{kind} {','.join(ids)}"
            for kind, ids in (part.get("devices") or {}).items()
            if ids != [POOL]
        )
        if held:
            on = f" on {part['node']}" if view.get("parts") else ""
            word = "used" if over else "had" if view["state"] == "PENDING" else "holds"
            found.append((word, f"{held}{on}"))
    return found


def _training_facts(view: dict[str, Any]) -> list[tuple[str, str]]:
    if not view.get("training"):
        return []
    from stoker.cli.output.training_text import training_facts

    return training_facts(view)


def _trial_facts(view: dict[str, Any]) -> list[tuple[str, str]]:
    """Say what a trial of a sweep tries, and what came of it."""
    if not view.get("params"):
        return []
    from stoker.cli.output.sweep_text import number_text, params_text

    found = [("parameters", params_text(view["params"]))]
    worth = view.get("objective")
    if worth and worth.get("value") is not None:
        early = ", stopped early" if worth.get("stopped") else ""
        found.append(
            (
                "objective",
                f"{number_text(worth['value'])} at step {number_text(worth['step'])}{early}",
            )
        )
    return found


def _estimate_facts(view: dict[str, Any]) -> list[tuple[str, str]]:
    """Say when it should start and end, or why there is no estimate."""
    found = view.get("foreseen") or {}
    from stoker.cli.output.estimates import estimate_sentence

    job_lines = [
        (f"expected {key}", estimate_sentence(found[key]))
        for key in ("start", "end")
        if found.get(key)
    ]
    return (
        [*job_lines, ("no estimate", output.clean(found["never"]))]
        if found.get("never")
        else job_lines
    )


def _container_facts(container: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Say which image, what of the machine is in it, and at which ports it is heard."""
    if container is None:
        return []
    found = [("image", output.clean(container["image"]))]
    for mount in container["mounts"]:
        how = " (read-only)" if mount["read_only"] else ""
        found.append(("mount", output.clean(f"{mount['source']} at {mount['target']}{how}")))
    ports = ", ".join(f"{outside} is {inside} inside" for outside, inside in container["ports"])
    return [*found, ("ports", ports)] if ports else found


def _hook_facts(hook: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return the exit code of the on-end hook and the end of its output."""
    if hook is None:
        return []
    code = hook["exit_code"]
    lines = [output.clean(line) for line in hook["output"].rstrip("\n").split("\n")]
    lines = lines if any(lines) else []
    heads = ["hook output"] + [""] * len(lines)
    return [
        ("hook", "has not ended" if code is None else f"exit code {code}"),
        *zip(heads, lines, strict=False),
    ]


def _retry_text(rule: object) -> str:
    """Say `3 on oom,lost` as `up to 3 times, after oom, lost`."""
    limit, _, causes = text(rule).partition(" on ")
    if not limit.isdecimal():
        return text(rule)
    after = f", after {causes.replace(',', ', ')}" if causes not in ("", "any") else ""
    return f"up to {output.counted(int(limit), 'time')}{after}"


def _early_signal_text(value: object) -> str:
    """Say `10@120` as `SIGUSR1, 120 s before its time limit`."""
    from signal import Signals

    name, _, seconds = text(value).partition("@")
    if name.isdecimal():
        try:
            name = Signals(int(name)).name
        except ValueError:
            name = f"signal {name}"
    return f"{name}, {seconds} s before its time limit" if seconds else name


def _time_text(value: str | None, verbose: bool) -> str:
    if verbose:
        return times.absolute(value)
    return f"{times.relative(value)} ({times.absolute(value)})"
