"""Encode a script as one line of a queue file, which any POSIX shell can run.

    (s=$(mktemp) && printf %b '#!/bin/sh\\necho a\\necho b\\n' >"$s" && ... ) # name.sh

Newlines are written as \\n, backslashes as \\\\, so it is readable. The scheduler does
not run that line: it decodes the script and runs it.
"""

from __future__ import annotations

HEAD = "(s=$(mktemp) && printf %b '"
TAIL = '\' >"$s" && chmod u+x "$s" && "$s"; e=$?; rm -f "$s"; exit $e) # '
QUOTE, QUOTED = "'", "'\\''"
MAX_NAME_LENGTH = 100

_ESCAPES = {code: f"\\0{code:03o}" for code in (*range(1, 32), 127) if chr(code) != "\t"} | {
    ord("\n"): "\\n",
    ord("\\"): "\\\\",
}
"""Escapes that `printf %b` decodes to one character."""
_MEANINGS = {text: chr(code) for code, text in _ESCAPES.items()}


def encode(name: str, script: str) -> str:
    """Return the line of a script."""
    return HEAD + script.translate(_ESCAPES).replace(QUOTE, QUOTED) + TAIL + printable_name(name)


def decode(line: str) -> tuple[str, str] | None:
    """Return the name and the script of a line; None for any other line."""
    if not line.startswith(HEAD):
        return None
    import re

    body, _, name = line[len(HEAD) :].rpartition(TAIL)
    escaped = body.replace(QUOTED, QUOTE)
    script = re.sub(r"\\(?:n|\\|0\d{3})", lambda match: _MEANINGS.get(match[0], ""), escaped)
    # Only exactly what encode() writes is a script: nothing is guessed.
    return (name, script) if encode(name, script) == line else None


def printable_name(name: str) -> str:
    """Return a printable name for the comment at the end of the line."""
    # A backslash at the end of a line would continue it on the next.
    kept = "".join(char if char.isprintable() and char not in "'\\" else "?" for char in name)
    return kept.strip()[:MAX_NAME_LENGTH].strip() or "script"
