"""simple_hypersearch: print one command for each combination of parameters."""

from __future__ import annotations

import os
import sys

from stoker.client.errors import UsageError
from stoker.compat.simple_hypersearch.grid import MODES, SHUFFLED_GRID, Grid, order
from stoker.compat.simple_hypersearch.pattern import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HELP = """\
  simple_hypersearch PATTERN [OPTIONS] -p NAME VALUE ... [-p NAME VALUE ...]

Print the command PATTERN once for each combination of the parameters, with each {NAME}
replaced by a value. Run them by piping them into simple_gpu_scheduler or `stoker feed`, or
append them to a queue file.

  simple_hypersearch "python3 train.py --lr {lr} --bs {bs}" -p lr 0.1 -1e-3 -p bs 32 64

Options
  -p, --parameter NAME VALUE ...  a parameter and the values to try; one -p for each parameter
  --sampling-mode MODE            shuffled_grid: all combinations in random order (default);
                                  grid: in order, the last parameter changing fastest
  --n-samples N                   only N of them; with shuffled_grid a random sample without
                                  duplicates (all)
  --seed N                        the same order for the same N
  --                              the pattern follows: -p a 1 2 -- 'echo {a}'
  -h, --help                      show this help

Values are inserted verbatim, without quotes. {lr:>8} pads a value, {lr!r} quotes it. Double the
braces that belong to the command: awk '{{print $1}}'. Put a space before a value that begins with a
dash and is not a number: ' --fast'."""
TAKES_VALUE = ("--sampling-mode", "--n-samples", "--seed")
LONG = ("--parameter", *TAKES_VALUE)
WRITE_BYTES = 4096
"""Bytes that a pipe accepts atomically (PIPE_BUF)."""


