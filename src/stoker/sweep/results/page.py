"""The report of a sweep: one self-contained HTML file, drawn by a script."""

from __future__ import annotations

import re

from stoker.html_page import render_report
from stoker.sweep.results.comparison import counts
from stoker.sweep.results.importance import importance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def html(view: dict[str, Any], series: dict[str, list[list[float]]]) -> str:
    """Return the report; `view` is a sweep with its trials from the API, `series` their metrics."""
    title = f"{view['sweep']['name']} · sweep {view['sweep']['label']}"
    return render_report("sweep", title, page_data(view, series))


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
    keys = ("label", "name", "user", "state", "method", "metric", "goal", "counts", "total", "note")
    return {
        "sweep": {key: sweep.get(key) for key in keys},
        "command": _command(definition),
        "fixed": _fixed(trials, names),
        "parameters": definition.get("parameters") or {},
        "importance": shares,
        "trials": [_trial(trial) for trial in trials],
        "series": series,
    }


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "label", "state", "value", "stopped", "elapsed", "cause", "params")
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
