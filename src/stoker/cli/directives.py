"""Options inside a script: its `#STOKER` and `#SBATCH` lines, before the first command."""

from __future__ import annotations

from stoker.cli.jobflags import JOB, SUBMIT
from stoker.cli.options import COMMON, Args, parse
from stoker.client.errors import UsageError

MAX_BYTES = 32 * 1024
_NAMES = frozenset(name for option in (*JOB, *SUBMIT, *COMMON) for name in option.names)


def read(text: str, *, strict: bool = False) -> tuple[Args, list[str]]:
    """Return a script's own options, and the #SBATCH options that mean nothing here."""
    ours, slurm = _words(text)
    known, unknown = _sift(slurm)
    if unknown and strict:
        raise UsageError(f"#SBATCH has options that stoker does not know: {' '.join(unknown)}.")
    merged = parse((*JOB, *SUBMIT), known)
    unknown += merged.words
    try:
        own = parse((*JOB, *SUBMIT), ours)
    except UsageError as error:
        raise UsageError(f"In a #STOKER line: {error.message}") from None
    if own.words:
        raise UsageError(f"In a #STOKER line: {own.words[0]!r} is not an option.")
    return Args({**merged.values, **own.values}, []), unknown


def _words(text: str) -> tuple[list[str], list[str]]:
    """Collect the words of #STOKER lines and of #SBATCH lines, up to the first command."""
    found: dict[str, list[str]] = {"#STOKER": [], "#SBATCH": []}
    for raw in text[:MAX_BYTES].splitlines():
        line = raw.strip()
        if line and not line.startswith("#"):
            break
        mark, _, rest = line.partition(" ")
        mark, tab, more = mark.partition("\t")
        if mark in found:
            found[mark] += _split(more + " " + rest if tab else rest)
    return found["#STOKER"], found["#SBATCH"]


def _split(text: str) -> list[str]:
    """Split as a shell would; a word that starts with # begins a comment."""
    if any(char in text for char in "'\"\\"):
        from shlex import split

        try:
            return split(text, comments=True)
        except ValueError as error:
            raise UsageError(f"A directive cannot be read ({error}): {text}") from None
    words = text.split()
    ends = [i for i, word in enumerate(words) if word.startswith("#")]
    return words[: ends[0]] if ends else words


def _sift(words: list[str]) -> tuple[list[str], list[str]]:
    """Divide the words of #SBATCH lines into options we know and those we do not."""
    known: list[str] = []
    unknown: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            skipping = name not in _NAMES
            if skipping:
                unknown.append(name)
        if not skipping:
            known.append(word)
    return known, unknown
