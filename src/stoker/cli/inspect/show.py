"""Show all details of a job, or the progress and trials of a sweep."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, Option, parse
from stoker.cli.output import colour, sizes, times
from stoker.cli.output.job_table import field_text, gpu_range
from stoker.cli.session import connect_existing
from stoker.cli.session.listing import LIST_OPTIONS, format_lines
from stoker.client.client import Client
from stoker.wire import JsonObject

USAGE = ("show JOB ...", "show SWEEP")
OPTIONS = (
    *(option for option in LIST_OPTIONS if option.key in {"json_lines", "format"}),
    Option("--tail", "N", "also print the last N lines of its output"),
    VERBOSE,
)
TIME_NAMES = {"submitted_at": "submitted", "started_at": "started", "ended_at": "ended",
         "begin_at": "not before",
         "deadline_at": "deadline", "unreachable_since": "last heard of"}  # fmt: skip
FIELD_NAMES = {"on_end": "when it ends", "retry": "tried again", "warning_signal": "warned by",
         "environment_hash": "environment", "termination_note": "note",
         "time_limit": "limit", "time_left": "left"}  # fmt: skip
MAX_JOBS = 100_000
POOL = "pool"
"""The device of cores and memory: a job has the requested amount of it."""
DURATIONS = ("elapsed", "time_limit", "time_left")
SIZES = ("memory", "gpu_memory", "min_vram")
SKIPPED = frozenset({"id", "label", "name", "state", "state_code", "request", "devices", "reason",
                     "reason_text", "array", "tail", "dismissed", "result", "attempts", "nodes",
                     "parts", "unreachable", "training", "container", "params", "objective",
                     "restartable", "foreseen", "hook", "expected_start",
                     "expected_end", "uploads", "alarms"})  # fmt: skip

PER_PART = frozenset({"node", "log", "error_log", "log_bytes", "pid", "gpu_uuids"})
"""Fields that a multi-node job has once per node."""


def main(argv: list[str]) -> int:
    """Print all details of jobs, by default of the newest."""
    args = parse(OPTIONS, argv, verb="show")
    client = connect_existing(autostart=False)
    words = args.words or ["last"]
    views = _selected_jobs(client, words, args.count("tail"))
    if views is None:
        from stoker.cli.submit.sweep_show import show_sweep

        return show_sweep(client, words[0], args)
    lines = format_lines(args, views)
    if args.flag("json"):
        return output.emit(views[0] if len(views) == 1 else views)
    if lines is None:
        from stoker.cli.session.follow import dismiss_failures

        lines = "\n\n".join(
            "\n".join(job_lines(view, args.flag("verbose"))) for view in views
        ).split("\n")
        dismiss_failures(client, views)
    print("\n".join(lines))
    return 0


def _selected_jobs(
    client: Client, selectors: list[str], tail: int | None
) -> list[JsonObject] | None:
    """Return the selected jobs; None if the selector means one sweep."""
    selector = selectors[0] if len(selectors) == 1 else None
    reply = client.jobs(
        selectors, tail=tail, hook=1, estimate=1, limit=MAX_JOBS if selector is None else 1
    )
    views: list[JsonObject] = reply["jobs"]
    if selector is not None and (not views or _is_sweep(selector, views[0])):
        return None
    if selector is not None and reply.get("more"):
        views = client.jobs(selectors, tail=tail, hook=1, estimate=1, limit=MAX_JOBS)["jobs"]
    return views


def _is_sweep(selector: str, view: JsonObject) -> bool:
    """Return True if a selector means the whole sweep of a trial."""
    sweep = view.get("sweep")
    return sweep is not None and selector in {str(sweep), view["name"], "last", "-1"}


def job_lines(view: JsonObject, verbose: bool) -> list[str]:
    """Return the details of a job, one per line."""
    name = f" {output.clean(view['name'])}" if view.get("name") else ""
    lines = [colour.paint(f"Job {view['label']}{name}", "bold")]
    for key, value in job_rows(view, verbose):
        lines.append(f"  {key:<15} {value}")
    lines += [f"  | {output.clean(line)}" for line in view.get("tail") or ()]
    return lines


def job_rows(view: JsonObject, verbose: bool) -> list[tuple[str, str]]:
    """Return names and texts of all known details of a job."""
    state = str(view["state"])
    reason = view.get("reason_text") or view.get("reason")
    rows = [("state", f"{state}: {output.clean(reason)}" if reason else state)]
    request = dict(view.get("request") or {})
    if request.pop("most_gpus", None):
        request["gpus"] = gpu_range(view["request"])
    requested = [
        f"{key.replace('_', ' ')} {sizes.exact(value) if key in SIZES else field_text(value)}"
        for key, value in request.items()
        if value not in (None, {}, False, [], "0", 0)
    ]
    rows.append(("requests", ", ".join(requested) or "no resources"))
    has_ended = view.get("result") is not None
    rows += (
        _device_rows(view, has_ended)
        + _container_rows(view.get("container"))
        + _training_rows(view)
    )
    rows += _trial_rows(view) + _estimate_rows(view)
    for alarm in view.get("alarms") or ():
        from stoker.cli.output.alarm_text import alarm_line, evidence_lines

        rows.append(("alarm", alarm_line(alarm)))
        rows += [("", line) for line in evidence_lines(alarm)] if verbose else []
    skipped = SKIPPED | PER_PART if view.get("parts") else SKIPPED
    for key, value in view.items():
        if key == "node" and view.get("parts"):
            rows.append(("nodes", field_text(view["nodes"])))
        if key in skipped or value in (None, "", [], {}) or (has_ended and key == "time_left"):
            continue
        if key in TIME_NAMES:
            rows.append((TIME_NAMES[key], _time_text(value, verbose)))
        elif key in DURATIONS:
            rows.append((FIELD_NAMES.get(key, key), times.duration(value)))
        elif key == "retry":
            rows.append((FIELD_NAMES[key], _retry_text(value)))
        elif key == "warning_signal":
            rows.append((FIELD_NAMES[key], _early_signal_text(value)))
        else:
            rows.append((FIELD_NAMES.get(key) or key.replace("_", " "), field_text(value)))
    for rank, part in enumerate(view.get("parts") or ()):
        for key, what in (("log", "log"), ("error_log", "error log")):
            if part.get(key):
                rows.append((f"{what} {rank}", f"{field_text(part[key])} ({part['node']})"))
    rows += _hook_rows(view.get("hook"))
    for attempt in view.get("attempts") or ():
        if attempt["attempt"] == view["attempt"]:
            continue
        cause = output.clean(attempt.get("cause") or "").rstrip(".")
        rows.append(
            (
                f"attempt {attempt['attempt']}",
                f"{cause}, {_time_text(attempt['ended_at'], verbose)}",
            )
        )
    return rows


def _device_rows(view: JsonObject, has_ended: bool) -> list[tuple[str, str]]:
    """Return the devices that the job has or had, per node."""
    rows = []
    for part in view.get("parts") or [view]:
        held = "; ".join(
            f"{kind} {','.join(ids)}"
            for kind, ids in (part.get("devices") or {}).items()
            if ids != [POOL]
        )
        if held:
            on = f" on {part['node']}" if view.get("parts") else ""
            name = "used" if has_ended else "had" if view["state"] == "PENDING" else "holds"
            rows.append((name, f"{held}{on}"))
    return rows


def _training_rows(view: JsonObject) -> list[tuple[str, str]]:
    if not view.get("training"):
        return []
    from stoker.cli.output.training_text import training_rows

    return training_rows(view)


def _trial_rows(view: JsonObject) -> list[tuple[str, str]]:
    """Return the parameters and the objective of a trial."""
    if not view.get("params"):
        return []
    from stoker.cli.output.sweep_text import number_text, params_text

    rows = [("parameters", params_text(view["params"]))]
    objective = view.get("objective")
    if objective and objective.get("value") is not None:
        early = ", stopped early" if objective.get("stopped") else ""
        value, step = number_text(objective["value"]), number_text(objective["step"])
        rows.append(("objective", f"{value} at step {step}{early}"))
    return rows


def _estimate_rows(view: JsonObject) -> list[tuple[str, str]]:
    """Return the estimated start and end, or why there is no estimate."""
    from stoker.cli.output.estimates import estimate_sentence

    forecast = view.get("foreseen") or {}
    rows = [
        (f"expected {key}", estimate_sentence(forecast[key]))
        for key in ("start", "end")
        if forecast.get(key)
    ]
    if forecast.get("never"):
        rows.append(("no estimate", output.clean(forecast["never"])))
    return rows


def _container_rows(container: JsonObject | None) -> list[tuple[str, str]]:
    """Return image, mounts and ports of a container."""
    if container is None:
        return []
    rows = [("image", output.clean(container["image"]))]
    for mount in container["mounts"]:
        how = " (read-only)" if mount["read_only"] else ""
        rows.append(("mount", output.clean(f"{mount['source']} at {mount['target']}{how}")))
    ports = ", ".join(f"{outside} is {inside} inside" for outside, inside in container["ports"])
    return [*rows, ("ports", ports)] if ports else rows


def _hook_rows(hook: JsonObject | None) -> list[tuple[str, str]]:
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
    """Return `3 on oom,lost` as `up to 3 times, after oom, lost`."""
    limit, _, causes = field_text(rule).partition(" on ")
    if not limit.isdecimal():
        return field_text(rule)
    after = f", after {causes.replace(',', ', ')}" if causes not in ("", "any") else ""
    return f"up to {output.counted(int(limit), 'time')}{after}"


def _early_signal_text(value: object) -> str:
    """Return `10@120` as `SIGUSR1, 120 s before its time limit`."""
    from signal import Signals

    name, _, seconds = field_text(value).partition("@")
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
