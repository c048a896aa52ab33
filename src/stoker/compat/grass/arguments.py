"""Reads the words behind a verb: options in any of their forms, and the job's own command."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class GrassArguments:
    """What was typed: the values of each option, and the words that are no options."""

    def __init__(self) -> None:
        self.options: dict[str, list[str]] = {}
        self.words: list[str] = []

    def flag(self, name: str) -> bool:
        """Whether a switch is set."""
        return name in self.options

    def many(self, name: str) -> list[str]:
        """Return all values of an option that may be repeated."""
        return self.options.get(name, [])

    def one(self, name: str) -> str | None:
        """Return the value of an option that may be given once."""
        values = self.options.get(name, [])
        if len(values) > 1:
            raise UsageError(f"{name} is given twice; give it once.")
        return values[0] if values else None


def read(
    argv: Sequence[str],
    verb: str,
    options: Mapping[str, str | None],
    before_command: int | None = None,
) -> GrassArguments:
    """Sort words into options and others; `options` says what each takes, None for a switch.

    With `before_command`, a command begins behind so many words, and all the rest is its own.
    """
    asked = GrassArguments()
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        command = before_command is not None and len(asked.words) >= before_command
        if word == "--":
            asked.words += reversed(rest)
            break
        if len(word) < 2 or word[0] != "-":
            asked.words.append(word)
            if command:
                asked.words += reversed(rest)
                break
            continue
        name, attached = _split(word, options)
        if name not in options:
            raise _unknown(name, verb, options, command)
        _take(asked, name, attached, options[name], rest)
    return asked


def _split(word: str, options: Mapping[str, str | None]) -> tuple[str, str | None]:
    """Return an option's full name and the value that is attached to it: --env=K=V, -eK=V."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    full = {"-e": "--env"}.get(word[:2], word[:2])
    if full not in options:
        return word, None
    return full, word[2:].removeprefix("=") or None


def _take(
    asked: GrassArguments, name: str, attached: str | None, takes: str | None, rest: list[str]
) -> None:
    if takes is None and attached is not None:
        raise UsageError(f"{name} takes no value.")
    if takes is not None and attached is None:
        if not rest:
            raise UsageError(f"{name} needs a value: {name} {takes}")
        attached = rest.pop()
    asked.options.setdefault(name, []).append(attached or "")


def _unknown(name: str, verb: str, options: Mapping[str, str | None], command: bool) -> UsageError:
    if command:
        return UsageError(
            f"grass enqueue has no option {name}. If it begins the command, write -- before it."
        )
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(name, options)
    hint = f"Did you mean {guess}?" if guess else f"See: grass {verb} --help"
    return UsageError(f"grass {verb} has no option {name}. {hint}")


def only_word(asked: GrassArguments, verb: str) -> str:
    """Return the one queue that a verb is about."""
    if len(asked.words) != 1:
        raise UsageError(f"grass {verb} takes the name of one queue: grass {verb} q1")
    return asked.words[0]
