"""Machines as files: four lines of YAML each (`username`, `ip`, `port`, `ssh_key_path`)."""

from __future__ import annotations

import os

from stoker.client.errors import StokerError, UsageError

KEYS = ("username", "ip", "port", "ssh_key_path")
PLACE = "~/.local/var"
"""Where machines' files are looked for, besides the current directory."""

Known = tuple[str, str, str | None]
"""A name, an address and a key."""


def find_machine(name: str) -> str:
    """Return the file that a name means: here or in PLACE, with or without `.yaml`."""
    for place in (".", os.path.expanduser(PLACE)):
        for path in (os.path.join(place, name), os.path.join(place, f"{name}.yaml")):
            if os.path.isfile(path):
                return os.path.normpath(path)
    missing = name if name.endswith(".yaml") else f"{name}.yaml"
    raise StokerError(
        f"Machine config not found at {PLACE}/{missing} or at {missing}."
        " Please define a correct config"
    )


def read_machine(path: str) -> Known:
    """Read a machine's file; it is called like the file."""
    values = read_values(path)
    name = os.path.basename(path).rsplit(".", 1)[0]
    return name, address_of(values), values["ssh_key_path"]


def address_of(values: dict[str, str]) -> str:
    """Return a machine's address as one writes it."""
    host = values["ip"]
    shown = f"[{host}]" if ":" in host else host
    return f"ssh://{values['username']}@{shown}:{values['port']}"


def read_values(path: str) -> dict[str, str]:
    """Read the four values of a machine's file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a node file: it is not UTF-8.") from None
    values = _parsed(path, text)
    for key in KEYS:
        if not values.get(key):
            raise UsageError(f"{path} has no '{key}'; a node file has {', '.join(KEYS)}.")
    port = values["port"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{path}: port '{port}' is not a number from 1 to 65535.")
    return values


def _parsed(path: str, text: str) -> dict[str, str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{path} is not YAML{where}: {why}.") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a node file: it must have {', '.join(KEYS)}.")
    return {str(key): str(value) for key, value in found.items() if value is not None}
