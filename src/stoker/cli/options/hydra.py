"""A command line that was typed for Hydra's own sweeps: what of it is not for the trials."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = ("hydra/launcher", "hydra/sweeper", "hydra.launcher.", "hydra.sweeper.")
"""Beginnings of overrides that say how Hydra would run many jobs."""


def without_hydras_own(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into those of a trial and those by which Hydra would start trials itself."""
    kept: list[str] = []
    left_out: list[str] = []
    for place, word in enumerate(words):
        is_own = word == "--multirun" or word.lstrip("+").startswith(OWN)
        if is_own or (word == "-m" and _is_multirun(words, place)):
            left_out.append(word)
        else:
            kept.append(word)
    return kept, left_out


def _is_multirun(words: Sequence[str], place: int) -> bool:
    """Python's -m comes before the program, and a script's own may have a value behind it."""
    before = words[:place]
    if not any(word.endswith(".py") or word == "-m" for word in before):
        return False
    after = words[place + 1] if place + 1 < len(words) else "-"
    return after.startswith("-") or "=" in after


def told(left_out: Sequence[str]) -> str:
    """Say what was left out, and where it belongs."""
    several = len(left_out) > 1
    named = f"{', '.join(left_out[:-1])} and {left_out[-1]}" if several else left_out[0]
    wanted = any("launcher." in word for word in left_out)
    instead = "; give resources of a trial before the command: --gpus 1" if wanted else ""
    return f"{named} {'are' if several else 'is'} ignored: each trial is a run of its own{instead}."
