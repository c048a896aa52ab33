"""Reads a command line as these two commands do: an option may take any number of words."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH, ONE, MANY = "switch", "one", "many"


class BatchArguments:
    """What was typed: options by name, and the words that are no options."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.switches: set[str] = set()
        self.ones: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.free: list[str] = []

    def whole(self, name: str, default: int) -> int:
        """Return a whole number that is not negative."""
        text = self.ones.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal()) or len(text) > 9:
            raise UsageError(f"{name} takes a whole number, not {text!r}.")
        return int(text)

    def thousandths(self, name: str, default: int) -> int:
        """Return a number with decimals, as thousandths."""
        text = self.ones.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1000:
            raise UsageError(f"{name} takes a number such as 0.5, not {text!r}.")
        return round(value * 1000)


def read(argv: list[str], kinds: Mapping[str, str], program: str) -> BatchArguments:
    """Take a command line apart. Options may be cut short, as long as they are not mistaken."""
    found = BatchArguments(program)
    filling: list[str] | None = None
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            found.free += reversed(rest)
            break
        if len(word) < 2 or not word.startswith("-"):
            (found.free if filling is None else filling).append(word)
            continue
        typed, equals, attached = word.partition("=")
        name = _meant(typed, kinds, program)
        filling = None
        if kinds[name] == SWITCH:
            if equals:
                raise UsageError(f"{name} takes no value.")
            found.switches.add(name)
        elif kinds[name] == MANY:
            found.lists[name] = [attached] if equals else []
            filling = None if equals else found.lists[name]
        else:
            if not equals and not rest:
                raise UsageError(f"{name} needs a value.")
            found.ones[name] = attached if equals else rest.pop()
    return found


def _meant(typed: str, kinds: Mapping[str, str], program: str) -> str:
    if typed in kinds:
        return typed
    begun = [name for name in kinds if typed.startswith("--") and name.startswith(typed)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(f"{typed} is ambiguous: {' or '.join(begun)}.")
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(typed, kinds)
    hint = f" Did you mean {guess}?" if guess else ""
    raise UsageError(f"There is no option {typed}.{hint} See: {program} --help")
