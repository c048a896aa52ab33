"""Line charts as SVG, one panel per family of curves."""

import math
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 190, 52, 44, 28
COLOURS = ("#8a8f98", "#d9480f", "#2b8a3e", "#4c6ef5", "#ae3ec9")
TITLE = "How far the best trial so far is from the best there is (smaller is better)"
FONT = 'font-family="system-ui, sans-serif" font-size="11"'


@dataclass(frozen=True)
class Panel:
    """One family: distance of each rule from the best, over GPU-hours."""

    title: str
    hours: float
    curves: dict[str, list[float]]


def draw(panels: list[Panel]) -> str:
    """Return all panels in a row, with one legend below."""
    names = list(panels[0].curves)
    width = LEFT + len(panels) * (WIDTH + GAP + LEFT) - LEFT
    height = TOP + HEIGHT + 54 + 18 * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" fill="#212529" font-weight="600">{TITLE}</text>',
    ]
    for number, panel in enumerate(panels):
        parts.append(_panel(panel, LEFT + number * (WIDTH + GAP + LEFT)))
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = TOP + HEIGHT + 56 + 18 * number
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + 24}" y1="{y}" y2="{y}" stroke="{colour}"'
                     f' stroke-width="2.5"/><text x="{LEFT + 32}" y="{y + 4}" fill="#212529">'
                     f"{name}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: float) -> str:
    values = [each for curve in panel.curves.values() for each in curve[2:]]
    low, high = math.log10(min(values) * 0.85), math.log10(max(values) * 1.1)

    def across(share: float) -> float:
        return left + share * WIDTH

    def down(value: float) -> float:
        share = (math.log10(max(value, 1e-9)) - low) / (high - low)
        return TOP + HEIGHT * (1 - min(max(share, 0.0), 1.0))

    parts = [
        f'<text x="{left}" y="{TOP - 8}" fill="#212529">{panel.title}</text>',
    ]
    parts.append(f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none"'
                 ' stroke="#ced4da"/>')  # fmt: skip
    for value in _marks(low, high):
        y = down(value)
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"'
                     f' stroke="#e9ecef"/><text x="{left - 6}" y="{y + 4:.1f}" fill="#495057"'
                     f' text-anchor="end">{value:g}</text>')  # fmt: skip
    parts += [
        f'<text x="{across(share):.1f}" y="{TOP + HEIGHT + 16}" fill="#495057"'
        f' text-anchor="middle">{panel.hours * share:.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    parts.append(f'<text x="{across(0.5)}" y="{TOP + HEIGHT + 32}" fill="#495057"'
                 ' text-anchor="middle">GPU-hours</text>')  # fmt: skip
    for curve, colour in zip(panel.curves.values(), COLOURS, strict=False):
        points = " ".join(
            f"{across((number + 1) / len(curve)):.1f},{down(value):.1f}"
            for number, value in enumerate(curve)
            if number >= 2
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"'
                     ' stroke-width="1.8" stroke-linejoin="round"/>')  # fmt: skip
    return "\n".join(parts)


def _marks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of every power of ten within the range."""
    found = [
        lead * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for lead in (1, 2, 5)
    ]
    return [each for each in found if low <= math.log10(each) <= high]
