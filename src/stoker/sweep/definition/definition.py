"""The definition of a sweep: a plain dict, validated only here."""

from __future__ import annotations

import re

from stoker.sweep.definition.parameter import in_grid, name_of, spec
from stoker.sweep.definition.stopping import stop_of
from stoker.sweep.definition.template import check_template, program_name
from stoker.sweep.validation import (
    MAX_VALUES,
    InvalidSweep,
    Values,
    invalid_value,
    reject_unknown_keys,
    require_choice,
    require_integer,
    require_number,
    sound,
    table,
    text,
)
from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["InvalidSweep", "check"]

METHODS = ("grid", "random", "sobol", "tpe", "gp")
KEYS = (
    "name", "method", "parameters", "points", "samples", "seed", "metric", "stop", "command",
    "line", "max_running",
)  # fmt: skip
MAX_PARAMETERS = 1_000
MAX_COMMAND_WORDS = 10_000
MAX_PATTERN = 1_000
_NAME = re.compile(r"[\w.:+-]{1,64}")


def check(raw: object, where: str = "the sweep") -> dict[str, Any]:
    """Return the complete definition with defaults; raise InvalidSweep if it is invalid."""
    fields = table(where, "the definition", raw)
    reject_unknown_keys(where, "", fields, KEYS)
    method = fields.get("method")
    if method != "list":  # set for tables, not by users
        method = require_choice(where, "method", method, METHODS)
    parameters, points = _space(where, method, fields)
    metric = _metric(where, fields.get("metric"))
    stop = stop_of(where, "stop", fields.get("stop"))
    for needed, by in (
        (method in {"tpe", "gp"}, f"method {method}"),
        (stop is not None, "stop"),
    ):
        if needed and metric is None:
            raise InvalidSweep(f"{where}: metric is missing; {by} needs one.")
    command, line = _command(where, fields)
    definition = {
        "name": _name(where, fields.get("name"), command or line or ""),
        "method": method,
        "parameters": parameters,
        "points": points,
        "samples": _optional(where, "samples", fields),
        "seed": require_integer(where, "seed", fields.get("seed", 0), 0),
        "metric": metric,
        "stop": stop,
        "command": command,
        "line": line,
        "max_running": _optional(where, "max_running", fields),
    }
    # Keys that do not apply to this kind of sweep are left out.
    for key in ("points", "command", "line"):
        if definition[key] is None:
            del definition[key]
    check_template(definition, where)
    return definition


def _name(where: str, raw: object, command: list[str] | str) -> str:
    if raw is None:
        return program_name(command)
    if not isinstance(raw, str) or not _NAME.fullmatch(raw):
        raise invalid_value(where, "name", raw, "a name of 1 to 64 letters, digits and _ . : + -")
    return raw


def _optional(where: str, key: str, fields: dict[str, Any]) -> int | None:
    return None if fields.get(key) is None else require_integer(where, key, fields[key], 1)


