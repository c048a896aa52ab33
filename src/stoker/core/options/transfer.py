"""Options for remote nodes: files to send and to bring back, and unreachable nodes."""

from __future__ import annotations

from typing import Any

from stoker.core.model.spec import FileTransfer
from stoker.core.model.units import BadValue, parse_duration
from stoker.core.options.values import Given, flag

TRANSFER_OPTIONS = {"send", "no_send", "bring", "no_bring", "bring_into", "leave_out"}


def transfer_fields(given: Given) -> dict[str, Any]:
    """Return the fields of the spec that were given."""
    fields: dict[str, Any] = {}
    if given.has_any(TRANSFER_OPTIONS):
        fields["transfer"] = _file_transfer(given)
    if given.words.get("if_unreachable"):
        fields["if_unreachable"] = parse_unreachable_rule(given.words["if_unreachable"])
    return fields


def _file_transfer(given: Given) -> FileTransfer:
    """Return the files to copy to a remote node and back."""
    for what in ("send", "bring"):
        if given.is_set(f"no_{what}") and given.lists.get(what):
            raise BadValue(f"--{what} and --no-{what} contradict each other.")
    into = given.words.get("bring_into") or None
    if into is not None and not into.startswith("/"):
        raise BadValue(f"--bring-into '{into}' must be an absolute directory.")
    default, exclude = FileTransfer(), _paths(given, "leave_out", patterns=True)
    send = () if given.is_set("no_send") else _paths(given, "send") or default.send
    bring = () if given.is_set("no_bring") else _paths(given, "bring") or default.bring
    return FileTransfer(send, bring, into, exclude)


def _paths(given: Given, key: str, patterns: bool = False) -> tuple[str, ...]:
    paths = given.lists.get(key, [])
    for path in paths:
        if not path or "\0" in path or "\n" in path:
            raise BadValue(f"{flag(key)} takes a path, not '{path}'.")
        if not patterns and (path.startswith("/") or ".." in path.split("/")):
            raise BadValue(f"{flag(key)} '{path}' is not below the job's directory.")
    return tuple(paths)


def parse_unreachable_rule(text: str) -> int | None:
    """Parse `restart:1h`, or `wait`, which is the default."""
    word, _, time = text.strip().partition(":")
    if word == "wait" and not time:
        return None
    if word != "restart" or not time:
        raise BadValue(f"--if-unreachable '{text}' is not known; write restart:1h, or wait.")
    return parse_duration(time, "--if-unreachable")
