"""A trial's command, from the definition and its parameters."""

from __future__ import annotations

import re

from stoker.sweep.definition.placeholders import (
    ASSIGNMENT,
    LISTS,
    OVERRIDE,
    WHOLE,
    Field,
    Macro,
    line_pieces,
    unknown_fields,
    word_pieces,
)
from stoker.sweep.hydra_values import written
from stoker.sweep.validation import InvalidSweep
from stoker.sweep.values import canonical, format_value, nested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.sweep.definition.placeholders import Piece

FILE = "stoker_params"
"""Shell variable with the path of the file of ${args_json_file}."""
_SAFE = re.compile(r"[\w.,:/@%+=-]+")
_SCRIPT = re.compile(r"\.(?:py|sh|bash|pl|rb|r|jl|ipynb)$", re.IGNORECASE)
_STARTERS = re.compile(r"env|python[\d.]*|(?:ba|da|z)?sh|uv|run|exec|nice|time|torchrun|with")


class Shell(str):
    """A part of a word that only a shell can expand."""

    __slots__ = ()


def check_template(definition: dict[str, Any], where: str = "the sweep") -> None:
    """Reject a command or line with unknown parameters or unsuitable formats."""
    Template(definition, where).check(definition)


def command_of(definition: dict[str, Any], params: dict[str, Any]) -> list[str] | str:
    """Return the command of one trial: words, or a line for a shell."""
    return Template(definition).fill(params)


def doubts(definition: dict[str, Any], filled_in: str = "") -> list[str]:
    """Return a warning for each {name} in a command that is not a parameter.

    Names in `filled_in`, such as resources, are filled in later.
    """
    known = names(definition)
    unknown_names = (
        name for word in definition.get("command") or () for name in unknown_fields(word, known)
    )
    return [
        f"{{{name}}} in the command is not a parameter and is left unchanged; "
        f"parameters: {', '.join(known)}."
        for name in dict.fromkeys(unknown_names)
        if name not in filled_in
    ]


class Template:
    """The parsed command of a definition, used for all its trials."""

    def __init__(self, definition: dict[str, Any], where: str = "the sweep") -> None:
        self.where = where
        self.names = names(definition)
        known = dict.fromkeys(self.names)
        line: str | None = definition.get("line")
        self.line = None if line is None else list(line_pieces(line, known, where))
        self.words = [
            [piece for piece in word_pieces(word, known, where) if piece != ""]
            for word in definition.get("command") or ()
        ]
        self.hydra = [_is_override(word) for word in definition.get("command") or ()]

    def check(self, definition: dict[str, Any]) -> None:
        """Check the formats of fields with example values."""
        for word in self.words:
            for piece in word:
                if isinstance(piece, Macro) and piece.name in (*LISTS, "no_args") and len(word) > 1:
                    raise InvalidSweep(
                        f"{self.where}: ${{{piece.name}}} expands to several words; "
                        "it must be a word of its own."
                    )
        for piece in self._pieces():
            if isinstance(piece, Field):
                piece.check(self.where, _examples(definition, piece.name))
        if self.line is not None and (unnamed := self._unnamed()):
            raise InvalidSweep(
                f"{self.where}: line does not contain {{{unnamed[0]}}}, "
                "so several trials would run the same command."
            )

    def fill(self, params: dict[str, Any]) -> list[str] | str:
        """Return the command of a trial with these parameters."""
        ordered = {name: params[name] for name in self.names if name in params}
        ordered |= params
        try:
            return self._line(ordered) if self.line is not None else self._command(ordered)
        except KeyError as error:
            raise InvalidSweep(f"{self.where}: a trial has no {error.args[0]}.") from None

    def _pieces(self) -> list[Piece]:
        return [piece for word in self.words for piece in word] + (self.line or [])

    def _unnamed(self) -> list[str]:
        """Return parameters that the command does not use."""
        used = set()
        for piece in self._pieces():
            if isinstance(piece, Macro):
                if piece.name in (*WHOLE, "no_args"):
                    return []
                used.add(piece.argument if piece.name == "param" else None)
            elif isinstance(piece, Field):
                used.add(piece.name)
        return [name for name in self.names if name not in used]

    def _command(self, params: dict[str, Any]) -> list[str] | str:
        words: list[list[str]] = []
        for pieces, hydra in zip(self.words, self.hydra, strict=True):
            only = pieces[0] if len(pieces) == 1 else None
            if isinstance(only, Macro) and only.name in (*LISTS, "no_args"):
                words += [[word] for word in _listed(only.name, params)]
            else:
                words.append([_part(piece, params, hydra) for piece in pieces])
        words += [[word] for word in self._added(params)]
        if any(isinstance(part, Shell) for word in words for part in word):
            return _shell_line(words, params)
        return ["".join(word) for word in words]

    def _added(self, params: dict[str, Any]) -> list[str]:
        """Return words for unused parameters, in the style of the command."""
        left = self._unnamed()
        if any(self.hydra):
            return [f"{name}={written(params[name])}" for name in left]
        return _listed("args", {name: params[name] for name in left})

    def _line(self, params: dict[str, Any]) -> str:
        rendered, inside = "", ""
        for piece in self.line or ():
            if isinstance(piece, str):
                rendered += piece
                inside = _quotes_after(piece, inside)
            elif isinstance(piece, Macro) and piece.name in (*LISTS, "no_args"):
                rendered += " ".join(quoted(word) for word in _listed(piece.name, params))
            else:
                part = _part(piece, params, hydra=False)
                rendered += part if isinstance(part, Shell) else quoted(part, inside)
        return _with_file(rendered, params) if f'"${FILE}"' in rendered else rendered


