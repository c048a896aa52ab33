"""The configuration file, read once and checked."""

from __future__ import annotations

import os
from typing import Any

from msgspec import Struct

from stoker import places
from stoker.core.foreign import Thresholds
from stoker.core.units import BadValue, parse_amount, parse_duration

EXAMPLE = "see Configuration in the documentation"


class QueueLimits(Struct, frozen=True):
    """A named queue of the configuration file."""

    name: str
    max_running: int | None
    max_gpus: int | None
    priority: int
    strict: bool
    devices: tuple[str, ...]


class Settings(Struct):
    """What can be set. Flags win over these."""

    gpus: str | None = None
    resources: str | None = None
    grace: float = 10.0
    on_end: str | None = None
    on_empty: str | None = None
    secrets_days: int = 14
    thresholds: Thresholds = Thresholds()
    listen: list[str] = []
    store: str | None = None
    patience: float = 30.0
    """How long a database server may be away before the daemon ends."""
    queues: list[QueueLimits] = []


def load() -> Settings:
    """Read the configuration files; the later one wins key by key."""
    merged: dict[str, Any] = {}
    for path in places.config_paths():
        if os.path.exists(path):
            import tomllib

            try:
                with open(path, "rb") as file:
                    merged.update(tomllib.load(file))
            except (OSError, tomllib.TOMLDecodeError) as error:
                raise BadValue(f"{path} cannot be read: {error}; {EXAMPLE}.") from None
    return _settings(merged)


def _settings(raw: dict[str, Any]) -> Settings:
    known = {
        "gpus",
        "resources",
        "grace",
        "on_end",
        "on_empty",
        "secrets_days",
        "foreign",
        "api",
        "store",
        "queues",
    }
    unknown = sorted(set(raw) - known)
    if unknown:
        raise BadValue(f"config.toml: '{unknown[0]}' is not known; {EXAMPLE}.")
    found = Settings()
    gpus = raw.get("gpus")
    if gpus is not None:
        found.gpus = ",".join(map(str, gpus)) if isinstance(gpus, list) else str(gpus)
    if "resources" in raw:
        import json

        value = raw["resources"]
        found.resources = value if isinstance(value, str) else json.dumps(value)
    if "grace" in raw:
        found.grace = float(_seconds(raw["grace"], "grace"))
    found.on_end, found.on_empty = _text(raw, "on_end"), _text(raw, "on_empty")
    if "secrets_days" in raw:
        found.secrets_days = _whole(raw["secrets_days"], "secrets_days")
    found.thresholds = _thresholds(raw.get("foreign", {}))
    found.listen = _listen(raw.get("api", {}))
    _read_store(found, raw.get("store", {}))
    found.queues = [_queue(name, limits) for name, limits in raw.get("queues", {}).items()]
    return found


def _seconds(value: Any, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return parse_duration(str(value), f"config.toml: {what}")


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadValue(f"config.toml: {what} must be a whole number, not {value!r}.")
    return value


def _text(raw: dict[str, Any], key: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise BadValue(f"config.toml: {key} must be a command in quotes.")
    return value or None


def _thresholds(raw: Any) -> Thresholds:
    if not isinstance(raw, dict) or set(raw) - {"load", "memory", "leave_seconds"}:
        raise BadValue(f"config.toml: [foreign] takes load, memory and leave_seconds; {EXAMPLE}.")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
            raise BadValue(f"config.toml: foreign.{key} must be a number, not {value!r}.")
        values[key] = float(value)
    return Thresholds(**values)


def _listen(raw: Any) -> list[str]:
    value = raw.get("listen", []) if isinstance(raw, dict) and set(raw) <= {"listen"} else None
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadValue(f"config.toml: [api] takes listen = 'ADDRESS:PORT'; {EXAMPLE}.")
    for address in found:
        from stoker.daemon.addresses import split

        split(address)
    return found


def _read_store(found: Settings, raw: Any) -> None:
    if not isinstance(raw, dict) or set(raw) - {"url", "patience"}:
        raise BadValue(f"config.toml: [store] takes url and patience; {EXAMPLE}.")
    url = raw.get("url")
    if url is not None and not isinstance(url, str):
        raise BadValue("config.toml: store.url must be text in quotes.")
    found.store = url or None
    if "patience" in raw:
        found.patience = float(_seconds(raw["patience"], "store.patience"))


def _queue(name: str, raw: Any) -> QueueLimits:
    if not isinstance(raw, dict):
        raise BadValue(f"config.toml: [queues.{name}] must be a table; {EXAMPLE}.")
    unknown = sorted(set(raw) - {"max_running", "max_gpus", "priority", "strict", "devices"})
    if unknown:
        raise BadValue(f"config.toml: queues.{name}.{unknown[0]} is not known; {EXAMPLE}.")
    running = raw.get("max_running")
    gpus = raw.get("max_gpus")
    return QueueLimits(
        name=name,
        max_running=_whole(running, f"queues.{name}.max_running") if running is not None else None,
        max_gpus=parse_amount(str(gpus), f"queues.{name}.max_gpus") if gpus is not None else None,
        priority=int(raw.get("priority", 0)),
        strict=bool(raw.get("strict", False)),
        devices=tuple(map(str, raw.get("devices", ()))),
    )
