"""A job's name when nobody gave it one."""

from __future__ import annotations

LONGEST = 60
PREFIXES = ("env", "exec", "time", "nohup", "nice")
"""Words that say how something is run, not what."""


def name_of(command: str | tuple[str, ...] | None, fallback: str = "job") -> str:
    """The word of a command that people know it by: its script, else its program."""
    words = command.split(None, 8) if isinstance(command, str) else list(command or ())
    while len(words) > 1 and ("=" in words[0] or words[0] in PREFIXES) and words[1][0].isalnum():
        words = words[1:]
    if not words:
        return fallback
    first = words[0].rpartition("/")[2]
    if first.startswith(("python", "bash", "sh", "torchrun", "accelerate")):
        for word in words[1:4]:
            if word.endswith((".py", ".sh")):
                return word.rpartition("/")[2][:LONGEST]
    return first[:LONGEST] or fallback
