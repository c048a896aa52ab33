"""Convert W&B's distributions: limits become values, never exponents."""

from __future__ import annotations

import math

from stoker.sweep.definition.parameter import IMPLIED, KEYS
from stoker.sweep.validation import Field
from stoker.sweep.values import parse_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
"""Distributions with limits that are exponents of e in W&B."""
EQUIVALENT = {
    "log_uniform_values": "log_uniform",
    "q_log_uniform_values": "q_log_uniform",
    # log(1/X) is uniform if log(X) is.
    "inv_log_uniform": "log_uniform",
    "inv_log_uniform_values": "log_uniform",
}
NUMBERS = ("min", "max", "mu", "sigma", "q")


def parameter(where: str, path: str, raw: object) -> dict[str, Any]:
    """Return one parameter of a W&B file in the format of `parameter.spec`."""
    fields = Field(where, path, raw).table("a table with value, values, or min and max")
    spec = dict(fields.values)
    for key in NUMBERS:
        if isinstance(spec.get(key), str):  # 1e-4, which YAML 1.1 reads as text
            spec[key] = parse_number(spec[key])
    kind = spec.get("distribution")
    if kind is None:
        return spec
    if kind in {"beta", "q_beta"}:
        raise fields.field("distribution").error(f"{kind} is not supported; use uniform or normal")
    fields.field("distribution").choice((*KEYS, *EQUIVALENT, *IMPLIED))
    spec["distribution"] = EQUIVALENT.get(kind, kind)
    if kind in EXPONENTS:
        _raise(where, path, spec, inverse=kind.startswith("inv_"))
    if kind.startswith("q_"):
        _in_steps(spec)
    return spec


def doubtful(where: str, path: str, raw: dict[str, Any]) -> list[str]:
    """Return a warning about limits that look like values where W&B expects exponents."""
    limits = [parse_number(str(raw.get(key))) for key in ("min", "max")]
    kind = raw.get("distribution")
    if kind not in EXPONENTS or not all(
        isinstance(limit, int | float) and 0 < limit < 1 for limit in limits
    ):
        return []
    low, high = (math.exp(limit) for limit in limits if isinstance(limit, int | float))
    return [
        (f"{where}: {path} runs from {low:.6g} to {high:.6g}, since W&B's {kind} takes exponents "
        f"of e; if {limits[0]} and {limits[1]} are the limits themselves, use {kind}_values.")
    ]  # fmt: skip


def _raise(where: str, path: str, spec: dict[str, Any], inverse: bool) -> None:
    """Replace limits that are exponents of e by their values."""
    limits = {}
    for key in ("min", "max"):
        if key not in spec:
            return  # reported by the validation of the definition
        field = Field(where, f"{path}.{key}", spec[key])
        exponent = field.number()
        if abs(exponent) > 700:
            raise field.invalid("an exponent of e (limits that are values have log_uniform_values)")
        limits[key] = -exponent if inverse else exponent
    if inverse:
        limits = {"min": limits["max"], "max": limits["min"]}
    spec.update({key: math.exp(exponent) for key, exponent in limits.items()})


def _in_steps(spec: dict[str, Any]) -> None:
    """Round limits to multiples of an integer q: then the values are integers, as in W&B."""
    q = spec.get("q", 1)
    limits = [spec.get(key) for key in ("min", "max")]
    if type(q) is not int or q < 1 or all(type(limit) is int for limit in limits):
        return
    for key, limit in zip(("min", "max"), limits, strict=True):
        if isinstance(limit, int | float) and math.isfinite(limit):
            steps = round(limit / q)
            spec[key] = q * (max(steps, 1) if "log" in spec["distribution"] else steps)
