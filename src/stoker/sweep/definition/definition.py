"""The definition of a sweep: a plain dict, validated only here."""

from __future__ import annotations

import re

from stoker.sweep.definition.parameter import in_grid, name_of, spec
from stoker.sweep.definition.stopping import stop_of
from stoker.sweep.definition.template import check_template, program_name
from stoker.sweep.validation import MAX_VALUES, Field, InvalidSweep, Table, Values, sound
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
    fields = Field(where, "the definition", raw).table(is_root=True)
    fields.reject_unknown(KEYS)
    method = fields.values.get("method")
    if method != "list":  # set for tables, not by users
        method = fields.field("method").choice(METHODS)
    parameters, points = _space(method, fields)
    metric = _metric(fields.field("metric"))
    stop = stop_of(fields.field("stop"))
    for needed, by in (
        (method in {"tpe", "gp"}, f"method {method}"),
        (stop is not None, "stop"),
    ):
        if needed and metric is None:
            raise InvalidSweep(f"{where}: metric is missing; {by} needs one.")
    command, line = _command(fields)
    definition = {
        "name": _name(fields.field("name"), command or line or ""),
        "method": method,
        "parameters": parameters,
        "points": points,
        "samples": _optional(fields.field("samples")),
        "seed": fields.field("seed", 0).integer(0),
        "metric": metric,
        "stop": stop,
        "command": command,
        "line": line,
        "max_running": _optional(fields.field("max_running")),
    }
    # Keys that do not apply to this kind of sweep are left out.
    for key in ("points", "command", "line"):
        if definition[key] is None:
            del definition[key]
    check_template(definition, where)
    return definition


def _name(field: Field, command: list[str] | str) -> str:
    name = field.value
    if name is None:
        return program_name(command)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise field.invalid("a name of 1 to 64 letters, digits and _ . : + -")
    return name


def _optional(field: Field) -> int | None:
    return None if field.value is None else field.integer(1)


def _space(method: str, fields: Table) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """Return the parameters, and the rows of method list."""
    given = fields.field("parameters", {}).table()
    raw, points = given.values, fields.field("points")
    if method == "list":
        if raw:
            raise given.error("cannot be combined with the points of method list")
        return {}, _points(points)
    if points.value is not None:
        raise points.error(f"belong to method list, and the method is {method}")
    if not raw:
        raise given.error("is empty; at least one parameter was expected")
    if len(raw) > MAX_PARAMETERS:
        raise given.error(f"has {len(raw):,} names; {MAX_PARAMETERS:,} are allowed")
    where = fields.where
    values, parameters = Values(where), {}
    for name, value in raw.items():
        path = f"parameters.{name_of(where, 'parameters', name)}"
        checked = spec(value, path, values)
        parameters[name] = in_grid(checked, where, path) if method == "grid" else checked
    return parameters, None


def _points(field: Field) -> list[dict[str, Any]]:
    where, raw = field.where, field.value
    if not isinstance(raw, list) or not raw:
        raise field.invalid("a list of rows, each a table of names and values,")
    if len(raw) > MAX_VALUES:
        raise field.error(f"has {len(raw):,} rows; {MAX_VALUES:,} are allowed")
    first = Field(where, "points[0]", raw[0]).table()
    names = list(first.values)
    if not 0 < len(names) <= MAX_PARAMETERS:
        raise first.error(f"has {len(names):,} names; 1 to {MAX_PARAMETERS:,} are allowed")
    for name in names:
        name_of(where, "points[0]", name)
    rows: dict[str, dict[str, Any]] = {}
    for index, value in enumerate(raw):
        row = Field(where, f"points[{index}]", value).table()
        if row.values.keys() != first.values.keys():
            other = min(row.values.keys() ^ first.values.keys())
            raise row.error(f"has {'' if other in row else 'no '}{other}, unlike the first row")
        values = Values(where)
        checked = {name: values.one(f"{row.path}.{name}", row.values[name]) for name in names}
        rows.setdefault(canonical(checked), checked)
    return list(rows.values())


def _command(fields: Table) -> tuple[list[str] | None, str | None]:
    """Return the words of the command, or the line for a shell."""
    command, line = fields.field("command"), fields.field("line")
    words = command.value
    if (words is None) == (line.value is None):
        given = "command and line" if line.value is not None else "command or line is missing"
        raise InvalidSweep(
            f"{fields.where}: {given}; "
            "exactly one of command (a list of words) and line (for a shell) was expected."
        )
    if line.value is not None:
        return None, line.text("a line for a shell")
    if not isinstance(words, list) or not words or len(words) > MAX_COMMAND_WORDS:
        raise command.invalid(f"a list of 1 to {MAX_COMMAND_WORDS:,} words")
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise Field(fields.where, f"command[{index}]", word).invalid("a text")
        sound(fields.where, f"command[{index}]", word)
    return list(words), None


# ---------------------------------------------------------------------------- the metric


def _metric(field: Field) -> dict[str, Any] | None:
    if field.value is None:
        return None
    metric = field.table()
    metric.reject_unknown(("name", "goal", "target", "summary", "source"))
    name, target = metric.field("name").text("the name of a metric"), metric.field("target")
    return {
        "name": name,
        "goal": metric.field("goal", "minimize").choice(("minimize", "maximize")),
        "target": None if target.value is None else target.number(),
        "summary": metric.field("summary", "last").choice(("last", "best")),
        "source": _source(name, metric.field("source")),
    }


def _source(metric: str, field: Field) -> dict[str, Any]:
    """Return where the metric is read from: reports, the log, or a file."""
    if field.value is None:
        return {"kind": "report"}
    source = field.table()
    kinds = {"report": (), "log": ("pattern",), "file": ("path",)}
    kind = source.field("kind").choice(tuple(kinds))
    source.reject_unknown(("kind", *kinds[kind]))
    if kind == "log":
        return {"kind": kind, "pattern": _pattern(metric, source.field("pattern"))}
    if kind == "file":
        return {"kind": kind, "path": source.field("path").text("the path of a JSON or CSV file")}
    return {"kind": kind}


def _pattern(metric: str, field: Field) -> str:
    """Check that a regular expression has one group for the value."""
    pattern = field.text("a regular expression")
    if len(pattern) > MAX_PATTERN:
        raise field.error(f"has {len(pattern):,} characters; {MAX_PATTERN:,} are allowed")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise field.error(f"is not a valid regular expression: {error}") from None
    groups = compiled.groupindex
    if metric in groups or "value" in groups or compiled.groups - len(groups) == 1:
        return pattern
    group = metric if metric.isidentifier() else "value"
    raise field.error(
        f"is {pattern!r}; one group around the value was expected, "
        f"for example {metric}=(?P<{group}>\\S+)"
    )
