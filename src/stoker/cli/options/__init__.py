"""The option parser of all verbs; argparse alone would double a command's start-up.

Unlike argparse, it can stop at the first word of the job's command.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.client.errors import UsageError

Value = str | bool | list[str]


class Option:
    """One option: `Option("-J/--job-name", "NAME", "what it does", key="name")`.

    A `value` of None makes it a switch; `[=X]` takes a value only after an equals sign;
    `[N]` also takes the next word if that is a number.
    """

    __slots__ = ("key", "many", "names", "text", "value")

    def __init__(
        self, names: str, value: str | None, text: str, *, key: str = "", many: bool = False
    ) -> None:
        self.names = names.split("/")
        self.value = value
        self.text = text
        self.key = key or self.names[-1].lstrip("-").replace("-", "_")
        self.many = many


COMMON = (
    Option("--json", None, "print one JSON value, errors included"),
    Option("--color", None, "use colour even when not on a terminal"),
    Option("--no-color", None, "no colour"),
)
WATCH = Option("-i/--watch", "[N]", "redraw every N seconds (2)", key="watch")
VERBOSE = Option("-v/--verbose", None, "print more detail, with absolute times")


class Args:
    """A parsed command line: options by key, and the words that are not options."""

    def __init__(self, values: dict[str, Value], words: list[str]) -> None:
        self.values = values
        self.words = words

    def flag(self, key: str) -> bool:
        """Return True if a switch is set."""
        return bool(self.values.get(key))

    def text(self, key: str) -> str | None:
        """Return the value of an option, None if it was not given."""
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
            raise UsageError(f"{option_name(key)} takes a number, not {value!r}.") from None

    def count(self, key: str, default: int | None = None, *, minimum: int = 0) -> int | None:
        """Return the value of an option as a whole number, at least `minimum`."""
        value = self.text(key)
        if value is None:
            return default
        if not value.isdecimal():
            raise UsageError(f"{option_name(key)} takes a whole number, not {value!r}.")
        if int(value) < minimum:
            raise UsageError(
                f"{option_name(key)} takes a whole number of at least {minimum}, not {value!r}."
            )
        return int(value)


def option_name(key: str) -> str:
    """Return `--max-running` for the key `max_running`."""
    return f"--{key.replace('_', '-')}"


def parse(
    options: tuple[Option, ...], argv: list[str], *, command: bool = False, verb: str = ""
) -> Args:
    """Split `argv` into options and words; with `command`, stop at the first word."""
    by_name = {name: option for option in (*options, *COMMON) for name in option.names}
    values: dict[str, Value] = {}
    words: list[str] = []
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        if word == "--":
            words += reversed(remaining)
            break
        if not _is_option(word, by_name):
            words.append(word)
            if command:
                words += reversed(remaining)
                break
            continue
        if word.startswith("--"):
            name, equals, attached = word.partition("=")
            _read_option(by_name, name, attached if equals else None, remaining, values, verb)
        else:
            _read_short_options(by_name, word, remaining, values, verb)
    return Args(values, words)


def _is_option(token: str, by_name: dict[str, Option]) -> bool:
    if len(token) < 2 or token[0] != "-":
        return False
    # `-1` is a selector: the newest job.
    return not token[1:].isdecimal() or token in by_name


def _read_short_options(
    by_name: dict[str, Option],
    token: str,
    remaining: list[str],
    values: dict[str, Value],
    verb: str,
) -> None:
    """Read `-H`, `-G2`, `-G 2`, `-G=2`, or several switches in one word: `-HQ`."""
    for index in range(1, len(token)):
        name = "-" + token[index]
        option = by_name.get(name)
        attached = token[index + 1 :]
        if option is not None and option.value is None and attached:
            _read_option(by_name, name, None, remaining, values, verb)
            continue
        attached = attached.removeprefix("=")
        _read_option(by_name, name, attached or None, remaining, values, verb)
        return


def _read_option(
    by_name: dict[str, Option],
    name: str,
    attached: str | None,
    remaining: list[str],
    values: dict[str, Value],
    verb: str,
) -> None:
    option = by_name.get(name)
    if option is None:
        raise unknown_option(name, list(by_name), verb)
    if option.value is None:
        if attached is not None:
            raise UsageError(f"{name} takes no value.")
        value: str | bool = True
    elif attached is not None:
        value = attached
    elif option.value.startswith("["):
        takes_next = option.value == "[N]" and remaining and _is_number(remaining[-1])
        value = remaining.pop() if takes_next else True
    elif remaining and not (remaining[-1].startswith("--") and len(remaining[-1]) > 2):
        value = remaining.pop()
    elif remaining:
        raise UsageError(
            f"{name} needs a value, and {remaining[-1]} is an option."
            f" If it is meant as the value: {name}={remaining[-1]}"
        )
    else:
        raise UsageError(f"{name} needs a value: {name} {option.value}")
    if option.many:
        earlier = values.setdefault(option.key, [])
        assert isinstance(earlier, list)
        earlier.append(str(value))
    else:
        values[option.key] = value
    if option.key == "json":
        output.wants_json = True
    elif option.key in {"color", "no_color"}:
        output.force_colour = option.key == "color"


def _is_number(token: str) -> bool:
    return token.lstrip("+-").replace(".", "", 1).isdecimal()


def unknown_option(name: str, names: list[str], verb: str) -> UsageError:
    """Return the error for an unknown option, with the most similar one."""
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(name, names)
    hint = f" Did you mean {guess}?" if guess else ""
    help_command = f"stoker help {verb}" if verb else "stoker --help"
    return UsageError(f"There is no option {name}.{hint} See: {help_command}")
