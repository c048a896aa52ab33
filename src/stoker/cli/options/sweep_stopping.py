"""Options of a sweep about its metric, early stopping and number of trials."""

from __future__ import annotations

from stoker.cli.options import Args, option_name
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

METHODS = {"bayes": "tpe", "bayesian": "tpe", "optuna": "tpe", "quasi-random": "sobol"}
"""Names of methods in other tools."""
GOALS = {"min": "minimize", "minimize": "minimize", "max": "maximize", "maximize": "maximize"}
OPTION_OF_KEY = {
    "method": "method",
    "name": "name",
    "samples": "samples",
    "seed": "seed",
    "max_running": "max_running",
    "metric.name": "metric",
    "metric.summary": "summary",
    "metric.target": "target",
    "metric.source.pattern": "metric_regex",
    "metric.source.path": "metric_file",
    "stop": "stop",
    "stop.kind": "stop",
    "stop.min": "min_steps",
    "stop.max": "max_steps",
    "stop.eta": "eta",
}
"""Key of the definition -> the key of the option that sets it."""


def option_names(args: Args) -> dict[str, str]:
    """Return the keys of a definition that were set by options, and the option names."""
    names = {"metric": "--minimize NAME or --maximize NAME"}
    for key, option in OPTION_OF_KEY.items():
        if args.text(option) is not None:
            names[key] = option_name(option)
    method = (args.text("method") or "").lower()
    if method:
        names[f"method {METHODS.get(method, method)}"] = f"--method {method}"
    for goal in ("minimize", "maximize"):
        if args.text(goal) is not None:
            names["metric.name"] = f"--{goal}"
    return names


def apply_options(raw: JsonObject, args: Args) -> None:
    """Apply the options, which take precedence over the file."""
    method = (args.text("method") or "").lower()
    if method and (method == "list" or raw.get("method") == "list"):
        raise UsageError(
            "--method cannot be combined with --csv or --jsonl: the rows of the table "
            "are the trials."
        )
    if args.text("name") is not None:
        raw["name"] = args.text("name")
    if method:
        raw["method"] = METHODS.get(method, method)
    for key in ("samples", "seed"):
        if args.text(key) is not None:
            raw[key] = args.count(key)
    if args.text("max_running") is not None:
        raw["max_running"] = args.count("max_running") or None  # 0: no limit
    metric = _metric(args, raw.get("metric"))
    if metric is not None:
        raw["metric"] = metric
    raw["stop"] = _stop(args, raw.get("stop"))


def _metric(args: Args, before: JsonObject | None) -> JsonObject | None:
    named = [key for key in ("metric", "minimize", "maximize") if args.text(key) is not None]
    if len(named) > 1:
        raise UsageError("A sweep has one metric: give --metric, --minimize or --maximize once.")
    metric = dict(before or {})
    if named:
        metric["name"] = args.text(named[0])
    if named and named[0] != "metric":
        metric["goal"] = named[0]
        if args.text("goal") is not None:
            raise UsageError(f"--{named[0]} already sets the goal; use --goal only with --metric.")
    elif args.text("goal") is not None:
        goal = args.text("goal") or ""
        if goal not in GOALS:
            raise UsageError(f"--goal takes min or max, not {goal!r}.")
        metric["goal"] = GOALS[goal]
    if args.text("summary") is not None:
        metric["summary"] = args.text("summary")
    if args.text("target") is not None:
        metric["target"] = args.number("target")
    source = _source(args)
    if source is not None:
        metric["source"] = source
    if metric and "name" not in metric:
        raise UsageError("No metric given. Name it: --minimize loss or --maximize accuracy.")
    return metric or None


def _source(args: Args) -> JsonObject | None:
    pattern, path = args.text("metric_regex"), args.text("metric_file")
    if pattern is not None and path is not None:
        raise UsageError("Give --metric-regex or --metric-file; one of them.")
    if pattern is not None:
        return {"kind": "log", "pattern": pattern}
    return {"kind": "file", "path": path} if path is not None else None


def _stop(args: Args, before: JsonObject | None) -> JsonObject | None:
    kind = args.text("stop")
    given = {
        name: args.number(key)
        for name, key in (("min", "min_steps"), ("max", "max_steps"), ("eta", "eta"))
        if args.text(key) is not None
    }
    if kind in {"none", "no", "off"}:
        before = None
    elif kind is not None:
        same = before is not None and before.get("kind") == kind
        before = before if same else {"kind": kind}
    if before is not None and before.get("kind") == "median":
        for key, name in (("max", "--max-steps"), ("eta", "--eta")):
            if key in given:
                raise UsageError(f"{name} cannot be used with --stop median; use --min-steps.")
    if before is None:
        if given:
            raise UsageError("--min-steps, --max-steps and --eta need --stop asha.")
        return None
    return {**before, **{key: _as_int(value) for key, value in given.items()}}


def _as_int(value: float | None) -> float | None:
    return int(value) if value is not None and value == int(value) else value
