"""Text from outside, made fit to be stored."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """Return at most `most` characters; what is not printable, or no character, becomes a blank."""
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