def _space(
    where: str, method: str, fields: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """Return the parameters, and the rows of method list."""
    raw = table(where, "parameters", fields.get("parameters", {}))
    points = fields.get("points")
    if method == "list":
        if raw:
            raise InvalidSweep(
                f"{where}: parameters cannot be combined with the points of method list."
            )
        return {}, _points(where, points)
    if points is not None:
        raise InvalidSweep(f"{where}: points belong to method list, and the method is {method}.")
    if not raw:
        raise InvalidSweep(f"{where}: parameters is empty; at least one parameter was expected.")
    if len(raw) > MAX_PARAMETERS:
        raise InvalidSweep(
            f"{where}: parameters has {len(raw):,} names; {MAX_PARAMETERS:,} are allowed."
        )
    values, parameters = Values(where), {}
    for name, given in raw.items():
        path = f"parameters.{name_of(where, 'parameters', name)}"
        checked = spec(given, path, values)
        parameters[name] = in_grid(checked, where, path) if method == "grid" else checked
    return parameters, None


def _points(where: str, raw: object) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not raw:
        raise invalid_value(
            where, "points", raw, "a list of rows, each a table of names and values,"
        )
    if len(raw) > MAX_VALUES:
        raise InvalidSweep(f"{where}: points has {len(raw):,} rows; {MAX_VALUES:,} are allowed.")
    names = list(table(where, "points[0]", raw[0]))
    if not 0 < len(names) <= MAX_PARAMETERS:
        raise InvalidSweep(
            f"{where}: points[0] has {len(names):,} names; 1 to {MAX_PARAMETERS:,} are allowed."
        )
    for name in names:
        name_of(where, "points[0]", name)
    rows: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(raw):
        path = f"points[{index}]"
        if table(where, path, row).keys() != raw[0].keys():
            other = min(row.keys() ^ raw[0].keys())
            verb = "has" if other in row else "has no"
            raise InvalidSweep(f"{where}: {path} {verb} {other}, unlike the first row.")
        values = Values(where)
        checked = {name: values.one(f"{path}.{name}", row[name]) for name in names}
        rows.setdefault(canonical(checked), checked)
    return list(rows.values())


def _command(where: str, fields: dict[str, Any]) -> tuple[list[str] | None, str | None]:
    """Return the words of the command, or the line for a shell."""
    words, line = fields.get("command"), fields.get("line")
    if (words is None) == (line is None):
        raise InvalidSweep(
            f"{where}: {'command or line is missing' if line is None else 'command and line'}; "
            "exactly one of command (a list of words) and line (for a shell) was expected."
        )
    if line is not None:
        return None, text(where, "line", line, "a line for a shell")
    if not isinstance(words, list) or not words or len(words) > MAX_COMMAND_WORDS:
        raise invalid_value(where, "command", words, f"a list of 1 to {MAX_COMMAND_WORDS:,} words")
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise invalid_value(where, f"command[{index}]", word, "a text")
        sound(where, f"command[{index}]", word)
    return list(words), None


# ---------------------------------------------------------------------------- the metric


def _metric(where: str, raw: object) -> dict[str, Any] | None:
    if raw is None:
        return None
    fields = table(where, "metric", raw)
    reject_unknown_keys(where, "metric", fields, ("name", "goal", "target", "summary", "source"))
    name = text(where, "metric.name", fields.get("name"), "the name of a metric")
    target = fields.get("target")
    goal = fields.get("goal", "minimize")
    return {
        "name": name,
        "goal": require_choice(where, "metric.goal", goal, ("minimize", "maximize")),
        "target": None if target is None else require_number(where, "metric.target", target),
        "summary": require_choice(
            where, "metric.summary", fields.get("summary", "last"), ("last", "best")
        ),
        "source": _source(where, name, fields.get("source")),
    }


def _source(where: str, metric: str, raw: object) -> dict[str, Any]:
    """Return where the metric is read from: reports, the log, or a file."""
    path = "metric.source"
    if raw is None:
        return {"kind": "report"}
    fields = table(where, path, raw)
    kinds = {"report": (), "log": ("pattern",), "file": ("path",)}
    kind = require_choice(where, f"{path}.kind", fields.get("kind"), tuple(kinds))
    reject_unknown_keys(where, path, fields, ("kind", *kinds[kind]))
    if kind == "log":
        return {"kind": kind, "pattern": _pattern(where, metric, fields.get("pattern"))}
    if kind == "file":
        expected = "the path of a JSON or CSV file"
        return {"kind": kind, "path": text(where, f"{path}.path", fields.get("path"), expected)}
    return {"kind": kind}


def _pattern(where: str, metric: str, raw: object) -> str:
    """Check that a regular expression has one group for the value."""
    path = "metric.source.pattern"
    pattern = text(where, path, raw, "a regular expression")
    if len(pattern) > MAX_PATTERN:
        raise InvalidSweep(
            f"{where}: {path} has {len(pattern):,} characters; {MAX_PATTERN:,} are allowed."
        )
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidSweep(f"{where}: {path} is not a valid regular expression: {error}.") from None
    groups = compiled.groupindex
    if metric in groups or "value" in groups or compiled.groups - len(groups) == 1:
        return pattern
    group = metric if metric.isidentifier() else "value"
    raise InvalidSweep(
        f"{where}: {path} is {pattern!r}; one group around the value was expected, "
        f"for example {metric}=(?P<{group}>\\S+)."
    )
