"""Machines as files: four lines of YAML each (`username`, `ip`, `port`, `ssh_key_path`)."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError

KEYS = ("username", "ip", "port", "ssh_key_path")

Known = tuple[str, str, str | None]
"""A name, an address and a key."""


def read_machine(path: str) -> Known:
    """Read a machine's file; it is called like the file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    values = _values(path, text)
    for key in KEYS:
        if not values.get(key):
            raise UsageError(f"{path} has no '{key}'; a machine's file has {', '.join(KEYS)}.")
    port = values["port"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{path}: port '{port}' is not a number from 1 to 65535.")
    host = values["ip"]
    shown = f"[{host}]" if ":" in host else host
    name = os.path.basename(path).rsplit(".", 1)[0]
    return name, f"ssh://{values['username']}@{shown}:{port}", values["ssh_key_path"]


def _values(path: str, text: str) -> dict[str, str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        line = str(error).splitlines()[0]
        raise UsageError(f"{path} is not YAML: {line}.") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a machine's file: it must have {', '.join(KEYS)}.")
    return {str(key): str(value) for key, value in found.items() if value is not None}
