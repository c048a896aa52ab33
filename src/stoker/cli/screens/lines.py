"""Lines of coloured pieces that fit a width."""

from __future__ import annotations

from stoker.cli.output import colour
from stoker.cli.output.table import display_width, shorten
from stoker.terminal import ESCAPE, clean

Piece = tuple[str, str]
"""Text and a colour name, empty for none."""

LEVELS = "▁▂▃▄▅▆▇█"


def fit(pieces: list[Piece], width: int, *, marked: bool = False, chosen: bool = False) -> str:
    """Return a line of at most `width` cells; `marked`: at the cursor, `chosen`: selected by x."""
    parts, left = [], width - 2
    for raw, name in pieces:
        if left <= 0:
            break
        text = clean(raw)
        size = display_width(text)
        if size > left:
            text, size = shorten(text, left), left
        left -= size
        names = [name, "bold"] if marked else [name]
        parts.append(colour.paint(text, *[each for each in names if each]))
    return f"{'>' if marked else ' '}{'*' if chosen else ' '}" + "".join(parts)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return text with exactly this width."""
    text = clean(text)
    size = display_width(text)
    if size > width:
        text = shorten(text, width)
        size = display_width(text)
    space = " " * (width - size)
    return space + text if right else text + space


def uncoloured(line: str) -> str:
    """Return a line of output without its colours and other control sequences."""
    first, *sequences = line.split(ESCAPE)
    return first + "".join(
        text[1:].lstrip("0123456789;?")[1:] if text[:1] == "[" else ESCAPE + text
        for text in sequences
    )


def column_width(texts: list[str], least: int, most: int) -> int:
    """Return the width of the longest text, within limits, and of the space behind it."""
    longest = max((display_width(clean(text[:most])) for text in texts), default=0)
    return min(max(longest, least), most) + 1


def bars(values: list[float | None], width: int, top: float = 100.0) -> str:
    """Return the last values as bars of eight heights; a gap is unknown."""
    text = ""
    for value in values[-width:]:
        if value is None:
            text += " "
        else:
            text += LEVELS[min(max(int(value / top * len(LEVELS)), 0), len(LEVELS) - 1)]
    return text.rjust(width)


def progress_bar(done: int, total: int, width: int) -> str:
    """Return a bar, and the share in percent: `███····· 37%`."""
    part = min(done / total, 1.0) if total else 0.0
    full = int(part * width)
    return "█" * full + "·" * (width - full) + f"{100 * part:>3.0f}%"


def window(cursor: int, top: int, height: int) -> int:
    """Return the first line to show, so that the cursor is visible."""
    cursor = max(cursor, 0)
    if cursor < top:
        return cursor
    return max(top, cursor - height + 1)
