"""What may be chosen of a policy besides its name: which figures, and within which bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite

from stoker.core.policy.rules import DAY, NAMES, PARAMETERS, Knows, Order, Policy, policy
from stoker.core.units import LONGEST, BadValue, parse_duration

TIMES = ("floor", "quantum", "patience")
"""Parameters that are durations."""
RANGES = {
    "fair": (0.0, 10.0),
    "floor": (1.0, 30 * DAY),
    "grain": (1.01, 16.0),
    "ageing": (0.1, 1e6),
    "hysteresis": (1.0, 1000.0),
    "quantum": (0.0, 30 * DAY),
    "patience": (0.0, float(LONGEST)),
    "overdue": (0.0, 1e6),
}


def read_parameters(name: str, parameters: Mapping[str, float | str]) -> dict[str, float]:
    """The parameters that were said for a policy, in seconds and numbers.

    Raises BadValue, also for a policy that there is not.
    """
    if name not in NAMES:
        hint = _meant(name, NAMES)
        raise BadValue(f"There is no policy '{name}'.{hint} See: stoker policy --list")
    counts = counts_for(policy(name))
    listed = ", ".join(counts)
    for parameter in parameters:
        if parameter not in PARAMETERS:
            hint = _meant(parameter, counts)
            raise BadValue(f"There is no parameter '{parameter}'.{hint} {name} has: {listed}.")
        if parameter not in counts:
            raise BadValue(f"{name} has no parameter {parameter}. It has: {listed}.")
    return {parameter: figure(parameter, said) for parameter, said in parameters.items()}


def _meant(word: str, choices: Iterable[str]) -> str:
    found = get_close_matches(word.lower(), choices, n=1)
    return f" Did you mean {found[0]}?" if found else ""


def counts_for(rules: Policy) -> tuple[str, ...]:
    """The parameters that a policy goes by."""
    ranked = rules.order in (Order.TIME, Order.SERVICE)
    learns = ranked and rules.knows is not Knows.SAID
    idle = set() if rules.preempts else {"hysteresis", "quantum"}
    idle |= set() if learns else {"floor", "grain"}
    idle |= set() if learns and not rules.longest else {"ageing"}
    idle |= set() if ranked and not rules.longest else {"patience", "overdue"}
    return tuple(name for name in PARAMETERS if name not in idle)


def figure(name: str, said: float | str) -> float:
    """A parameter that was typed, or sent as a number (of seconds)."""
    least, most = RANGES[name]
    if isinstance(said, str) and name in TIMES:
        if not said.strip():
            raise BadValue(f"{name}= has no value. Write {name}=20m or {name}=90s.")
        if said.strip().isdecimal() and int(said) != 0:
            raise BadValue(f"{name}={said} has no unit. Write {name}={said}m or {name}={said}s.")
        value = float(parse_duration(said, name))
    else:
        try:
            value = float(said)
        except ValueError:
            raise BadValue(f"{name} takes a number, not '{said}'.") from None
    if not isfinite(value) or not least <= value <= most:
        between = f"{least:g} and {most:g}"
        if name in TIMES:
            between = f"{least:g} s and {most / DAY:.0f} days"
        raise BadValue(f"{name} must be between {between}, not {said}.")
    return value
