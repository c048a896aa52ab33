"""A pasted Hydra multirun command: which words are not for the trials."""

from __future__ import annotations

MULTIRUN_PREFIXES = ("hydra/launcher", "hydra/sweeper", "hydra.launcher.", "hydra.sweeper.")
"""Prefixes of overrides about how Hydra starts the jobs of a multirun."""


def split_multirun_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Split words into those of a trial and the multirun options of Hydra."""
    kept: list[str] = []
    ignored: list[str] = []
    for index, word in enumerate(words):
        is_multirun = word == "--multirun" or word.lstrip("+").startswith(MULTIRUN_PREFIXES)
        if is_multirun or (word == "-m" and _is_multirun_switch(words, index)):
            ignored.append(word)
        else:
            kept.append(word)
    return kept, ignored


def _is_multirun_switch(words: list[str], index: int) -> bool:
    """Return True unless this -m is Python's, or an option of the script with a value."""
    before = words[:index]
    if not any(word.endswith(".py") or word == "-m" for word in before):
        return False
    after = words[index + 1] if index + 1 < len(words) else "-"
    return after.startswith("-") or "=" in after


def ignored_note(ignored: list[str]) -> str:
    """Return the message about ignored multirun options."""
    several = len(ignored) > 1
    named = f"{', '.join(ignored[:-1])} and {ignored[-1]}" if several else ignored[0]
    has_resources = any("launcher." in word for word in ignored)
    instead = "; give resources of a trial before the command: --gpus 1" if has_resources else ""
    return f"{named} {'are' if several else 'is'} ignored: each trial is a run of its own{instead}."
