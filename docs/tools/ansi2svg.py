#!/usr/bin/env python3
"""Turn a captured terminal screen into an SVG picture, colours included.

    tmux capture-pane -e -p | docs/tools/ansi2svg.py --title 'stoker' > docs/images/queue.svg

Standard library only. Each run of equal style is one piece of text with its width fixed, so
that columns stay columns in whatever monospace font the reader has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

FONT = "ui-monospace, 'SF Mono', 'JetBrains Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"
SIZE, WIDTH, HEIGHT = 14, 8.43, 19
MARGIN, BAR = 18, 36
INK, PAPER, FRAME, FAINT = "#d8dee6", "#12161c", "#1b212a", "#7d8896"
COLOURS = (
    "#3b4350", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#d8dee6",
    "#7d8896", "#ffa198", "#a5f0b0", "#f2cc60", "#a5d6ff", "#e2c5ff", "#b3f0f5", "#ffffff",
)  # fmt: skip
DOTS = ("#ff5f57", "#febc2e", "#28c840")
SEQUENCE = re.compile(r"\x1b\[([\d;:]*)m|\x1b\[[\d;?]*[A-Za-ln-z]|\x1b[()][A-Z0-9]|[\x0e\x0f\r]")


class Style(NamedTuple):
    """How a character looks."""

    ink: str | None = None
    paper: str | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    swapped: bool = False


def main() -> None:
    """Read a screen from stdin, write the picture to stdout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--title", default="")
    parser.add_argument("--columns", type=int, default=0, help="at least so wide")
    args = parser.parse_args()
    text = sys.stdin.read().rstrip("\n")
    rows = [list(row) for row in runs(text)]
    sys.stdout.write(picture(rows, args.title, args.columns))


def runs(text: str) -> Iterator[Iterator[tuple[str, Style]]]:
    """Yield the runs of equal style of each line; a style lasts beyond the end of its line."""
    style = Style()
    for line in text.split("\n"):
        found: list[tuple[str, Style]] = []
        start = 0
        for match in SEQUENCE.finditer(line):
            if match.start() > start:
                found.append((line[start : match.start()], style))
            if match[1] is not None:
                style = restyled(style, [int(code or 0) for code in re.split("[;:]", match[1])])
            start = match.end()
        if line[start:]:
            found.append((line[start:], style))
        yield iter(found)


def restyled(style: Style, codes: list[int]) -> Style:
    """Apply the numbers of one colour sequence."""
    marks = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "swapped"}
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = Style()
        elif code in marks:
            style = style._replace(**{marks[code]: True})
        elif code == 22:
            style = style._replace(bold=False, dim=False)
        elif code in (23, 24, 27):
            style = style._replace(**{marks[code - 20]: False})
        elif code in (38, 48):
            field = "ink" if code == 38 else "paper"
            style = style._replace(**{field: extended(codes)})
        elif code in (39, 49):
            style = style._replace(**{"ink" if code == 39 else "paper": None})
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = style._replace(ink=COLOURS[code % 10 + (8 if code >= 90 else 0)])
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style = style._replace(paper=COLOURS[code % 10 + (8 if code >= 100 else 0)])
    return style


def extended(codes: list[int]) -> str | None:
    """Read `5;N` or `2;R;G;B`, taking the numbers off the list."""
    kind = codes.pop(0) if codes else 0
    if kind == 2 and len(codes) >= 3:
        red, green, blue = codes[:3]
        del codes[:3]
        return f"#{red:02x}{green:02x}{blue:02x}"
    if kind != 5 or not codes:
        return None
    number = codes.pop(0)
    if number < 16:
        return COLOURS[number]
    if number >= 232:
        return f"#{(8 + 10 * (number - 232)):02x}" + f"{(8 + 10 * (number - 232)):02x}" * 2
    steps = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    return f"#{steps[red]:02x}{steps[rest // 6]:02x}{steps[rest % 6]:02x}"


def picture(rows: list[list[tuple[str, Style]]], title: str, columns: int) -> str:
    """The whole SVG."""
    columns = max(columns, *(sum(len(text) for text, _ in row) for row in rows))
    width = round(columns * WIDTH + 2 * MARGIN)
    height = len(rows) * HEIGHT + BAR + 2 * MARGIN - 8
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT}" font-size="{SIZE}">'
        ),
        f'<rect width="{width}" height="{height}" rx="9" fill="{PAPER}"/>',
        f'<path d="M0 {BAR}V9a9 9 0 0 1 9-9H{width - 9}a9 9 0 0 1 9 9V{BAR}z" fill="{FRAME}"/>',
        *(f'<circle cx="{20 + 20 * n}" cy="18" r="6" fill="{dot}"/>' for n, dot in enumerate(DOTS)),
        (
            f'<text x="{width / 2:g}" y="23" fill="{FAINT}" font-size="13" text-anchor="middle">'
            f"{escape(title)}</text>"
        ),
    ]
    for number, row in enumerate(rows):
        column, base = 0, BAR + MARGIN + number * HEIGHT + 10
        for text, style in row:
            parts += piece(text, style, MARGIN + column * WIDTH, base)
            column += len(text)
    return "\n".join([*parts, "</svg>"]) + "\n"


def piece(text: str, style: Style, x: float, base: int) -> Iterator[str]:
    """The background, if any, and the words of one run."""
    ink, paper = style.ink or INK, style.paper
    if style.swapped:
        ink, paper = paper or PAPER, ink
    if paper:
        yield (
            f'<rect x="{x:.2f}" y="{base - 14}" width="{len(text) * WIDTH:.2f}" '
            f'height="{HEIGHT}" fill="{paper}"/>'
        )
    words = text.rstrip()
    indent = len(words) - len(words.lstrip())
    words = words.lstrip()
    if not words:
        return
    extra = ' font-weight="700"' if style.bold else ""
    extra += ' opacity="0.6"' if style.dim else ""
    extra += ' font-style="italic"' if style.italic else ""
    extra += ' text-decoration="underline"' if style.underline else ""
    yield (
        f'<text xml:space="preserve" x="{x + indent * WIDTH:.2f}" y="{base}" '
        f'textLength="{len(words) * WIDTH:.2f}" fill="{ink}"{extra}>{escape(words)}</text>'
    )


if __name__ == "__main__":
    main()
