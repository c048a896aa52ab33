"""GPU time in one line."""

from __future__ import annotations

from stoker.cli.output.times import duration
from stoker.wire import JsonObject

MIN_GPU_SECONDS = 60.0
"""Shorter jobs have no line."""


def usage_line(label: str, reply: JsonObject) -> str | None:
    """Return `42 done: 1:12:00 on 2 GPUs = 2.4 GPU-h, 83 % busy, 1.1 kWh`; None for a short job."""
    total = reply["total"]
    if total["gpu_seconds"] < MIN_GPU_SECONDS:
        return None
    seconds = sum(attempt["seconds"] or 0.0 for attempt in reply["attempts"])
    gpus = total["gpu_seconds"] / seconds if seconds else 0.0
    times = f"{duration(seconds)} on {gpus:.2g} GPU{'s' * (round(gpus, 1) != 1)} = "
    parts = [f"{times if seconds else ''}{total['gpu_seconds'] / 3600:.2g} GPU-h"]
    if total["utilization"] is not None:
        parts.append(f"{total['utilization']:.0f} % busy")
    if total["energy_joules"]:
        parts.append(f"{total['energy_joules'] / 3.6e6:.2g} kWh")
    return f"{label} done: {', '.join(parts)}"
