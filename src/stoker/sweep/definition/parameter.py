"""One parameter of a sweep: a value, a list of values, or a distribution."""

from __future__ import annotations

import re

from stoker.sweep.validation import Field, InvalidSweep, Table, Values
from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNIFORM = ("uniform", "log_uniform", "int_uniform", "int_log_uniform")
NORMAL = ("normal", "log_normal")
KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(UNIFORM, ("min", "max")),
    **dict.fromkeys(("q_uniform", "q_log_uniform"), ("min", "max", "q")),
    **dict.fromkeys(NORMAL, ("mu", "sigma")),
    **dict.fromkeys(("q_normal", "q_log_normal"), ("mu", "sigma", "q")),
}
"""Distribution -> the numbers that describe it."""
DEFAULTS = {"mu": 0, "sigma": 1, "q": 1}
COUNTABLE = ("int_uniform", "int_log_uniform", "q_uniform", "q_log_uniform")
"""Distributions with countable values, which a grid can enumerate."""
IMPLIED = {"constant": "value", "categorical": "values", "categorical_w_probabilities": "values"}
"""Distributions that are given by a key instead."""
LOOSE = 1e-3
"""Tolerance of the sum of probabilities: three times 0.333 is accepted."""
_NAME = re.compile(r"[\w.@/$][\w.@/$-]{0,199}")


def name_of(where: str, path: str, name: str) -> str:
    """Return the name of a parameter if it is valid in commands, templates and logs."""
    if not _NAME.fullmatch(name):
        raise InvalidSweep(
            f"{where}: {path} has the name {name[:60]!r}; a name of letters, digits and "
            "_ . - / @ $ was expected, without - at its beginning."
        )
    return name


def spec(raw: object, path: str, values: Values) -> dict[str, Any]:
    """Check one parameter and return it in its shortest form."""
    fields = Field(values.where, path, raw).table("a table with value, values, or min and max")
    kind = _kind(fields)
    if kind == "value":
        fields.reject_unknown(("value", "distribution"))
        return {"value": values.one(f"{path}.value", fields.values["value"])}
    if kind == "values":
        return _listed(fields, values)
    fields.reject_unknown(("distribution", *KEYS[kind]))
    checked: dict[str, Any] = {"distribution": kind}
    for key in KEYS[kind]:
        if key not in fields and key not in DEFAULTS:
            raise fields.error(f"has no {key}; {kind} needs {_and(KEYS[kind])}")
        checked[key] = fields.field(key, DEFAULTS.get(key)).number()
    _check_numbers(Table(values.where, path, checked))
    return checked


def _kind(fields: Table) -> str:
    """Return what defines the parameter: "value", "values" or a distribution."""
    given = fields.field("distribution")
    if given.value is not None:
        kind = given.choice((*KEYS, *IMPLIED))
        kind = IMPLIED.get(kind, kind)
        if kind in {"value", "values"} and kind not in fields:
            raise fields.error(f"has no {kind}; {given.value} needs it")
        return kind
    ways: list[str] = [key for key in ("value", "values") if key in fields]
    if "min" in fields or "max" in fields:
        ways.append("min and max")
    if len(ways) > 1:
        raise fields.error(f"has {' as well as '.join(ways)}; one of them is enough")
    if not ways:
        keys = ("value", "values", "min", "max", "distribution")
        fields.reject_unknown((*keys, "mu", "sigma", "q", "probabilities"))
        raise fields.error("has no value, values, min and max, or distribution")
    if ways[0] != "min and max":
        return ways[0]
    limits = (fields.values.get("min"), fields.values.get("max"))
    return "int_uniform" if all(type(limit) is int for limit in limits) else "uniform"


def _listed(fields: Table, values: Values) -> dict[str, Any]:
    fields.reject_unknown(("values", "probabilities", "distribution"))
    field = fields.field("values")
    listed = field.value
    if not isinstance(listed, list | tuple) or not listed:
        raise field.invalid("a list of values")
    checked: dict[str, Any] = {
        "values": [values.one(f"{field.path}[{i}]", value) for i, value in enumerate(listed)]
    }
    probabilities = fields.field("probabilities")
    shares = probabilities.value
    if shares is None:
        if fields.values.get("distribution") == "categorical_w_probabilities":
            raise fields.error("has no probabilities; its distribution needs them")
        return checked
    if not isinstance(shares, list | tuple) or len(shares) != len(listed):
        raise probabilities.invalid(f"a list of {len(listed)} numbers")
    path = probabilities.path
    numbers = [
        Field(fields.where, f"{path}[{i}]", share).number() for i, share in enumerate(shares)
    ]
    if any(share < 0 for share in numbers) or abs(sum(numbers) - 1) > LOOSE:
        raise probabilities.error(
            f"add up to {sum(numbers):.6g}; non-negative numbers that add up to 1 were expected"
        )
    return {**checked, "probabilities": numbers}


def _check_numbers(spec: Table) -> None:
    numbers, kind = spec.values, spec.values["distribution"]
    if "max" in spec and numbers["min"] > numbers["max"]:
        raise spec.field("min").invalid(f"at most its max, {numbers['max']},")
    if kind.startswith("int_"):
        for key in ("min", "max"):
            if not isinstance(numbers[key], int):
                raise spec.field(key).invalid("a whole number")
    if "min" in spec and "log" in kind and numbers["min"] <= 0:
        raise spec.field("min").invalid("a number above 0, since it is logarithmic,")
    for key in ("sigma", "q"):
        if key in spec and numbers[key] <= 0:
            raise spec.field(key).invalid("a number above 0")


def in_grid(spec: dict[str, Any], where: str, path: str) -> dict[str, Any]:
    """Check a parameter of a grid: finitely many values; remove duplicates."""
    kind = spec.get("distribution")
    if kind is not None and kind not in COUNTABLE and spec.get("min", 0) != spec.get("max", 1):
        raise InvalidSweep(
            f"{where}: {path} is {kind}, which has infinitely many values; for method grid give "
            "values or a step q with q_uniform, or use method random or sobol."
        )
    if "values" not in spec:
        return spec
    first: dict[str, int] = {}
    places = [first.setdefault(canonical({"": v}), i) for i, v in enumerate(spec["values"])]
    if len(first) == len(places):
        return spec
    distinct: dict[str, Any] = {"values": [spec["values"][i] for i in first.values()]}
    if "probabilities" in spec:
        shares = dict.fromkeys(first.values(), 0.0)
        for index, share in zip(places, spec["probabilities"], strict=True):
            shares[index] += share
        distinct["probabilities"] = list(shares.values())
    return distinct


def _and(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1]
