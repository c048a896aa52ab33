"""Parameters of a policy: which ones it uses, their ranges, and parsing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite

from stoker.core.model.units import MAX_DURATION_SECONDS, BadValue, parse_duration
from stoker.core.policies.policy import DAY, NAMES, DurationSource, Policy, QueueOrder, policy

DURATION_PARAMETERS = ("floor", "quantum", "patience")
"""Parameters given as durations."""
RANGES = {
    "fair": (0.0, 10.0),
    "floor": (1.0, 30 * DAY),
    "grain": (1.01, 16.0),
    "ageing": (0.1, 1e6),
    "hysteresis": (1.0, 1000.0),
    "quantum": (0.0, 30 * DAY),
    "patience": (0.0, float(MAX_DURATION_SECONDS)),
    "overdue": (0.0, 1e6),
}
"""The parameters that a user may set, and the least and the greatest value of each."""


def read_parameters(name: str, parameters: Mapping[str, float | str]) -> dict[str, float]:
    """Return the typed parameters of a policy in seconds and numbers.

    Raises BadValue, also for an unknown policy.
    """
    if name not in NAMES:
        hint = _closest(name, NAMES)
        raise BadValue(f"There is no policy '{name}'.{hint} See: stoker policy --list")
    used = parameters_of(policy(name))
    listed = ", ".join(used)
    for parameter in parameters:
        if parameter not in RANGES:
            hint = _closest(parameter, used)
            raise BadValue(f"There is no parameter '{parameter}'.{hint} {name} has: {listed}.")
        if parameter not in used:
            raise BadValue(f"{name} has no parameter {parameter}. It has: {listed}.")
    return {parameter: parse_parameter(parameter, text) for parameter, text in parameters.items()}


def _closest(word: str, choices: Iterable[str]) -> str:
    matches = get_close_matches(word.lower(), choices, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


def parameters_of(policy: Policy) -> tuple[str, ...]:
    """Return the parameters that a policy uses."""
    ranked = policy.order in (QueueOrder.REMAINING_TIME, QueueOrder.REMAINING_SERVICE)
    learns = ranked and policy.durations is not DurationSource.DECLARED
    unused = set() if policy.preempts else {"hysteresis", "quantum"}
    unused |= set() if learns else {"floor", "grain"}
    unused |= set() if learns and not policy.longest_first else {"ageing"}
    unused |= set() if ranked and not policy.longest_first else {"patience", "overdue"}
    return tuple(name for name in RANGES if name not in unused)


def parse_parameter(name: str, text: float | str) -> float:
    """Return the value of a parameter that was typed, or sent as a number (of seconds)."""
    low, high = RANGES[name]
    if isinstance(text, str) and name in DURATION_PARAMETERS:
        if not text.strip():
            raise BadValue(f"{name}= has no value. Write {name}=20m or {name}=90s.")
        if text.strip().isdecimal() and int(text) != 0:
            raise BadValue(f"{name}={text} has no unit. Write {name}={text}m or {name}={text}s.")
        value = float(parse_duration(text, name))
    else:
        try:
            value = float(text)
        except ValueError:
            raise BadValue(f"{name} takes a number, not '{text}'.") from None
    if not isfinite(value) or not low <= value <= high:
        between = f"{low:g} and {high:g}"
        if name in DURATION_PARAMETERS:
            between = f"{low:g} s and {high / DAY:.0f} days"
        raise BadValue(f"{name} must be between {between}, not {text}.")
    return value
