"""Colour, only where somebody sees it."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.terminal import COLOURS

STATE_COLOURS = {
    "R": "green",
    "CF": "green",
    "CG": "green",
    "PD": "yellow",
    "S": "blue",
    "CD": "dim",
    "CA": "dim",
    "F": "red",
    "TO": "red",
    "OOM": "red",
    "NF": "red",
    "DL": "red",
}


def wanted(fd: int = 1) -> bool:
    """Whether to colour what goes to `fd`: flags, then the usual variables, then the terminal."""
    if output.force_colour is not None:
        return output.force_colour
    environ = os.environ
    if environ.get("NO_COLOR"):
        return False
    for name in ("CLICOLOR_FORCE", "FORCE_COLOR"):
        if environ.get(name, "0") != "0":
            return True
    return environ.get("TERM", "dumb") != "dumb" and output.is_terminal(fd)


def paint(text: str, *names: str) -> str:
    """Wrap text in the codes of these colours; no names, no codes."""
    codes = ";".join(COLOURS[name] for name in names if name)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text
