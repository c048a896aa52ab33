"""Sweeps: many parameter sets of one command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec

from stoker.api.arguments.inputs import command_words, selector
from stoker.api.arguments.options import OPTION_NAMES, JobOptions, submission
from stoker.api.daemon_client import DaemonClient
from stoker.api.errors import UnknownOption
from stoker.api.jobs import Decoded, Value
from stoker.client.client import new_key
from stoker.client.errors import UsageError
from stoker.schema.sweep import SweepView, TrialView

SWEEP_KEYWORDS = frozenset(
    {"parameters", "points", "file", "definition", "new", "method", "samples", "seed", "metric",
     "goal", "stop", "max_running"}
)  # fmt: skip
"""Keywords of a sweep, not of its trials."""


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
    """A sweep with its definition and all its trials, by number."""

    sweep: Sweep
    definition: dict[str, Any]
    trials: list[Trial]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric."""

    step: float | None
    value: float | None
    at: float | None = None


class Sweeps:
    """The verbs about sweeps."""

    daemon_client: DaemonClient

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
        """Submit a sweep; submitted again, it runs only trials that are missing or failed.

        Give `parameters` (lists of values, `"log_uniform(1e-5,0.1)"`, or tables as in a
        definition), or `points`, one trial each, or a W&B sweep `file`, or a whole `definition`.
        """
        _check_names(options)
        name = options.pop("name", None)
        keywords = {
            "name": name, "method": method, "samples": samples, "seed": seed,
            "metric": _metric(metric, goal), "max_running": max_running,
            "stop": {"kind": stop} if isinstance(stop, str) else stop,
        }  # fmt: skip
        raw, where = _raw_definition(command, parameters, points, file, definition)
        raw.update({key: value for key, value in keywords.items() if value is not None})
        body = {"definition": _validate(raw, where), "new": new, "key": new_key()}
        reply = self.daemon_client.sweep({**submission(options), **body})
        view = self.daemon_client.get_sweep(str(reply["label"]))["sweep"]
        return Sweep.of({**view, "added": reply["added"], "retried": reply["retried"]})

    def sweeps(self, *, all: bool = False) -> list[Sweep]:
        """Return unfinished sweeps, or all of them."""
        return [Sweep.of(view) for view in self.daemon_client.sweeps(all=all)["sweeps"]]

    def sweep_show(self, which: object) -> Details:
        """Return a sweep with all its trials."""
        reply = self.daemon_client.get_sweep(selector(which))
        return Details(
            sweep=Sweep.of(reply["sweep"]),
            definition=reply["definition"],
            trials=[Trial.of(view) for view in reply["trials"]],
            raw=reply,
        )

    def sweep_edit(
        self, which: object, *, max_running: int | None = None, priority: int | None = None
    ) -> Sweep:
        """Change a sweep; `max_running=0` means no limit."""
        changes = {"max_running": max_running, "priority": priority}
        given = {key: value for key, value in changes.items() if value is not None}
        return Sweep.of(self.daemon_client.change_sweep(selector(which), **given))

    def metrics(
        self, which: object, *names: str, points: int | None = None
    ) -> dict[str, list[Point]]:
        """Return the metrics of a job over all its attempts."""
        selected = ",".join(names) or None
        reply = self.daemon_client.metrics(selector(which), names=selected, points=points)
        return msgspec.convert(reply["series"], dict[str, list[Point]])


def _check_names(options: Mapping[str, object]) -> None:
    """Raise for an unknown keyword; keywords of a sweep are listed first, or alone."""
    for name in options:
        if name not in OPTION_NAMES:
            error = UnknownOption(name, SWEEP_KEYWORDS | OPTION_NAMES)
            if error.valid[0] in SWEEP_KEYWORDS:
                error = UnknownOption(name, SWEEP_KEYWORDS, "keyword of a sweep")
            raise error


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
    table: dict[str, object] = {"name": metric} if isinstance(metric, str) else dict(metric)
    if goal is not None:
        table["goal"] = {"min": "minimize", "max": "maximize"}.get(goal, goal)
    return table


def _raw_definition(
    command: str | Sequence[str] | None,
    parameters: Mapping[str, object] | None,
    points: Sequence[Mapping[str, object]] | None,
    file: str | os.PathLike[str] | None,
    definition: Mapping[str, object] | None,
) -> tuple[dict[str, Any], str]:
    """Return the raw definition, and where it comes from, for messages."""
    sources = [source for source in (parameters, points, file, definition) if source is not None]
    if len(sources) != 1:
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
        raw = {"command": command_words(command)}
    if points is not None:
        return {**raw, "method": "list", "points": [dict(row) for row in points]}, "the sweep"
    specs = {name: _parameter_spec(name, value) for name, value in (parameters or {}).items()}
    is_infinite = any("distribution" in spec for spec in specs.values())
    return {**raw, "method": "random" if is_infinite else "grid", "parameters": specs}, "the sweep"


def _from_file(path: Path) -> dict[str, Any]:
    from stoker.sweep.notations.wandb import read_yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    return _with_usage_error(lambda: dict(read_yaml(text, str(path))))


def _parameter_spec(name: str, value: object) -> dict[str, Any]:
    """Return the specification of one parameter."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | range):
        return {"values": list(value)}
    if isinstance(value, str):
        from stoker.sweep.notations.overrides import param_option

        return _with_usage_error(lambda: param_option(f"{name}={value}")[1])
    return {"value": value}


def _validate(raw: dict[str, Any], where: str) -> dict[str, Any]:
    from stoker.sweep.definition.definition import check

    return _with_usage_error(lambda: check(raw, where))


def _with_usage_error(read: Any) -> dict[str, Any]:
    from stoker.sweep.definition.definition import InvalidSweep

    try:
        value: dict[str, Any] = read()
    except InvalidSweep as error:
        raise UsageError(str(error).removeprefix("--param ")) from None
    return value
