"""Values that several groups of options parse in the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.core.model.units import BadValue


def is_set(options: Mapping[str, Any], key: str) -> bool:
    """Whether a switch is set; it may be given as text."""
    return options.get(key) not in (None, False, "false", "no", "0")


def parse_integer(text: str, what: str) -> int:
    """Parse a whole number of at most nine digits."""
    if not re.fullmatch(r"[+-]?\d+", text.strip(), re.ASCII):
        raise BadValue(f"{what} '{text}' is not a whole number.")
    if len(text.strip().lstrip("+-")) > 9:
        raise BadValue(f"{what} '{text[:20]}' is too large a number.")
    return int(text)


def parse_count(text: str, what: str) -> int:
    """Parse a whole number of at least one."""
    number = parse_integer(text, what)
    if number < 1:
        raise BadValue(f"{what} must be at least 1.")
    return number
