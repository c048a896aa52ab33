"""Options for remote nodes: files to send and to bring back, and unreachable nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.model.spec import FileTransfer
from stoker.core.model.units import BadValue, parse_duration
from stoker.core.options.values import is_set

TRANSFER_OPTIONS = {"send", "no_send", "bring", "no_bring", "bring_into", "leave_out"}


def transfer_fields(words: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the spec that were given."""
    fields: dict[str, Any] = {}
    if TRANSFER_OPTIONS & set(options):
        fields["transfer"] = _file_transfer(words, options)
    if words.get("if_unreachable"):
        fields["if_unreachable"] = parse_unreachable_rule(words["if_unreachable"])
    return fields


def _file_transfer(words: Mapping[str, str], options: Mapping[str, Any]) -> FileTransfer:
    """Return the files to copy to a remote node and back."""
    default = FileTransfer()
    send = _paths(options.get("send"), "--send") or default.send
    bring = _paths(options.get("bring"), "--bring") or default.bring
    for what in ("send", "bring"):
        if is_set(options, f"no_{what}") and options.get(what):
            raise BadValue(f"--{what} and --no-{what} contradict each other.")
    into = words.get("bring_into") or None
    if into is not None and not into.startswith("/"):
        raise BadValue(f"--bring-into '{into}' must be an absolute directory.")
    return FileTransfer(
        send=() if is_set(options, "no_send") else send,
        bring=() if is_set(options, "no_bring") else bring,
        into=into,
        exclude=_paths(options.get("leave_out"), "--leave-out", patterns=True),
    )


def _paths(value: Any, what: str, patterns: bool = False) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else list(value or ())
    paths = []
    for item in listed:
        path = str(item)
        if not path or "\0" in path or "\n" in path:
            raise BadValue(f"{what} takes a path, not '{path}'.")
        if not patterns and (path.startswith("/") or ".." in path.split("/")):
            raise BadValue(f"{what} '{path}' is not below the job's directory.")
        paths.append(path)
    return tuple(paths)


def parse_unreachable_rule(text: str) -> int | None:
    """Parse `restart:1h`, or `wait`, which is the default."""
    word, _, time = text.strip().partition(":")
    if word == "wait" and not time:
        return None
    if word != "restart" or not time:
        raise BadValue(f"--if-unreachable '{text}' is not known; write restart:1h, or wait.")
    return parse_duration(time, "--if-unreachable")
