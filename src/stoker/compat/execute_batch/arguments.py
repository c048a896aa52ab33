"""Command line parser of execute_batch and run-scheduler: options with several values."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH, ONE, MANY = "switch", "one", "many"


class BatchArguments:
    """Options by name, and the other words."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.switches: set[str] = set()
        self.values: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.words: list[str] = []

    def count(self, name: str, default: int) -> int:
        """Return an option as a whole number."""
        text = self.values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal()) or len(text) > 9:
            raise UsageError(f"{name} takes a whole number, not {text!r}.")
        return int(text)

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


def read_arguments(argv: list[str], kinds: Mapping[str, str], program: str) -> BatchArguments:
    """Parse a command line; option names may be abbreviated if unambiguous."""
    arguments = BatchArguments(program)
    open_list: list[str] | None = None
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        if word == "--":
            arguments.words += reversed(remaining)
            break
        if len(word) < 2 or not word.startswith("-"):
            (arguments.words if open_list is None else open_list).append(word)
            continue
        option, equals, attached = word.partition("=")
        name = _resolve_option(option, kinds, program)
        open_list = None
        if kinds[name] == SWITCH:
            if equals:
                raise UsageError(f"{name} takes no value.")
            arguments.switches.add(name)
        elif kinds[name] == MANY:
            arguments.lists[name] = [attached] if equals else []
            open_list = None if equals else arguments.lists[name]
        else:
            if not equals and not remaining:
                raise UsageError(f"{name} needs a value.")
            arguments.values[name] = attached if equals else remaining.pop()
    return arguments


def _resolve_option(option: str, kinds: Mapping[str, str], program: str) -> str:
    if option in kinds:
        return option
    matches = [name for name in kinds if option.startswith("--") and name.startswith(option)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{option} is ambiguous: {' or '.join(matches)}.")
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(option, kinds)
    hint = f" Did you mean {guess}?" if guess else ""
    raise UsageError(f"There is no option {option}.{hint} See: {program} --help")
