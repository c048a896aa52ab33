"""The agent's `start` request: the command on the node, and its variables."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.core.launch.launch import Launch, fill_placeholders


def command(launch: Launch, scripts: str, bash: bool) -> tuple[str, ...]:
    """Return the argv on the node; a script is in the node's directory of scripts."""
    if launch.is_shell_line:
        return launch.argv[-1:]
    if launch.script is None:
        return launch.argv
    at = next(n for n, word in enumerate(launch.argv) if word.endswith(launch.script))
    shell = () if at == 0 else ("bash" if bash else "sh",)
    return (*shell, f"{scripts}/{launch.script}", *launch.argv[at + 1 :])


def variables(launch: Launch, secret: Callable[[str], bytes | None]) -> list[str]:
    """Return the variables on the node: requested ones, and those that describe the attempt."""
    return [*_requested(launch, secret), *_extra(launch)]


def _requested(launch: Launch, secret: Callable[[str], bytes | None]) -> list[str]:
    if not launch.spec.exported_variables:
        return []
    values = secret(launch.spec.environment)
    if values is None:
        raise KeyError("the job's environment is no longer stored; submit the job again")
    lines = (os.fsdecode(line) for line in values.split(b"\0") if line)
    return [
        fill_placeholders(line, launch.placeholders) if launch.placeholders else line
        for line in lines
        if _is_name(name := line.partition("=")[0]) and name in launch.spec.exported_variables
    ]


def _is_name(text: str) -> bool:
    """Return whether a shell can set this variable."""
    return text.isascii() and text.isidentifier()


def _extra(launch: Launch) -> list[str]:
    # The dot marks the end: no other attempt's token begins with this one's.
    extra = launch.extra | {"STOKER_TOKEN": f"{launch.extra['STOKER_TOKEN']}."}
    return [f"{name}={value}" for name, value in extra.items()]
