"""IgnoreRules: paths that are not uploaded, by the rules of `.gitignore` in `.stokerignore`.

They are git's to the letter, with one difference: `?` and `[…]` stand for a character, not for
a byte of one. A test compares the two on random trees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NAME = ".stokerignore"
"""Not .gitignore: data is usually kept out of git, and jobs need it."""

_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~",
    "space": "\\s", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


class _Malformed(Exception):
    """A pattern that matches nothing, such as one with a bracket that is never closed."""


class Rule:
    """One line of an ignore file."""

    __slots__ = ("_match", "directories_only", "excludes", "whole_path")

    def __init__(self, line: str) -> None:
        self.excludes = not line.startswith("!")
        body = line if self.excludes else line[1:]
        self.directories_only = body.endswith("/")
        if self.directories_only:
            body = body[:-1]
        self.whole_path = "/" in body
        """Whether a slash, other than at the end, ties the pattern to the directory of its file."""
        self._match = re.compile(_translated(body.removeprefix("/")), re.DOTALL).fullmatch

    def holds(self, path: str, name: str, is_dir: bool) -> bool:
        """Return whether the rule matches a path, relative to the directory of the rule."""
        if self.directories_only and not is_dir:
            return False
        return self._match(path if self.whole_path else name) is not None


class IgnoreRules:
    """The rules of one directory: those of its own file and of the directories above."""

    __slots__ = ("_levels",)

    def __init__(self, levels: tuple[tuple[int, tuple[Rule, ...]], ...] = ()) -> None:
        """`levels`: the length of the path to each file, and its rules; the strongest first."""
        self._levels = levels

    @classmethod
    def always(cls, patterns: Sequence[str]) -> IgnoreRules:
        """Return rules that no file can override."""
        rules = _rules(patterns)
        # A negative length keeps this level before all files.
        return cls(((-1, rules),) if rules else ())

    def enter(self, directory: str, text: str | None) -> IgnoreRules:
        """Return the rules below `directory` (`""` is the base); its ignore file has this text."""
        rules = _rules(text.removeprefix("\ufeff").split("\n")) if text else ()
        if not rules:
            return self
        mine = (len(directory) + 1 if directory else 0, rules)
        fixed = 1 if self._levels and self._levels[0][0] < 0 else 0
        return IgnoreRules((*self._levels[:fixed], mine, *self._levels[fixed:]))

    def excluded(self, path: str, is_dir: bool) -> bool:
        """Return whether a path is excluded; its directory must not be."""
        name = path.rpartition("/")[2]
        for length, rules in self._levels:
            below = path[length:] if length > 0 else path
            for rule in rules:
                if rule.holds(below, name, is_dir):
                    return rule.excludes
        return False


def _rules(lines: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of these lines, the last one first, as they are tried."""
    rules = []
    for raw in lines:
        line = _trimmed(raw.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        try:
            rules.append(Rule(line))
        except _Malformed:
            continue
    return tuple(reversed(rules))


def _trimmed(line: str) -> str:
    """Return a line without trailing blanks, unless a backslash protects them."""
    body = line.rstrip(" ")
    slashes = len(body) - len(body.rstrip("\\"))
    return line[: len(body) + 1] if slashes % 2 else body


def _translated(pattern: str) -> str:
    """Return the regular expression of a wildcard pattern; `**` spans directories."""
    out: list[str] = []
    plain = True
    """Only letters so far: git compares those first, and `**` is then at a start."""
    at, end = 0, len(pattern)
    while at < end:
        char = pattern[at]
        special = char in "*?[\\"
        if char == "*":
            stop = at
            while stop < end and pattern[stop] == "*":
                stop += 1
            opens = plain or pattern[at - 1] == "/"
            if stop - at > 1 and opens and stop == end:
                out.append(".*")
            elif stop - at > 1 and opens and pattern[stop] == "/":
                out.append("(?:.*/)?")
                stop += 1
            elif stop - at > 1 and opens and pattern.startswith("\\/", stop):
                out.append(".*")
            else:
                out.append("[^/]*")
            at = stop
        elif char == "?":
            out.append("[^/]")
            at += 1
        elif char == "[":
            at, text = _bracket(pattern, at + 1)
            out.append(text)
        else:
            if char == "\\":
                at += 1
                if at == end:
                    raise _Malformed
            out.append(re.escape(pattern[at]))
            at += 1
        plain = plain and not special
    return "".join(out)


def _bracket(pattern: str, at: int) -> tuple[int, str]:
    """Return the set that begins at `at` as a regular expression, and its end."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    items: list[str] = []
    previous = ""
    first = True
    while first or pattern[at : at + 1] != "]":
        first = False
        if pattern.startswith("[:", at):
            close = pattern.find("]", at + 2)
            if close < 0:
                raise _Malformed
            if close > at + 2 and pattern[close - 1] == ":":
                name = pattern[at + 2 : close - 1]
                if name not in _CLASSES:
                    raise _Malformed
                items.append(_CLASSES[name])
                at, previous = close + 1, ""
                continue
        if pattern[at : at + 1] == "-" and previous and pattern[at + 1 : at + 2] not in ("", "]"):
            at, last = _letter(pattern, at + 1)
            if previous <= last:
                items.append(f"{re.escape(previous)}-{re.escape(last)}")
            previous = ""
        else:
            at, previous = _letter(pattern, at)
            items.append(re.escape(previous))
    chosen = "".join(items)
    return at + 1, f"(?!/)[{'^' if negated else ''}{chosen}]"


def _letter(pattern: str, at: int) -> tuple[int, str]:
    """Return one letter of a set, without its backslash, and the position of the next."""
    if pattern[at : at + 1] == "\\":
        at += 1
    if at >= len(pattern):
        raise _Malformed
    return at + 1, pattern[at]
