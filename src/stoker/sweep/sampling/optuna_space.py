"""Parameters as Optuna's distributions, and the conversion of values in both directions.

Where Optuna has no such distribution an equivalent is used: the index of a choice (values may be
of any type, also 1 and true), the factor of a multiple of q, the quantile of a normal number.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from stoker.sweep.sampling.space import (
    at,
    bounds,
    choices,
    grid_values,
    has_integer_values,
    multiple,
    tidy,
)
from stoker.sweep.values import canonical


class InvalidParameterValue(Exception):
    """A value that the current definition of the parameter does not allow."""


class Axis:
    """One parameter with more than one value."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.kind: str = spec.get("distribution", "choice")
        self.choices = choices(spec) if "values" in spec else []
        self.places = {_text(value): index for index, value in enumerate(self.choices)}
        self.distribution = self._distribution()

    def _distribution(self) -> BaseDistribution:
        spec, kind = self.spec, self.kind
        if kind == "choice":
            return CategoricalDistribution(range(len(self.choices)))
        if kind in {"uniform", "log_uniform"}:
            return FloatDistribution(spec["min"], spec["max"], log=kind == "log_uniform")
        if kind in {"int_uniform", "int_log_uniform"}:
            return IntDistribution(spec["min"], spec["max"], log=kind == "int_log_uniform")
        if kind in {"q_uniform", "q_log_uniform"}:
            return IntDistribution(*bounds(spec), log=kind == "q_log_uniform")
        return FloatDistribution(0.0, 1.0)

    def value(self, inside: Any) -> Any:
        """Return the value of Optuna's number."""
        spec, kind = self.spec, self.kind
        if kind == "choice":
            return self.choices[inside]
        if kind in {"uniform", "log_uniform"}:
            return tidy(spec, inside)
        if kind in {"int_uniform", "int_log_uniform"}:
            return inside
        if kind in {"q_uniform", "q_log_uniform"}:
            return multiple(inside, spec["q"], has_integer_values(spec))
        return at(spec, inside)

    def inside(self, value: Any) -> Any:
        """Return Optuna's number of a value; raise InvalidParameterValue if there is none."""
        if self.kind == "choice":
            index = self.places.get(_text(value))
            if index is None:
                raise InvalidParameterValue
            return index
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParameterValue
        internal = self._number(value)
        if "min" in self.spec and not self.spec["min"] <= value <= self.spec["max"]:
            raise InvalidParameterValue
        return internal

    def _number(self, value: float) -> float:
        spec, kind = self.spec, self.kind
        if kind in {"uniform", "log_uniform"}:
            return float(value)
        if kind in {"int_uniform", "int_log_uniform"}:
            if value != int(value):
                raise InvalidParameterValue
            return int(value)
        if kind in {"q_uniform", "q_log_uniform"}:
            return round(value / float(spec["q"]))
        if kind.endswith("log_normal"):
            value = math.log(value) if value > 0 else -math.inf
        spread = spec["sigma"]
        return NormalDist(spec["mu"], spread).cdf(value) if spread > 0 else 0.5


def axes_and_constants(parameters: dict[str, Any]) -> tuple[dict[str, Axis], dict[str, Any]]:
    """Return the parameters with more than one value, and the values of the others."""
    axes, constants = {}, {}
    for name, spec in parameters.items():
        values = grid_values(spec)
        if values is not None and len(values) == 1:
            constants[name] = values[0]
        else:
            axes[name] = Axis(spec)
    return axes, constants


def _text(value: Any) -> str:
    return canonical({"": value})
