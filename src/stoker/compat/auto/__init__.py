"""`auto`: a server that gives GPUs to tasks, and the client that talks to it."""

from __future__ import annotations

from stoker.client.errors import UsageError
from stoker.compat.auto.options import HERE, SWITCHES, VERBS, overview, parsed, usage

IN_FILES = {"server": "server", "trust": "trust"}
"""Verbs with a file of their own; the others share one."""


def main(argv: list[str]) -> int:
    """Do what the first word says; --ip, --port and what all verbs take may stand before it."""
    before, verb, rest = _split(argv)
    if verb in {"-h", "--help", "help"}:
        print(usage(rest[0]) if rest and rest[0] in VERBS else overview())
        return 0
    if verb is None:
        raise UsageError(f"No command given. Choose one of: auto {', '.join(VERBS)}.")
    if verb not in VERBS:
        raise _no_such(verb)
    if {"-h", "--help"} & set(rest[:1]):
        print(usage(verb))
        return 0
    args = parsed(verb, [*before, *rest])
    # __import__ with a list of names returns the module itself, without importlib's weight.
    file = IN_FILES.get(verb, "verbs")
    module = __import__(f"stoker.compat.auto.{file}", fromlist=["run"])
    return int(getattr(module, verb)(args))


def _split(argv: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Part the options in front of the verb, the verb, and what is its own."""
    words = list(argv)
    before: list[str] = []
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        if name not in HERE and word not in SWITCHES:
            return before, word, words
        before.append(word)
        if word in HERE and words:
            before.append(words.pop(0))
    return before, None, []


def _no_such(word: str) -> UsageError:
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(word, VERBS)
    hint = f"Did you mean `auto {guess}`?" if guess else "See: auto --help"
    return UsageError(f"auto has no command {word!r}. {hint}")
