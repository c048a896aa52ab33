"""The configuration file, read once and checked."""

from __future__ import annotations

import os
import re
from typing import Any

from msgspec import Struct

from stoker import places
from stoker.core.foreign import Thresholds
from stoker.core.units import BadValue, parse_amount, parse_duration
from stoker.daemon.daemon_log import LEVELS

EXAMPLE = "see Configuration in the documentation"
LONGEST_NAME = 64


class QueueLimits(Struct, frozen=True):
    """A named queue of the configuration file."""

    name: str
    max_running: int | None
    max_gpus: int | None
    priority: int
    strict: bool
    devices: tuple[str, ...]


class ConfiguredNode(Struct, frozen=True):
    """A machine over SSH of the configuration file."""

    name: str
    address: str
    key: str | None
    shared: bool


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
    nodes: list[ConfiguredNode] = []
    engine: str = ""
    """What runs containers; empty: whichever is there."""
    log_level: str = "info"


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
        "nodes",
        "containers",
        "log",
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
    found.nodes = _nodes(raw.get("nodes", {}))
    found.engine = _engine(raw.get("containers", {}))
    found.log_level = _log_level(raw.get("log", {}))
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


def _engine(raw: Any) -> str:
    value = raw.get("engine", "") if isinstance(raw, dict) and set(raw) <= {"engine"} else None
    if not isinstance(value, str):
        raise BadValue(f"config.toml: [containers] takes engine = 'docker'; {EXAMPLE}.")
    return value


def _log_level(raw: Any) -> str:
    value = raw.get("level", "info") if isinstance(raw, dict) and set(raw) <= {"level"} else None
    if value not in LEVELS:
        raise BadValue(f"config.toml: [log] takes level = one of {', '.join(LEVELS)}; {EXAMPLE}.")
    return str(value)


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


def check_name(name: str) -> str:
    """A machine's name: it stands in paths, in lists and before a slash."""
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}", name):
        raise BadValue(
            f"'{name[:80]}' is no name for a machine; use up to {LONGEST_NAME} letters, digits"
            " and _ . - that begin with a letter or a digit."
        )
    return name


def _nodes(raw: Any) -> list[ConfiguredNode]:
    if not isinstance(raw, dict) or not all(isinstance(each, dict) for each in raw.values()):
        raise BadValue(f"config.toml: [nodes.NAME] must be a table for each machine; {EXAMPLE}.")
    return [_node(name, each) for name, each in raw.items()]


def _node(name: str, raw: dict[str, Any]) -> ConfiguredNode:
    from stoker.executors.ssh.address import parse_address

    where = f"config.toml: nodes.{name}"
    unknown = sorted(set(raw) - {"address", "key", "shared"})
    if unknown:
        raise BadValue(f"{where}.{unknown[0]} is not known; {EXAMPLE}.")
    address, key, shared = raw.get("address"), raw.get("key"), raw.get("shared", False)
    if not isinstance(address, str):
        raise BadValue(f'{where} needs address = "ssh://me@host:22".')
    if key is not None and not (isinstance(key, str) and key.startswith(("/", "~"))):
        raise BadValue(f"{where}.key must be the path of a key, from / or ~ on, in quotes.")
    if not isinstance(shared, bool):
        raise BadValue(f"{where}.shared must be true or false.")
    try:
        parse_address(address, key)
        return ConfiguredNode(check_name(name), address, key, shared)
    except BadValue as error:
        raise BadValue(f"{where}: {error}") from None
