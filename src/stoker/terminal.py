"""Keeps data from steering a terminal: control characters, escapes and bidirectional marks.

Every command passes through here, so nothing is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

ESCAPE = "\x1b"
COLOURS = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36",
}  # fmt: skip
"""The colours that commands use; the filter lets no other code pass."""
_CODES = {"0", *COLOURS.values()}


def clean(text: object) -> str:
    """Return text as one line without control characters: `?` stands for each of them."""
    text = str(text)
    return text if text.isprintable() else _without_controls(text, "")


def filtered(text: str, coloured: bool) -> str:
    """Return lines without control characters; with `coloured`, colours (and they alone) stay."""
    first, *parts = text.split(ESCAPE) if coloured else [text]
    found = [_without_controls(first, "\n\t")]
    for part in parts:
        code, end, rest = part.partition("m")
        if end and code[:1] == "[" and _CODES.issuperset(code[1:].split(";")):
            found += [ESCAPE, code, end, _without_controls(rest, "\n\t")]
        else:
            found += ["?", _without_controls(part, "\n\t")]
    return "".join(found)


def _without_controls(text: str, keep: str) -> str:
    odd = {ord(char): "?" for char in set(text) if not (char.isprintable() or char in keep)}
    return text.translate(odd)


class FilteredStream:
    """A text stream that is written to through the filter; its `buffer` takes bytes as they are."""

    def __init__(self, stream: TextIO, coloured: Callable[[], bool] = lambda: False) -> None:
        self.unfiltered: Any = getattr(stream, "unfiltered", stream)
        self.coloured = coloured

    def write(self, text: str) -> int:
        """Write text that may have come from anywhere."""
        plain = text.replace("\n", "").isprintable()
        self.unfiltered.write(text if plain else filtered(text, self.coloured()))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Be in all else what the stream is."""
        return getattr(self.unfiltered, name)


def write_raw(stream: TextIO, text: str) -> None:
    """Write what moves the cursor; `text` holds nothing from outside that is not filtered."""
    getattr(stream, "unfiltered", stream).write(text)
    stream.flush()