class HypersearchArguments:
    """Pattern, parameters and options."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.parameters: list[tuple[str, list[str]]] = []
        self.options: dict[str, str] = {}


def main(argv: list[str]) -> int:
    """Print the commands."""
    args = read_arguments(argv)
    text = _pattern_text(args)
    parameters = _checked_parameters(args)
    names = list(parameters)
    pattern = Pattern(text, names)
    _check_use(pattern, parameters)
    seed = _whole_number(args, "--seed")
    count = _whole_number(args, "--n-samples")
    if count is not None and count < 0:
        raise UsageError(f"--n-samples takes a whole number of at least 0, not {count}.")
    mode = args.options.get("--sampling-mode", SHUFFLED_GRID)
    if mode not in MODES:
        raise UsageError(f"--sampling-mode is shuffled_grid or grid, not {mode!r}.")
    fill = pattern.fill
    combinations = order(Grid(names, list(parameters.values())), mode, seed, count)
    write_lines(fill(*values) for values in combinations)
    return 0


# -------------------------------------------------------------------------- parsing


def read_arguments(argv: list[str]) -> HypersearchArguments:
    """Parse a command line."""
    args = HypersearchArguments()
    into = args.words  # after -p NAME, words are its values until the next option
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        if word == "--":
            args.words += reversed(remaining)
            break
        if not _is_option(word):
            into.append(word)
            continue
        name, attached = _option(word, args)
        if attached is None and not remaining:
            needs = "a name and values: -p lr 0.1 0.01" if name == "--parameter" else "a value."
            raise UsageError(f"{word} needs {needs}")
        value = remaining.pop() if attached is None else attached
        if name == "--parameter":
            into = []
            args.parameters.append((value, into))
        else:
            into = args.words
            args.options[name] = value
    return args


def _is_option(word: str) -> bool:
    """Return True if a word is an option or looks like one; -1e-3 is a value."""
    if len(word) < 2 or word[0] != "-" or word[1].isdecimal() or word[1] == ".":
        return False
    if word.partition("=")[0] in LONG:
        return True
    try:
        float(word)  # -inf
    except ValueError:
        return " " not in word  # a value made of several words, such as '-x 1'
    return False


def _option(word: str, args: HypersearchArguments) -> tuple[str, str | None]:
    """Return the full name of an option and its attached value."""
    if word == "-p":
        return "--parameter", None
    option, equals, attached = word.partition("=")
    matches = [name for name in LONG if name == option]
    if option.startswith("--") and not matches:
        matches = [name for name in LONG if name.startswith(option)]
    if len(matches) == 1:
        return matches[0], attached if equals else None
    if len(matches) > 1:
        raise UsageError(f"{option} is ambiguous: {' or '.join(matches)}.")
    if args.parameters:
        advice = f"If it is a value, put a space in front of it: ' {word}'"
    elif args.words:
        advice = "If it belongs to the command, put the whole command in quotes."
    else:
        advice = "See: simple_hypersearch --help"
    raise UsageError(f"There is no option {option}. {advice}")


def _whole_number(args: HypersearchArguments, name: str) -> int | None:
    text = args.options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} takes a whole number, not {text!r}.") from None


# ----------------------------------------------------------------------- validation


def _pattern_text(args: HypersearchArguments) -> str:
    """Return the only pattern."""
    if len(args.words) > 1:
        raise UsageError(
            f"There are {len(args.words)} patterns: {' | '.join(args.words)}. "
            "Put the whole command in quotes, as one pattern."
        )
    if args.words:
        _check_one_line(args.words[0])
        return args.words[0]
    for name, values in args.parameters:
        swallowed = next((value for value in values if "{" in value), None)
        if swallowed is not None:
            raise UsageError(
                f"There is no pattern: {swallowed!r} was read as a value of {name}, because it "
                f"follows -p {name}. Put it first, or write -- before it."
            )
    raise UsageError(
        "There is no pattern. Put the command first, in quotes: "
        "simple_hypersearch 'python3 train.py --lr {lr}' -p lr 0.1 0.01"
    )


def _checked_parameters(args: HypersearchArguments) -> dict[str, list[str]]:
    """Return the values of each parameter; reject missing and repeated ones."""
    if not args.parameters:
        raise UsageError("There is no parameter. Add one: -p NAME VALUE ...")
    values_by_name: dict[str, list[str]] = {}
    for name, values in args.parameters:
        if not name:
            raise UsageError("A parameter needs a name: -p lr 0.1 0.01")
        if name in values_by_name:
            raise UsageError(f"Parameter {name} is given twice. Put all its values after one -p.")
        if not values:
            raise UsageError(f"Parameter {name} has no values. Write: -p {name} VALUE ...")
        values_by_name[name] = _checked_values(name, values)
    return values_by_name


def _checked_values(name: str, values: list[str]) -> list[str]:
    seen = set()
    for value in values:
        _check_one_line(value)
        if value in seen:
            # It may be a typing error for another value, so it is not dropped silently.
            raise UsageError(
                f"Parameter {name} has the value {value!r} twice, which would print the same "
                "commands twice. Remove one."
            )
        seen.add(value)
    return values


def _check_one_line(text: str) -> None:
    if "\n" in text:
        raise UsageError(
            f"{text!r} has a line break in it, but there is one command per line. "
            "Write ; or && instead, or put the command into a script."
        )


def _check_use(pattern: Pattern, parameters: dict[str, list[str]]) -> None:
    """Reject patterns that print duplicates, or lines that would not run as printed."""
    for name in parameters:
        if name not in pattern.used:
            raise UsageError(
                f"The pattern does not use the parameter {name}, so every command would be "
                f"printed once for each of its values. Put {{{name}}} into it, or remove "
                f"-p {name}."
            )
    if any(text.endswith("\\") for text in pattern.endings(parameters)):
        raise UsageError(
            "A command would end with a backslash, which joins it to the next line. "
            "Add something after it."
        )
    if any(not text or text[0] == "#" for text in pattern.beginnings(parameters)):
        raise UsageError(
            "A command would be blank or begin with #, and such lines are skipped. "
            "Put something before it."
        )


# ------------------------------------------------------------------------------ output


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout in pieces of whole lines."""
    if sys.stdout is None:
        raise UsageError("stdout is closed, so there is nowhere to print to.")
    encoding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    held = bytearray()
    for line in lines:
        data = (line + "\n").encode(encoding, errors)
        if held and len(held) + len(data) > WRITE_BYTES:
            _write(held)
            held.clear()
        held += data
    if held:
        _write(held)


def _write(data: bytearray) -> None:
    # A second call is needed only if a signal or a full disk shortened the first one.
    done = os.write(1, data)
    while done < len(data):
        done += os.write(1, data[done:])
