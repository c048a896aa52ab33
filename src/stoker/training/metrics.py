"""The line that tells a job's own figures."""

from __future__ import annotations

import json

ROOM = 3800
"""Bytes of names and numbers; the line must go into the file in one piece."""


def line(epoch: int, at: float, metrics: dict[str, float]) -> str:
    """As many of these figures as one line holds."""
    told = []
    room = ROOM
    for name, value in metrics.items():
        pair = f"{json.dumps(name)}:{json.dumps(value)}"
        room -= len(pair) + 1
        if room < 0:
            break
        told.append(pair)
    return f'{{"k":"metrics","e":{epoch},"t":{at:.3f},"v":{{{",".join(told)}}}}}'
