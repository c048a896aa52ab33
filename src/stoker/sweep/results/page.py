"""The report of a sweep: one self-contained HTML file, drawn by a script."""

from __future__ import annotations

import math
import os
import re

from stoker.html_page import render_page
from stoker.sweep.results.comparison import counts
from stoker.sweep.results.importance import importance
from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPTS = ("page.js", "page_curves.js", "page_parallel.js", "page_table.js")
FEW = 12
"""Numeric parameters with at most this many listed values have an evenly spaced axis."""


def html(view: dict[str, Any], series: dict[str, list[list[float]]]) -> str:
    """Return the report; `view` is a sweep with its trials from the API, `series` their metrics."""
    title = f"{view['sweep']['name']} · sweep {view['sweep']['label']}"
    return render_page(os.path.dirname(__file__), title, page_data(view, series), SCRIPTS)


def page_data(view: dict[str, Any], series: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Return the data that the script draws."""
    sweep, definition, trials = view["sweep"], view["definition"], view["trials"]
    names = _varying(definition, trials)
    rows = [
        ({name: trial["params"].get(name) for name in names}, trial["value"])
        for trial in trials
        if trial.get("value") is not None and counts(trial)
    ]
    shares = sorted(importance(rows).items(), key=lambda pair: -pair[1])
    keys = ("id", "label", "name", "user", "state", "method", "metric", "goal", "counts", "total",
            "best", "created_at", "ended_at", "eta", "note")  # fmt: skip
    return {
        "sweep": {key: sweep.get(key) for key in keys},
        "command": _command(definition),
        "fixed": _fixed(trials, names),
        "axes": [_axis(name, definition, trials) for name in names],
        "importance": shares,
        "trials": [_trial(trial) for trial in trials],
        "series": series,
    }


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    keys = ("label", "number", "state", "value", "step", "stopped", "elapsed", "cause", "params")
    return {key: trial.get(key) for key in keys} | {"counts": counts(trial)}


def _command(definition: dict[str, Any]) -> str:
    """Return the command with parameters as fields: lr={lr}."""
    words = definition.get("command") or ()
    text = str(definition.get("line") or " ".join(words))
    return re.sub(r"\$\{param:([^{}]*)\}", r"{\1}", text.replace("${no_args}", "")).strip()


def _varying(definition: dict[str, Any], trials: list[dict[str, Any]]) -> list[str]:
    """Return the parameters that vary, in the order of the definition; all if none does."""
    names = list(definition.get("parameters") or (definition.get("points") or [{}])[0])
    seen: dict[str, set[str]] = {name: set() for name in names}
    for trial in trials:
        for name, value in trial["params"].items():
            seen.setdefault(name, set()).add(repr(value))
    return [name for name in seen if len(seen[name]) > 1] or list(seen)


def _fixed(trials: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return the parameters that do not vary."""
    first = trials[0]["params"] if trials else {}
    return {name: value for name, value in first.items() if name not in names}


def _axis(name: str, definition: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the axis of a parameter: linear, logarithmic, or by value."""
    spec = (definition.get("parameters") or {}).get(name) or {}
    values = [trial["params"].get(name) for trial in trials]
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len(values) or not numbers:
        distinct = {canonical({"": value}): value for value in values}
        return {"name": name, "kind": "text", "values": list(distinct.values())}
    low, high = min(numbers), max(numbers)
    distribution = str(spec.get("distribution") or "")
    if "distribution" not in spec and len(set(numbers)) <= FEW:
        return {"name": name, "kind": "few", "values": sorted(set(numbers))}
    if "log" in distribution and low > 0:
        return {"name": name, "kind": "log", "min": low, "max": high}
    return {"name": name, "kind": "line", "min": low, "max": high}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
