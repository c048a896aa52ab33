"""Reads a verb's options; small, since argparse alone would double a command's start-up.

It also does what argparse cannot: stop at the first word of the job's own command.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Value = str | bool | list[str]


class Option:
    """One option: `Option("-J/--job-name", "NAME", "what it does", key="name")`.

    A `value` of None makes it a switch; `[=X]` takes a value only after an equals sign;
    `[N]` takes the next word as well, when that is a number.
    """

    __slots__ = ("const", "key", "many", "names", "text", "value")

    def __init__(
        self,
        names: str,
        value: str | None,
        text: str,
        *,
        key: str = "",
        many: bool = False,
        const: str | None = None,
    ) -> None:
        self.names = names.split("/")
        self.value = value
        self.text = text
        self.key = key or self.names[-1].lstrip("-").replace("-", "_")
        self.many = many
        self.const = const


COMMON = (
    Option("--json", None, "print one JSON value, errors included"),
    Option("--color", None, "use colour even when not on a terminal"),
    Option("--no-color", None, "no colour"),
)
WATCH = Option("-i/--watch", "[N]", "redraw every N seconds (2)", key="watch")
VERBOSE = Option("-v/--verbose", None, "print more detail, with absolute times")


class Args:
    """What was typed: options by key, and the words that are no options."""

    def __init__(self, values: dict[str, Value], words: list[str]) -> None:
        self.values = values
        self.words = words

    def flag(self, key: str) -> bool:
        """Whether a switch is set."""
        return bool(self.values.get(key))

    def text(self, key: str) -> str | None:
        """Return the value of an option, None when it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def many(self, key: str) -> list[str]:
        """Return the values of an option that may be repeated."""
        value = self.values.get(key, [])
        return value if isinstance(value, list) else [str(value)]

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return the value of an option as a number."""
        value = self.text(key)
        if value is None:
            return default
        try:
            return float(value)
        except ValueError:
            raise UsageError(f"{_typed(key)} takes a number, not {value!r}.") from None

    def count(self, key: str, default: int | None = None, *, least: int = 0) -> int | None:
        """Return the value of an option as a whole number, at least so large."""
        value = self.text(key)
        if value is None:
            return default
        if not value.isdecimal():
            raise UsageError(f"{_typed(key)} takes a whole number, not {value!r}.")
        if int(value) < least:
            raise UsageError(
                f"{_typed(key)} takes a whole number of at least {least}, not {value!r}."
            )
        return int(value)


def _typed(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def parse(
    options: Iterable[Option], argv: Sequence[str], *, command: bool = False, verb: str = ""
) -> Args:
    """Split `argv` into options and words; with `command`, stop at the first word."""
    known = {name: option for option in (*options, *COMMON) for name in option.names}
    values: dict[str, Value] = {}
    words: list[str] = []
    rest = list(argv)
    rest.reverse()
    while rest:
        word = rest.pop()
        if word == "--":
            words += reversed(rest)
            break
        if not _is_option(word, known):
            words.append(word)
            if command:
                words += reversed(rest)
                break
            continue
        if word.startswith("--"):
            name, equals, attached = word.partition("=")
            _take(known, name, attached if equals else None, rest, values, verb)
        else:
            _take_short(known, word, rest, values, verb)
    return Args(values, words)


def _is_option(token: str, known: dict[str, Option]) -> bool:
    if len(token) < 2 or token[0] != "-":
        return False
    # `-1` is a selector: the newest job.
    return not token[1:].isdecimal() or token in known


def _take_short(
    known: dict[str, Option],
    token: str,
    rest: list[str],
    values: dict[str, Value],
    verb: str,
) -> None:
    """Take `-H`, `-G2`, `-G 2`, `-G=2`, or switches run together as in `-HQ`."""
    for place in range(1, len(token)):
        name = "-" + token[place]
        option = known.get(name)
        attached = token[place + 1 :]
        if option is not None and option.value is None and attached:
            _take(known, name, None, rest, values, verb)
            continue
        attached = attached.removeprefix("=")
        _take(known, name, attached or None, rest, values, verb)
        return


def _take(
    known: dict[str, Option],
    name: str,
    attached: str | None,
    rest: list[str],
    values: dict[str, Value],
    verb: str,
) -> None:
    option = known.get(name)
    if option is None:
        raise unknown(name, known, verb)
    if option.value is None:
        if attached is not None:
            raise UsageError(f"{name} takes no value.")
        value: str | bool = True if option.const is None else option.const
    elif attached is not None:
        value = attached
    elif option.value.startswith("["):
        takes = option.value == "[N]" and rest and _is_number(rest[-1])
        value = rest.pop() if takes else True
    elif rest and not (rest[-1].startswith("--") and len(rest[-1]) > 2):
        value = rest.pop()
    elif rest:
        raise UsageError(
            f"{name} needs a value, and {rest[-1]} is an option."
            f" If it is meant as the value: {name}={rest[-1]}"
        )
    else:
        raise UsageError(f"{name} needs a value: {name} {option.value}")
    _store(option, value, values)
    if option.key == "json":
        output.wants_json = True
    elif option.key in {"color", "no_color"}:
        output.force_colour = option.key == "color"


def _store(option: Option, value: str | bool, values: dict[str, Value]) -> None:
    if option.many:
        seen = values.setdefault(option.key, [])
        assert isinstance(seen, list)
        seen.append(str(value))
    else:
        values[option.key] = value


def _is_number(token: str) -> bool:
    return token.lstrip("+-").replace(".", "", 1).isdecimal()


def unknown(name: str, known: Iterable[str], verb: str) -> UsageError:
    """Return the error for an option that does not exist, with the nearest that does."""
    from stoker.cli.options.suggest import nearest

    guess = nearest(name, known)
    hint = f" Did you mean {guess}?" if guess else ""
    where = f"stoker help {verb}" if verb else "stoker --help"
    return UsageError(f"There is no option {name}.{hint} See: {where}")
