"""GPU time in one line."""

from __future__ import annotations

from stoker.cli.output.times import duration
from stoker.wire import JsonObject

MIN_GPU_SECONDS = 60.0
"""Shorter jobs have no line."""


def usage_line(label: str, reply: JsonObject, result: int = 0) -> str | None:
    """Return `42 done: 1:12:00 on 2 GPUs = 2.4 GPU-h, 83 % busy, 1.1 kWh`; None for a short job."""
    total = reply["total"]
    if total["gpu_seconds"] < MIN_GPU_SECONDS:
        return None
    seconds = sum(attempt["seconds"] or 0.0 for attempt in reply["attempts"])
    gpus = total["gpu_seconds"] / seconds if seconds else 0.0
    times = f"{duration(seconds)} on {_two_digits(gpus)} GPU{'s' * (round(gpus, 1) != 1)} = "
    parts = [f"{times if seconds else ''}{_two_digits(total['gpu_seconds'] / 3600)} GPU-h"]
    if total["utilization"] is not None:
        parts.append(f"{total['utilization']:.0f} % busy")
    if total["energy_joules"]:
        parts.append(f"{_two_digits(total['energy_joules'] / 3.6e6)} kWh")
    return f"{label} {'failed' if result else 'done'}: {', '.join(parts)}"


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"
