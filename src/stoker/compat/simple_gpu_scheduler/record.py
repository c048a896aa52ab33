"""A whole script in one line of a queue file, which any POSIX shell could run as it stands.

    (s=$(mktemp) && printf %b '#!/bin/sh\\necho a\\necho b\\n' >"$s" && ... ) # name.sh

Newlines are written as \\n, backslashes as \\\\, so a person can read it. The scheduler does
not run that line: it takes the script out of it again and runs it as the script that it was.
"""

from __future__ import annotations

HEAD = "(s=$(mktemp) && printf %b '"
TAIL = '\' >"$s" && chmod u+x "$s" && "$s"; e=$?; rm -f "$s"; exit $e) # '
QUOTE, QUOTED = "'", "'\\''"
LONGEST_NAME = 100

_ESCAPES = {code: f"\\0{code:03o}" for code in (*range(1, 32), 127) if chr(code) != "\t"} | {
    ord("\n"): "\\n",
    ord("\\"): "\\\\",
}
"""What `printf %b` turns back into one character."""
_MEANINGS = {text: chr(code) for code, text in _ESCAPES.items()}


def encode(name: str, script: str) -> str:
    """Return the line that holds a script of this name."""
    return HEAD + script.translate(_ESCAPES).replace(QUOTE, QUOTED) + TAIL + tidy(name)


def decode(line: str) -> tuple[str, str] | None:
    """Return the name and the script that a line holds; None for any other line."""
    if not line.startswith(HEAD):
        return None
    body, tail, name = line[len(HEAD) :].rpartition(TAIL)
    script = _unescaped(body.replace(QUOTED, QUOTE))
    # Only what would be written exactly so is a record: nothing is ever guessed.
    if not tail or script is None or encode(name, script) != line:
        return None
    return name, script


def tidy(name: str) -> str:
    """Return a name that fits behind a # at the end of a line, and on a screen."""
    # A backslash at the end of a line would make it go on in the next one.
    kept = "".join(char if char.isprintable() and char not in "'\\" else "?" for char in name)
    return kept.strip()[:LONGEST_NAME].strip() or "script"


def _unescaped(text: str) -> str | None:
    first, *rest = text.split("\\")
    pieces = [first]
    after_backslash = False
    for piece in rest:
        if after_backslash:  # the second of two: what follows it is plain
            after_backslash = False
            pieces.append(piece)
        elif not piece:
            after_backslash = True
            pieces.append("\\")
        else:
            length = 1 if piece[0] == "n" else 4
            meaning = _MEANINGS.get(f"\\{piece[:length]}")
            if meaning is None:
                return None
            pieces.append(meaning + piece[length:])
    return "".join(pieces)