def names(definition: dict[str, Any]) -> list[str]:
    """Return the names of a definition's parameters, in order."""
    return list(definition["points"][0] if definition.get("points") else definition["parameters"])


def program_name(command: list[str] | str) -> str:
    """Return the default name of a sweep: the stem of its program."""
    words = command.split() if isinstance(command, str) else command
    script = next((word for word in words if word.endswith(".py")), None)
    for before, word in zip(["", *words], words, strict=False) if script is None else ():
        if before == "-m":
            return cleaned(word.rpartition(".")[2])
        starter = _STARTERS.fullmatch(word.rpartition("/")[2])
        if word[:1] not in "-$" and not starter and not ASSIGNMENT.match(word):
            script = word
            break
    return cleaned(_SCRIPT.sub("", (script or "").rpartition("/")[2]))


def cleaned(name: str) -> str:
    """Return a text as a valid name of a sweep."""
    return re.sub(r"[^\w.:+-]+", "-", name).strip("-")[:64] or "sweep"


def with_program(words: list[str], program: str) -> list[str]:
    """Return a command with `${program}` replaced by the escaped program."""
    literal = program.replace("${", "$${")
    return [word.replace("${program}", literal) for word in words]


def _is_override(word: str) -> bool:
    """Return True if a word is a Hydra override with a parameter as its value."""
    match = OVERRIDE.match(word)
    return match is not None and re.fullmatch(r"\$\{param:[^{}]*\}", match["value"]) is not None


def _part(piece: Piece, params: dict[str, Any], hydra: bool) -> str:
    """Return one piece of a word with its value."""
    if isinstance(piece, str):
        return piece
    if isinstance(piece, Field):
        return piece.replace_with(params[piece.name])
    if piece.name == "param":
        value = params[piece.argument]
        return written(value) if hydra else format_value(value)
    if piece.name == "envvar":
        return Shell(f'"${{{piece.argument}?}}"')
    if piece.name == "args_json_file":
        return Shell(f'"${FILE}"')
    if piece.name == "args_json":
        return canonical(nested(params))
    return {"env": "/usr/bin/env", "interpreter": "python"}[piece.name]


def _listed(macro: str, params: dict[str, Any]) -> list[str]:
    """Return the words that a macro expands to."""
    words: list[str] = []
    for name, value in params.items():
        if macro == "args_no_hyphens":
            words.append(f"{name}={format_value(value)}")
        elif macro == "args_no_equals":
            words += [f"--{name}", format_value(value)]
        elif macro == "args_no_boolean_flags" and isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif macro != "no_args":
            words.append(f"--{name}={format_value(value)}")
    return words


def _examples(definition: dict[str, Any], name: str) -> list[Any]:
    """Return example values of a parameter."""
    if definition.get("points"):
        return [row[name] for row in definition["points"]]
    spec = definition["parameters"][name]
    if "distribution" not in spec:
        return spec["values"] if "values" in spec else [spec["value"]]
    numbers = [value for value in spec.values() if not isinstance(value, str)]
    is_integer = spec["distribution"].startswith(("int_", "q_")) and all(
        isinstance(number, int) for number in numbers
    )
    return [1 if is_integer else 0.5]


# --------------------------------------------------------------------------- for a shell


def quoted(text: str, inside: str = "") -> str:
    """Quote a text for a shell; `inside` are the quotes around it."""
    if inside == '"':
        return re.sub(r'([\\"$`])', r"\\\1", text)
    escaped = text.replace("'", "'\\''")
    return escaped if inside else text if _SAFE.fullmatch(text) else f"'{escaped}'"


def _quotes_after(text: str, inside: str) -> str:
    """Return the open quotes after a text that began inside of `inside`."""
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and inside != "'":
            index += 1
        elif char == inside:
            inside = ""
        elif char in "'\"" and not inside:
            inside = char
        index += 1
    return inside


def _shell_line(words: list[list[str]], params: dict[str, Any]) -> str:
    """Return the words as a line that replaces the shell (exec)."""
    line = " ".join(
        "".join(part if isinstance(part, Shell) else quoted(part) for part in word) or "''"
        for word in words
    )
    first = "".join(words[0])
    line = f"exec {'env ' if ASSIGNMENT.match(first) else ''}{line}"
    return _with_file(line, params) if f'"${FILE}"' in line else line


def _with_file(line: str, params: dict[str, Any]) -> str:
    text = quoted(canonical(nested(params)))
    return f'{FILE}=$(mktemp) && printf %s {text} >"${FILE}" && {line}'
