"""`auto`: a server that gives GPUs to tasks, and the client that talks to it."""

from __future__ import annotations

from stoker.client.errors import UsageError
from stoker.compat.arguments import did_you_mean
from stoker.compat.auto.options import ADDRESS_OPTIONS, SWITCHES, VERBS, overview, parse_verb, usage

MODULE_OF_VERB = {"server": "server", "trust": "known_servers"}
"""Verbs with their own module; the others are in `verbs`."""


def main(argv: list[str]) -> int:
    """Run a verb; --ip, --port and the common switches may precede it."""
    before, verb, arguments = _split_at_verb(argv)
    if verb in {"-h", "--help", "help"}:
        print(usage(arguments[0]) if arguments and arguments[0] in VERBS else overview())
        return 0
    if verb is None:
        raise UsageError(f"No command given. Choose one of: auto {', '.join(VERBS)}.")
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, "See: auto --help")
        raise UsageError(f"auto has no command {verb!r}. {hint}")
    if {"-h", "--help"} & set(arguments[:1]):
        print(usage(verb))
        return 0
    args = parse_verb(verb, [*before, *arguments])
    # __import__ with a list of names returns the module itself, without importlib's weight.
    file = MODULE_OF_VERB.get(verb, "verbs")
    module = __import__(f"stoker.compat.auto.{file}", fromlist=["run"])
    return int(getattr(module, verb)(args))


def _split_at_verb(argv: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the options before the verb, the verb, and its arguments."""
    words = list(argv)
    before: list[str] = []
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        if name not in ADDRESS_OPTIONS and word not in SWITCHES:
            return before, word, words
        before.append(word)
        if word in ADDRESS_OPTIONS and words:
            before.append(words.pop(0))
    return before, None, []
