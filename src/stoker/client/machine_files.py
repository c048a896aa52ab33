"""Node files: YAML with the keys `username`, `ip`, `port` and `ssh_key_path`."""

from __future__ import annotations

import os

from stoker.client.errors import StokerError, UsageError

KEYS = ("username", "ip", "port", "ssh_key_path")
DIRECTORY = "~/.local/var"
"""Where node files are searched for, after the current directory."""

NodeEntry = tuple[str, str, str | None]
"""A node's name, address and key file."""


def find_machine(name: str) -> str:
    """Return the path of a node file: in `.` or DIRECTORY, with or without `.yaml`."""
    for directory in (".", os.path.expanduser(DIRECTORY)):
        for path in (os.path.join(directory, name), os.path.join(directory, f"{name}.yaml")):
            if os.path.isfile(path):
                return os.path.normpath(path)
    missing = name if name.endswith(".yaml") else f"{name}.yaml"
    raise StokerError(
        f"Machine config not found at {DIRECTORY}/{missing} or at {missing}."
        " Please define a correct config"
    )


def read_machine(path: str) -> NodeEntry:
    """Read a node file; the node has the name of the file."""
    values = read_values(path)
    name = os.path.basename(path).rsplit(".", 1)[0]
    return name, address_of(values), values["ssh_key_path"]


def address_of(values: dict[str, str]) -> str:
    """Return a node's address as `ssh://USER@HOST:PORT`."""
    host = values["ip"]
    shown = f"[{host}]" if ":" in host else host
    return f"ssh://{values['username']}@{shown}:{values['port']}"


def read_values(path: str) -> dict[str, str]:
    """Read the four values of a node file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a node file: it is not UTF-8.") from None
    values = _parse(path, text)
    for key in KEYS:
        if not values.get(key):
            raise UsageError(f"{path} has no '{key}'; a node file has {', '.join(KEYS)}.")
    port = values["port"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{path}: port '{port}' is not a number from 1 to 65535.")
    return values


def _parse(path: str, text: str) -> dict[str, str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{path} is not YAML{where}: {why}.") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} is not a node file: it must have {', '.join(KEYS)}.")
    return {str(key): str(value) for key, value in values.items() if value is not None}
