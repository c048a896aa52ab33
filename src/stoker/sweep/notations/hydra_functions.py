"""Functions in values: Hydra's sweep functions, and distributions by name."""

from __future__ import annotations

from stoker.sweep.definition.parameter import KEYS
from stoker.sweep.hydra_values import Call, InvalidValue
from stoker.sweep.validation import MAX_VALUES
from stoker.sweep.values import canonical, format_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CASTS = ("int", "float", "str", "bool")
MISSING = object()
LOGARITHMIC = {"uniform": "log_uniform", "int_uniform": "int_log_uniform"}


def swept(call: Call) -> dict[str, Any] | None:
    """Return the parameter that a call describes; None for a single value."""
    if call.name in KEYS:
        return _distribution(call)
    if call.name in CASTS:
        return _cast(call)
    function = FUNCTIONS.get(call.name)
    if function is None:
        return None
    return function(call)


def known(name: str) -> bool:
    """Return True for the name of a sweep function."""
    return name in FUNCTIONS or name in KEYS or name in CASTS


def names() -> list[str]:
    """Return all functions that users may use."""
    return [name for name in FUNCTIONS if name != "glob"] + list(KEYS)


def _distribution(call: Call) -> dict[str, Any]:
    keys = KEYS[call.name]
    given = {key: value for key, value in _bound(call, *keys).items() if value is not MISSING}
    return {"distribution": call.name, **given}


def _choice(call: Call) -> dict[str, Any]:
    if call.named or not call.args:
        raise InvalidValue("choice() takes values: choice(1,2,3)")
    return {"values": _plain(call.args)}


def _range(call: Call) -> dict[str, Any]:
    """Return numbers from start to below stop in decimal arithmetic: three times 0.1 is 0.3."""
    from decimal import Decimal
    from math import ceil

    given = _bound(call, "start", "stop", "step")
    start, stop, step = given["start"], given["stop"], given["step"]
    if stop is MISSING:
        start, stop = 0, start
    numbers = [start, stop, 1 if step is MISSING else step]
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise InvalidValue("range() takes numbers: range(start,stop) or range(start,stop,step)")
    first, last, by = (Decimal(repr(number)) for number in numbers)
    if not by:
        raise InvalidValue("the step of range() is 0")
    count = ceil((last - first) / by)
    if not 0 < count <= MAX_VALUES:
        raise InvalidValue(f"range() has {max(count, 0):,} values; 1 to {MAX_VALUES:,} are allowed")
    kind = int if all(isinstance(number, int) for number in numbers) else float
    return {"values": [kind(first + by * index) for index in range(count)]}


def _interval(call: Call) -> dict[str, Any]:
    given = _bound(call, "start", "end")
    if MISSING in given.values():
        raise InvalidValue("interval() takes two numbers: interval(0,1)")
    return {"distribution": "uniform", "min": given["start"], "max": given["end"]}


def _tag(call: Call) -> dict[str, Any]:
    """Return a sweep without its tags; only `log` has an effect."""
    *tags, last = [*call.args, call.named.get("sweep")] if call.named else call.args or [None]
    spec = swept(last) if isinstance(last, Call) else None
    if spec is None:
        raise InvalidValue(
            "the last argument of tag() must be a sweep: tag(log, interval(1e-5,0.1))"
        )
    if "log" in tags and "distribution" in spec:
        spec["distribution"] = LOGARITHMIC.get(spec["distribution"], spec["distribution"])
    return spec


def _sort(call: Call) -> dict[str, Any] | None:
    backwards = call.named.get("reverse", False)
    values = _several(call, "reverse")
    if values is None:
        return None
    try:
        return {"values": sorted(values, reverse=backwards is True)}
    except TypeError:
        raise InvalidValue("sort() cannot compare texts and numbers") from None


def _shuffle(call: Call) -> dict[str, Any] | None:
    """Shuffle the values with a fixed seed, so that it is the same sweep again."""
    import random

    values = _several(call)
    if values is None:
        return None
    values = sorted(values, key=lambda value: canonical({"": value}))
    random.Random(len(values)).shuffle(values)
    return {"values": values}


def _glob(call: Call) -> dict[str, Any]:
    raise InvalidValue("glob() needs Hydra's own config groups; list the names instead")


def _cast(call: Call) -> dict[str, Any] | None:
    """Return a sweep with values converted to int, float, str or bool; None for one value."""
    kind = call.name
    only = call.args[0] if len(call.args) == 1 else None
    if len(call.args) > 1:
        spec: dict[str, Any] | None = {"values": _plain(call.args)}
    else:
        spec = swept(only) if isinstance(only, Call) else None
    if spec is None:
        return None
    if "values" in spec:
        return {"values": [_as(kind, value) for value in spec["values"]]}
    if kind == "float":
        return spec
    if kind != "int" or spec["distribution"] not in {"uniform", "log_uniform"}:
        raise InvalidValue(f"{kind}() cannot be applied to {spec['distribution']}")
    limits = {key: _as("int", spec[key]) for key in ("min", "max")}
    return {"distribution": f"int_{spec['distribution']}", **limits}


def _as(kind: str, value: Any) -> Any:
    if kind == "str" and not isinstance(value, list | dict):
        return format_value(value) if isinstance(value, str | float) else _hydra_word(value)
    if kind == "bool" and isinstance(value, str):
        if value.lower() in {"true", "false"}:
            return value.lower() == "true"
    elif isinstance(value, str | int | float):
        try:
            return {"int": int, "float": float, "bool": bool}[kind](value)
        except (ValueError, OverflowError, KeyError):
            pass
    raise InvalidValue(f"{kind}() cannot be applied to {value!r}")


def _hydra_word(value: Any) -> str:
    return "null" if value is None else repr(value).lower()


def _several(call: Call, *named: str) -> list[Any] | None:
    """Return the values of a call that orders them; None for a single list."""
    if set(call.named) - {*named, "sweep"}:
        return None
    args = [*call.args, *([call.named["sweep"]] if "sweep" in call.named else [])]
    if len(args) == 1 and isinstance(args[0], Call):
        spec = swept(args[0])
        if spec is None or "values" not in spec:
            raise InvalidValue(f"{call.name}() takes values, choice() or range()")
        return list(spec["values"])
    return _plain(args) if len(args) > 1 else None


def _plain(args: list[Any]) -> list[Any]:
    for value in args:
        if isinstance(value, Call):
            raise InvalidValue(f"{value.name}() cannot be combined with other values")
    return args


def _bound(call: Call, *keys: str) -> dict[str, Any]:
    """Return the arguments by name, whether they were given by name or by position."""
    places = keys[: len(call.args)]
    twice = [key for key in call.named if key in places or key not in keys]
    if twice or len(call.args) > len(keys):
        raise InvalidValue(f"{call.name}() takes {', '.join(keys)}")
    _plain([*call.args, *call.named.values()])
    given = dict(zip(places, call.args, strict=True)) | call.named
    return {key: given.get(key, MISSING) for key in keys}


FUNCTIONS: dict[str, Callable[[Call], dict[str, Any] | None]] = {
    "choice": _choice,
    "range": _range,
    "interval": _interval,
    "tag": _tag,
    "sort": _sort,
    "shuffle": _shuffle,
    "glob": _glob,
}
