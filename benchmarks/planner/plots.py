"""Plots of docs/planner.md as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 64, 44, 170, 52
COLOURS = ("#d9480f", "#4c6ef5", "#2b8a3e", "#ae3ec9", "#e8a100", "#8a8f98")
FONT = 'font-family="system-ui, sans-serif" font-size="12"'
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One line, or points with labels."""

    name: str
    points: list[Point]
    labels: list[str] = field(default_factory=list)
    steps: bool = False


@dataclass(frozen=True)
class Axis:
    """Title, range and marks of an axis."""

    title: str
    low: float
    high: float
    marks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def curves(title: str, across: Axis, up: Axis, lines: Sequence[Curve]) -> str:
    """Return a line chart."""
    parts = [*_frame(title, across, up, WIDTH)]
    for curve, colour in zip(lines, COLOURS, strict=False):
        points = [(_x(across, x, WIDTH), _y(up, y)) for x, y in curve.points]
        drawn = _stairs(points) if curve.steps else points
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"'
                     ' stroke-linejoin="round"/>')  # fmt: skip
        for (x, y), label in zip(points, curve.labels, strict=False):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
                         f'<text x="{x + 7:.1f}" y="{y - 7:.1f}" fill="#495057">{label}</text>'
                         )  # fmt: skip
    parts += _legend([curve.name for curve in lines], WIDTH)
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(
    title: str, up: Axis, names: Sequence[str], groups: dict[str, list[float]],
    base: float, targets: dict[str, float],
) -> str:  # fmt: skip
    """Return a bar chart by name, relative to a base, with targets as lines."""
    width = max(WIDTH, LEFT + RIGHT + 46 * len(names))
    across = Axis("", 0, len(names), ())
    parts = [*_frame(title, across, up, width, deep=96)]
    wide = (width - LEFT - RIGHT) / len(names)
    each = wide * 0.76 / len(groups)
    ground = _y(up, up.low)
    for number, name in enumerate(names):
        left = LEFT + number * wide
        for at, values in enumerate(groups.values()):
            y, level = _y(up, values[number]), _y(up, base)
            x = left + wide * 0.12 + at * each
            parts.append(f'<rect x="{x:.1f}" y="{min(y, level):.1f}" width="{each - 1:.1f}"'
                         f' height="{max(abs(level - y), 1):.1f}" fill="{COLOURS[at]}"/>'
                         )  # fmt: skip
        middle = left + wide / 2
        parts.append(f'<text transform="translate({middle:.1f},{ground + 12:.1f}) rotate(-40)"'
                     f' text-anchor="end" fill="#495057" font-size="11">{name}</text>')  # fmt: skip
    for name, value in targets.items():
        y = _y(up, value)
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
                     ' stroke="#212529" stroke-dasharray="5 4"/><text fill="#212529"'
                     f' x="{width - RIGHT + 6}" y="{y + 4:.1f}">{name}</text>')  # fmt: skip
    parts += _legend(list(groups), width, below=len(targets) * 18 + 40)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _stairs(points: Sequence[Point]) -> list[Point]:
    found = [points[0]]
    for x, y in points[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found


def _x(axis: Axis, value: float, width: float) -> float:
    return LEFT + min(max(axis.share(value), 0.0), 1.0) * (width - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return TOP + (1 - min(max(axis.share(value), 0.0), 1.0)) * (HEIGHT - TOP)


def _frame(title: str, across: Axis, up: Axis, width: float, deep: float = BOTTOM) -> list[str]:
    right = width - RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + deep}" {FONT}>',
        f'<rect width="{width}" height="{HEIGHT + deep}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" fill="#212529" font-weight="600">{title}</text>',
        f'<text x="{LEFT}" y="{TOP - 8}" fill="#495057">{up.title}</text>',
    ]
    for value, label in up.marks:
        y = _y(up, value)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" fill="#495057" text-anchor="end">'
                     f"{label}</text>")  # fmt: skip
    for value, label in across.marks:
        x = _x(across, value, width)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT}" stroke="#e9ecef"/>'
                     f'<text x="{x:.1f}" y="{HEIGHT + 17}" fill="#495057" text-anchor="middle">'
                     f"{label}</text>")  # fmt: skip
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{HEIGHT - TOP}"'
                 ' fill="none" stroke="#ced4da"/>')  # fmt: skip
    if across.title:
        parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT + 38}" fill="#495057"'
                     f' text-anchor="middle">{across.title}</text>')  # fmt: skip
    return parts


def _legend(names: Sequence[str], width: float, below: float = 0) -> list[str]:
    parts = []
    x = width - RIGHT + 12
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = TOP + below + 10 + 20 * number
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colour}"'
                     f' stroke-width="3"/><text x="{x + 28}" y="{y + 4}" fill="#212529">{name}'
                     "</text>")  # fmt: skip
    return parts
