"""Medians, tables, and what machine this is."""

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import shell


def median(samples: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(samples)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The sample that this share of all samples do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]


def verdict(value: float, limit: float) -> str:
    """Whether a figure keeps its promise."""
    return "kept" if value <= limit else "MISSED"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    numeric = [
        all(row[i][:1].isdigit() or row[i] in {"", "–"} for row in rows) for i in range(len(head))
    ]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, rows)])


def machine(directory: Path) -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file system": file_system(directory),
        "shell": shell(),
    }


def file_system(directory: Path) -> str:
    """The type of the file system that a directory is on."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind = line.split()[:3]
        if directory.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
