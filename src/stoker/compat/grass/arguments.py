"""Command line parser of grass: options, and the command of a job."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class GrassArguments:
    """Values of each option, and the other words."""

    def __init__(self) -> None:
        self.options: dict[str, list[str]] = {}
        self.words: list[str] = []

    def flag(self, name: str) -> bool:
        """Return True if a switch is set."""
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


def read_arguments(
    argv: Sequence[str],
    verb: str,
    options: Mapping[str, str | None],
    before_command: int | None = None,
) -> GrassArguments:
    """Parse a command line; `options` has the value name of each option, None for a switch.

    With `before_command`, a command follows after this many words and takes all the rest.
    """
    args = GrassArguments()
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        command = before_command is not None and len(args.words) >= before_command
        if word == "--":
            args.words += reversed(remaining)
            break
        if len(word) < 2 or word[0] != "-":
            args.words.append(word)
            if command:
                args.words += reversed(remaining)
                break
            continue
        name, attached = _split(word, options)
        if name not in options:
            raise _unknown(name, verb, options, command)
        _take(args, name, attached, options[name], remaining)
    return args


def _split(word: str, options: Mapping[str, str | None]) -> tuple[str, str | None]:
    """Return the full name and the attached value of an option: --env=K=V, -eK=V."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    full = {"-e": "--env"}.get(word[:2], word[:2])
    if full not in options:
        return word, None
    return full, word[2:].removeprefix("=") or None


def _take(
    args: GrassArguments, name: str, attached: str | None, takes: str | None, remaining: list[str]
) -> None:
    if takes is None and attached is not None:
        raise UsageError(f"{name} takes no value.")
    if takes is not None and attached is None:
        if not remaining:
            raise UsageError(f"{name} needs a value: {name} {takes}")
        attached = remaining.pop()
    args.options.setdefault(name, []).append(attached or "")


def _unknown(name: str, verb: str, options: Mapping[str, str | None], command: bool) -> UsageError:
    if command:
        return UsageError(
            f"grass enqueue has no option {name}. If it begins the command, write -- before it."
        )
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(name, options)
    hint = f"Did you mean {guess}?" if guess else f"See: grass {verb} --help"
    return UsageError(f"grass {verb} has no option {name}. {hint}")


def only_queue(args: GrassArguments, verb: str) -> str:
    """Return the only word, which must be a queue."""
    if len(args.words) != 1:
        raise UsageError(f"grass {verb} takes the name of one queue: grass {verb} q1")
    return args.words[0]
