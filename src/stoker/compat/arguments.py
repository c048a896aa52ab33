"""Command line parser of the compat commands: options with one value or several."""

from __future__ import annotations

from stoker.cli.output import clean
from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SWITCH, ONE, ONCE, EACH, MANY = "switch", "one", "once", "each", "many"
"""Kinds of options: without a value; with one, of which the last counts; given at most once; with
one each time; with all words that follow."""
ALIASES = {"-e": "--env", "-f": "--follow"}


class Arguments:
    """Options by name, and the other words."""

    def __init__(self) -> None:
        self.switches: set[str] = set()
        self.values: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.words: list[str] = []

    def count(self, name: str, default: int) -> int:
        """Return an option as a whole number."""
        text = self.values.get(name)
        return default if text is None else whole_number(name, text)

    def thousandths(self, name: str, default: int) -> int:
        """Return a decimal option in thousandths."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1000:
            raise UsageError(f"{name} takes a number such as 0.5, not {text!r}.")
        return round(value * 1000)


def whole_number(name: str, text: str, minimum: int = 0, maximum: int = 10**9) -> int:
    """Parse the value of an option."""
    digits = text.strip().removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 12:
        number = int(text)
        if minimum <= number <= maximum:
            return number
    bounds = f"of at least {minimum}" if maximum == 10**9 else f"from {minimum} to {maximum}"
    raise UsageError(f"{name} takes a whole number {bounds}, not {clean(text)!r}.")


def read_arguments(
    argv: Sequence[str],
    kinds: Mapping[str, str],
    program: str,
    before_command: int | None = None,
) -> Arguments:
    """Parse a command line; option names may be abbreviated if unambiguous.

    With `before_command`, a command follows after this many words and takes all the rest.
    """
    arguments = Arguments()
    open_list: list[str] | None = None
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        may_be_command = before_command is not None and len(arguments.words) >= before_command
        if word == "--":
            arguments.words += reversed(remaining)
            break
        if len(word) < 2 or not word.startswith("-"):
            (arguments.words if open_list is None else open_list).append(word)
            if may_be_command:
                arguments.words += reversed(remaining)
                break
            continue
        option, attached = _split(word)
        name = _resolve_option(option, kinds, program, may_be_command)
        kind, open_list = kinds[name], None
        if kind == SWITCH:
            if attached is not None:
                raise UsageError(f"{name} takes no value.")
            arguments.switches.add(name)
        elif kind == MANY:
            arguments.lists[name] = [] if attached is None else [attached]
            open_list = arguments.lists[name] if attached is None else None
        else:
            if attached is None and not remaining:
                raise UsageError(f"{name} needs a value.")
            value = remaining.pop() if attached is None else attached
            if kind == EACH:
                arguments.lists.setdefault(name, []).append(value)
            elif kind == ONCE and name in arguments.values:
                raise UsageError(f"{name} is given twice; give it once.")
            else:
                arguments.values[name] = value
    return arguments


def _split(word: str) -> tuple[str, str | None]:
    """Return the name and the attached value of an option: --env=K=V, -eK=V."""
    if word[:2] in ALIASES:
        return ALIASES[word[:2]], word[2:].removeprefix("=") or None
    name, equals, value = word.partition("=")
    return name, value if equals else None


def _resolve_option(
    option: str, kinds: Mapping[str, str], program: str, may_be_command: bool
) -> str:
    if option in kinds:
        return option
    matches = [name for name in kinds if option.startswith("--") and name.startswith(option)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{option} is ambiguous: {' or '.join(matches)}.")
    hint = "If it begins the command, write -- before it."
    if not may_be_command:
        hint = did_you_mean(option, kinds, f"See: {program} --help")
    raise UsageError(f"There is no option {option}. {hint}")


def did_you_mean(word: str, choices: Iterable[str], otherwise: str) -> str:
    """Return a hint for a mistyped word."""
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(word, list(choices))
    return f"Did you mean {guess}?" if guess else otherwise
