"""Medians, tables, and a description of the host."""

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import shell


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(samples)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]


def verdict(value: float, limit: float) -> str:
    """Return a mark: is a value within its limit."""
    return "kept" if value <= limit else "MISSED"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: text to the left, numbers to the right."""
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


def host_info(directory: Path) -> dict[str, str]:
    """Return the properties of the host that the results depend on."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file system": file_system(directory),
        "shell": shell(),
    }


def file_system(directory: Path) -> str:
    """Return the file system type of a directory."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind = line.split()[:3]
        if directory.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
