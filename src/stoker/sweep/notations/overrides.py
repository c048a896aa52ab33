"""Sweeps on a command line: Hydra's overrides (`lr=0.1,0.01`), and `--param NAME=VALUES`."""

from __future__ import annotations

import re

from stoker.sweep.definition.parameter import name_of, spec
from stoker.sweep.definition.placeholders import ASSIGNMENT, MACROS, OVERRIDE
from stoker.sweep.hydra_values import Call, InvalidValue, hydras, read
from stoker.sweep.notations.hydra_functions import known, names, swept
from stoker.sweep.validation import InvalidSweep, Values, guess
from stoker.sweep.values import parse_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CALLED = re.compile(r"[ \t]*([A-Za-z_][\w-]*)[ \t]*\(", re.ASCII)
_NESTED = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|\$?\{[^{}]*\}|\[[^][]*\]|\([^()]*\)"""
)


def split(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split a command into words with `${param:NAME}` in place of sweeps, and parameters.

    Overrides without a sweep (`db=mysql`) and all other words stay.
    """
    start = _program(words)
    kept, parameters = list(words[:start]), {}
    for word in words[start:]:
        override = OVERRIDE.match(word)
        if override is None or override["sign"] == "~":
            kept.append(word)
            continue
        sweep = _sweep(word, override["value"])
        if sweep is None:
            kept.append(_literal(word))
            continue
        name = name_of(word, "the override", override["key"])
        if name in parameters:
            raise InvalidSweep(f"{word}: {name} is swept twice; once is enough.")
        parameters[name] = spec(sweep, name, Values(word))
        kept.append(f"{override['sign']}{name}=${{param:{name}}}")
    return kept, parameters


def param_option(text: str) -> tuple[str, dict[str, Any]]:
    """Parse the argument of --param: a name, and values or a distribution."""
    where = f"--param {text}"
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidSweep(f"{where}: NAME=VALUE,VALUE or NAME=uniform(0,1) was expected.")
    name_of(where, "it", name.strip())
    if not value.strip():
        raise InvalidSweep(f"{where}: a value was expected after the =.")
    try:
        parsed = _read(value, parse_value)
    except InvalidValue as why:
        raise InvalidSweep(f"{where}: {why}.") from None
    if isinstance(parsed, Call):
        raise InvalidSweep(
            f"{where}: {parsed.name}() is not known; {guess(parsed.name, names())} "
            "Put a text with parentheses in quotes."
        )
    raw = parsed if isinstance(parsed, dict) else {"value": parsed[0]}
    return name.strip(), spec(raw, name.strip(), Values(where))


def _read(value: str, bare: Callable[[str], Any] = hydras) -> dict[str, Any] | list[Any] | Call:
    """Return a parameter, a list with a single value, or a call that is not a sweep."""
    elements = read(value, bare)
    if len(elements) == 1:
        only = elements[0]
        if not isinstance(only, Call):
            return [only]
        return swept(only) or only
    for element in elements:
        if isinstance(element, Call):
            raise InvalidValue(f"{element.name}() cannot be combined with other values")
    return {"values": elements}


def _sweep(word: str, value: str) -> dict[str, Any] | None:
    """Return the parameter of an override; None if it is not a sweep."""
    try:
        parsed = _read(value) if value.strip() else None
    except InvalidValue as why:
        if _means_a_sweep(value):
            raise InvalidSweep(f"{word}: {why}.") from None
        return None
    return parsed if isinstance(parsed, dict) else None


def _means_a_sweep(value: str) -> bool:
    """Return True if a value that cannot be parsed looks like several."""
    called = _CALLED.match(value)
    if called:
        return known(called[1])
    before = None
    while before != value:
        before, value = value, _NESTED.sub("", value)
    return "," in value and not any(bracket in value.partition(",")[0] for bracket in "([{")


def _literal(word: str) -> str:
    """Return a word that stays, with Hydra's own ${...} escaped."""
    return re.sub(
        r"\$\{([^{}:]*)",
        lambda match: match[0] if match[1] in MACROS else f"${match[0]}",
        word,
    )


def _program(words: list[str]) -> int:
    """Return the index after the program; assignments before it are not overrides."""
    at = 0
    while at < len(words) and ASSIGNMENT.match(words[at]):
        at += 1
    if at < len(words) and words[at].rpartition("/")[2] == "env":
        at += 1
        while at < len(words) and (words[at].startswith("-") or ASSIGNMENT.match(words[at])):
            at += 1
    return at + 1
