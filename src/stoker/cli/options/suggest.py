"""Suggestions for mistyped words."""

from __future__ import annotations


def closest_match(word: str, choices: list[str]) -> str | None:
    """Return the choice most similar to `word`, None if none is similar."""
    from difflib import get_close_matches

    starts = [choice for choice in choices if len(word) > 2 and choice.startswith(word)]
    return min(starts, key=len, default=None) or next(
        iter(get_close_matches(word, choices, n=1, cutoff=0.6)), None
    )
