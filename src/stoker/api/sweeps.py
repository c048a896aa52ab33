"""Sweeps, for the client: many parameter sets of one command, as one thing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec

from stoker.api.daemon_client import DaemonClient
from stoker.api.errors import UnknownOption, UsageError
from stoker.api.inputs import selector, words
from stoker.api.jobs import Decoded, Value
from stoker.api.options import NAMES, JobOptions
from stoker.api.submit_context import submission
from stoker.client.client import new_key
from stoker.schema.sweep import SweepView, TrialView

KEYWORDS = frozenset(
    {"parameters", "points", "file", "definition", "new", "method", "samples", "seed", "metric",
     "goal", "stop", "max_running"}
)  # fmt: skip
"""What is said of a sweep, not of its trials."""


class Sweep(Decoded, SweepView[datetime], frozen=True, kw_only=True):
    """A sweep at the time of the request."""

    added: int = 0
    """Number of trials that the submission added,"""
    retried: int = 0
    """and number that it runs again."""
    raw: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.state in {"DONE", "CANCELLED"}


class Trial(Decoded, TrialView[datetime], frozen=True, kw_only=True):
    """A parameter set and its result."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class Details(Value, frozen=True, kw_only=True):
    """A sweep with its definition and all its trials, in the order of their numbers."""

    sweep: Sweep
    definition: dict[str, Any]
    trials: list[Trial]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One figure that a job has reported."""

    step: float | None
    value: float | None
    at: float | None = None


class Sweeps:
    """The verbs about sweeps."""

    link: DaemonClient

    def sweep(
        self,
        command: str | Sequence[str] | None = None,
        *,
        parameters: Mapping[str, object] | None = None,
        points: Sequence[Mapping[str, object]] | None = None,
        file: str | os.PathLike[str] | None = None,
        definition: Mapping[str, object] | None = None,
        new: bool = False,
        method: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        metric: str | Mapping[str, object] | None = None,
        goal: str | None = None,
        stop: str | Mapping[str, object] | None = None,
        max_running: int | None = None,
        **options: Unpack[JobOptions],
    ) -> Sweep:
        """Begin a sweep, or go on with it: the same again runs only what is missing or failed.

        What varies are `parameters` (lists of values, `"log_uniform(1e-5,0.1)"`, or tables as in
        a definition) or `points`, one trial each; or a W&B sweep `file`, or a whole `definition`,
        says all of it.
        """
        _check_names(options)
        name = options.pop("name", None)
        said = {
            "name": name, "method": method, "samples": samples, "seed": seed,
            "metric": _metric(metric, goal), "stop": {"kind": stop} if _is_text(stop) else stop,
            "max_running": max_running,
        }  # fmt: skip
        raw, where = _described(command, parameters, points, file, definition)
        raw.update({key: value for key, value in said.items() if value is not None})
        body = {"definition": _checked(raw, where), "new": new, "key": new_key()}
        reply = self.link.sweep({**submission(options), **body})
        view = self.link.get_sweep(str(reply["label"]))["sweep"]
        return Sweep.of({**view, "added": reply["added"], "retried": reply["retried"]})

    def sweeps(self, *, all: bool = False) -> list[Sweep]:
        """Return the sweeps that go on, or all of them."""
        return [Sweep.of(view) for view in self.link.sweeps(all=all)["sweeps"]]

    def sweep_show(self, which: object) -> Details:
        """Return a sweep with all its trials."""
        found = self.link.get_sweep(selector(which))
        return Details(
            sweep=Sweep.of(found["sweep"]),
            definition=found["definition"],
            trials=[Trial.of(view) for view in found["trials"]],
            raw=found,
        )

    def sweep_edit(
        self, which: object, *, max_running: int | None = None, priority: int | None = None
    ) -> Sweep:
        """Change how a sweep goes on; `max_running=0` is any number of trials at a time."""
        changes = {"max_running": max_running, "priority": priority}
        given = {key: value for key, value in changes.items() if value is not None}
        return Sweep.of(self.link.change_sweep(selector(which), **given))

    def metrics(
        self, which: object, *names: str, points: int | None = None
    ) -> dict[str, list[Point]]:
        """Return what a job has reported, as curves over all its attempts."""
        asked = ",".join(names) or None
        series = self.link.metrics(selector(which), names=asked, points=points)["series"]
        return msgspec.convert(series, dict[str, list[Point]])


def _check_names(options: Mapping[str, object]) -> None:
    """Refuse a keyword that means nothing; those of a sweep are listed first, or alone."""
    for name in options:
        if name not in NAMES:
            error = UnknownOption(name, KEYWORDS | NAMES)
            if error.valid[0] in KEYWORDS:
                error = UnknownOption(name, KEYWORDS, "keyword of a sweep")
            raise error


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _metric(
    metric: str | Mapping[str, object] | None, goal: str | None
) -> dict[str, object] | None:
    if metric is None:
        if goal is not None:
            raise UsageError("A goal needs a metric; give metric as well.")
        return None
    if not isinstance(metric, str | Mapping):
        raise UsageError(
            f"A metric is a name, or a table as in a definition, not {metric!r}. "
            "For example: metric='loss'"
        )
    found: dict[str, object] = {"name": metric} if isinstance(metric, str) else dict(metric)
    if goal is not None:
        found["goal"] = {"min": "minimize", "max": "maximize"}.get(goal, goal)
    return found


def _described(
    command: str | Sequence[str] | None,
    parameters: Mapping[str, object] | None,
    points: Sequence[Mapping[str, object]] | None,
    file: str | os.PathLike[str] | None,
    definition: Mapping[str, object] | None,
) -> tuple[dict[str, Any], str]:
    """Return what is swept and run, and what to call that in a complaint."""
    ways = [way for way in (parameters, points, file, definition) if way is not None]
    if len(ways) != 1:
        raise UsageError("Nothing varies: give one of parameters, points, file and definition.")
    if (command is None) != (file is not None or definition is not None):
        raise UsageError(
            "There is no command: give one." if command is None
            else "A file or definition has its own command; leave the command argument out."
        )  # fmt: skip
    if definition is not None:
        return dict(definition), "the definition"
    if file is not None:
        return _from_file(Path(file)), str(file)
    raw: dict[str, Any] = {"line": command}
    if command is not None and not isinstance(command, str):
        raw = {"command": words(command)}
    if points is not None:
        return {**raw, "method": "list", "points": [dict(row) for row in points]}, "the sweep"
    specs = {name: _spec(name, value) for name, value in (parameters or {}).items()}
    endless = any("distribution" in spec for spec in specs.values())
    return {**raw, "method": "random" if endless else "grid", "parameters": specs}, "the sweep"


def _from_file(path: Path) -> dict[str, Any]:
    from stoker.sweep.wandb import read_yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    return _understood(lambda: dict(read_yaml(text, str(path))))


def _spec(name: str, value: object) -> dict[str, Any]:
    """Read what one parameter may be."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | range):
        return {"values": list(value)}
    if isinstance(value, str):
        from stoker.sweep.overrides import param_option

        return _understood(lambda: param_option(f"{name}={value}")[1])
    return {"value": value}


def _checked(raw: dict[str, Any], where: str) -> dict[str, Any]:
    from stoker.sweep.definition import check

    return _understood(lambda: check(raw, where))


def _understood(read: Any) -> dict[str, Any]:
    from stoker.sweep.definition import InvalidSweep

    try:
        found: dict[str, Any] = read()
    except InvalidSweep as error:
        raise UsageError(str(error).removeprefix("--param ")) from None
    return found
