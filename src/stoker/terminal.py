"""Filter control characters, escapes and bidirectional marks out of terminal output.

Every command imports it, so it imports nothing.
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
"""The colours that commands use; the filter removes all other codes."""
_CODES = {"0", *COLOURS.values()}


def clean(text: object) -> str:
    """Return text as one line, with each control character replaced by `?`."""
    text = str(text)
    return text if text.isprintable() else _without_controls(text, "")


def filtered(text: str, coloured: bool) -> str:
    """Return lines without control characters; with `coloured`, colours are kept."""
    first, *sequences = text.split(ESCAPE) if coloured else [text]
    pieces = [_without_controls(first, "\n\t")]
    for sequence in sequences:
        code, end, text = sequence.partition("m")
        if end and code[:1] == "[" and _CODES.issuperset(code[1:].split(";")):
            pieces += [ESCAPE, code, end, _without_controls(text, "\n\t")]
        else:
            pieces += ["?", _without_controls(sequence, "\n\t")]
    return "".join(pieces)


def _without_controls(text: str, keep: str) -> str:
    replacements = {
        ord(char): "?" for char in set(text) if not (char.isprintable() or char in keep)
    }
    return text.translate(replacements)


class FilteredStream:
    """A text stream that filters what is written; its `buffer` takes bytes unfiltered."""

    def __init__(self, stream: TextIO, coloured: Callable[[], bool] = lambda: False) -> None:
        self.unfiltered: Any = getattr(stream, "unfiltered", stream)
        self.coloured = coloured

    def write(self, text: str) -> int:
        """Write text, filtered."""
        plain = text.replace("\n", "").isprintable()
        self.unfiltered.write(text if plain else filtered(text, self.coloured()))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the stream."""
        return getattr(self.unfiltered, name)


def write_raw(stream: TextIO, text: str) -> None:
    """Write text with cursor movements; data in `text` must be filtered already."""
    getattr(stream, "unfiltered", stream).write(text)
    stream.flush()
