"""ANSI colours, by default on terminals only."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.terminal import COLOURS

STATE_COLOURS = {
    **dict.fromkeys(("R", "CF", "CG"), "green"),
    "PD": "yellow",
    "S": "blue",
    **dict.fromkeys(("CD", "CA"), "dim"),
    **dict.fromkeys(("F", "TO", "OOM", "NF", "DL"), "red"),
}


def is_enabled() -> bool:
    """Return True if stdout is coloured: by option, variables, or terminal."""
    if output.force_colour is not None:
        return output.force_colour
    environ = os.environ
    if environ.get("NO_COLOR"):
        return False
    for name in ("CLICOLOR_FORCE", "FORCE_COLOR"):
        if environ.get(name, "0") != "0":
            return True
    return environ.get("TERM", "dumb") != "dumb" and output.is_terminal(1)


def paint(text: str, *names: str) -> str:
    """Return text in these colours, if output to stdout is coloured."""
    return coded(text, *names) if is_enabled() else text


def coded(text: str, *names: str) -> str:
    """Return text with the codes of these colours."""
    codes = ";".join(COLOURS[name] for name in names if name)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text
