"""The options about other machines: what goes there, what comes back, what if one is silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.job import Carry
from stoker.core.units import BadValue, parse_duration

CARRYING = {"send", "no_send", "bring", "no_bring", "bring_into", "leave_out"}


def afar(words: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the spec that were mentioned."""
    fields: dict[str, Any] = {}
    if CARRYING & set(options):
        fields["carry"] = _carry(words, options)
    if words.get("if_unreachable"):
        fields["if_unreachable"] = parse_patience(words["if_unreachable"])
    return fields


def _on(value: Any) -> bool:
    return value not in (None, False, "false", "no", "0")


def _carry(words: Mapping[str, str], options: Mapping[str, Any]) -> Carry:
    """What travels with the job to another machine, and back."""
    plain = Carry()
    send = _paths(options.get("send"), "--send") or plain.send
    bring = _paths(options.get("bring"), "--bring") or plain.bring
    for what in ("send", "bring"):
        if _on(options.get(f"no_{what}")) and options.get(what):
            raise BadValue(f"--{what} and --no-{what} contradict each other.")
    into = words.get("bring_into") or None
    if into is not None and not into.startswith("/"):
        raise BadValue(f"--bring-into '{into}' must be an absolute directory.")
    return Carry(
        send=() if _on(options.get("no_send")) else send,
        bring=() if _on(options.get("no_bring")) else bring,
        into=into,
        exclude=_paths(options.get("leave_out"), "--leave-out", patterns=True),
    )


def _paths(value: Any, what: str, patterns: bool = False) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else list(value or ())
    found = []
    for each in listed:
        path = str(each)
        if not path or "\0" in path or "\n" in path:
            raise BadValue(f"{what} takes a path, not '{path}'.")
        if not patterns and (path.startswith("/") or ".." in path.split("/")):
            raise BadValue(f"{what} '{path}' is not below the job's directory.")
        found.append(path)
    return tuple(found)


def parse_patience(text: str) -> int | None:
    """Read `restart:1h`, or `wait`, which is what happens anyway."""
    word, _, time = text.strip().partition(":")
    if word == "wait" and not time:
        return None
    if word != "restart" or not time:
        raise BadValue(f"--if-unreachable '{text}' is not known; write restart:1h, or wait.")
    return parse_duration(time, "--if-unreachable")
