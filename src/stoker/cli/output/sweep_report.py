"""Write the HTML report of a sweep, with the curves of its best trials."""

from __future__ import annotations

import os

from stoker.client.client import Client
from stoker.client.errors import StokerError, UsageError
from stoker.wire import JsonObject

MAX_CURVES = 200
"""Trials with a curve; more could not be distinguished."""
MAX_POINTS = 200
"""Points of each curve."""


def write_report(client: Client, reply: JsonObject, trials: list[JsonObject], path: str) -> None:
    """Write the report; on failure, an existing file is unchanged."""
    from stoker.sweep.results.page import html

    text = html(reply, read_curves(client, reply, trials))
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def read_curves(
    client: Client, reply: JsonObject, trials: list[JsonObject]
) -> dict[str, list[list[float]]]:
    """Return the points [step, value] of each trial, by its label."""
    metric = reply["sweep"].get("metric")
    started = [str(trial["label"]) for trial in trials if trial.get("started_at")]
    points: dict[str, list[list[float]]] = {}
    for label in started[:MAX_CURVES] if metric else ():
        try:
            series = client.metrics(label, names=metric, points=MAX_POINTS)["series"].get(metric)
        except StokerError as error:
            if error.code != "not_found":
                raise
            continue  # its series was deleted
        if series:
            points[label] = [[point[0], point[1]] for point in series]
    return points
