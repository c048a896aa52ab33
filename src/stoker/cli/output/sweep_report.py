"""Writes the report of a sweep: its figures, and the curves of its best trials."""

from __future__ import annotations

import os

from stoker.client.client import Client
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CURVES = 200
"""Trials whose curves are drawn; more would not be told apart."""
POINTS = 200
"""Points of each curve."""


def write(client: Client, reply: dict[str, Any], trials: list[dict[str, Any]], path: str) -> None:
    """Write the report whole, or leave what was there."""
    from stoker.sweep.page import html

    text = html(reply, curves(client, reply, trials))
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def curves(
    client: Client, reply: dict[str, Any], trials: list[dict[str, Any]]
) -> dict[str, list[list[float]]]:
    """Return step and figure over each trial's course, by its label."""
    metric = reply["sweep"].get("metric")
    begun = [str(trial["label"]) for trial in trials if trial.get("started_at")]
    found: dict[str, list[list[float]]] = {}
    for label in begun[:CURVES] if metric else ():
        try:
            series = client.metrics(label, names=metric, points=POINTS)["series"].get(metric)
        except StokerError as error:
            if error.code != "not_found":
                raise
            continue  # its series is no longer there
        if series:
            found[label] = [[point[0], point[1]] for point in series]
    return found
