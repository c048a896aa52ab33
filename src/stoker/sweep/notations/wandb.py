"""Read a sweep's YAML file in W&B's format, with stoker's own keys."""

from __future__ import annotations

from stoker.sweep.definition.definition import check
from stoker.sweep.definition.template import cleaned, program_name, with_program
from stoker.sweep.notations.wandb_distributions import doubtful, parameter
from stoker.sweep.validation import (
    MAX_DEPTH,
    InvalidSweep,
    invalid_value,
    reject_unknown_keys,
    renamed,
    require_choice,
    require_integer,
    require_number,
    table,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IGNORED = ("description", "project", "entity", "controller", "apiVersion", "kind")
"""Keys for W&B's own storage, without effect."""
LAUNCH = (
    "job", "image_uri", "imageuri", "launch", "scheduler", "resource", "resource_args", "settings",
    "prior_runs", "display_name", "tags",
)  # fmt: skip
"""Keys for how W&B runs or shows the sweep; they cause a warning."""
OURS = ("samples", "stop", "max_running", "seed")
KEYS = (
    "program", "method", "parameters", "metric", "early_terminate", "command", "run_cap", "name",
    *OURS, *IGNORED, *LAUNCH,
)  # fmt: skip
METHODS = ("grid", "random", "bayes", "sobol", "tpe", "gp")
DEFAULT = ["${env}", "${interpreter}", "${program}", "${args}"]
"""W&B's default command."""
HYPERBAND = ("type", "min_iter", "max_iter", "s", "eta", "strict")


def read_yaml(
    source: str,
    where: str,
    *,
    command: list[str] | None = None,
    doubts: list[str] | None = None,
) -> dict[str, Any]:
    """Read a sweep's file; a `command` replaces that of the file.

    Warnings about what is probably not intended are added to `doubts`.
    """
    file_fields = table(
        where, "the file", load(source, where), "a sweep: method, parameters and so on,"
    )
    reject_unknown_keys(where, "", file_fields, KEYS)
    file_fields = {key: value for key, value in file_fields.items() if value is not None}
    method = require_choice(where, "method", file_fields.get("method"), METHODS)
    parameters: dict[str, Any] = {}
    given = table(where, "parameters", file_fields.get("parameters", {}))
    unsure: list[str] = [] if doubts is None else doubts
    _flatten(where, given, "parameters", "", parameters, unsure)
    if unknown := [key for key in LAUNCH if key in file_fields]:
        unsure.append(f"{where}: W&B keys without effect here: {', '.join(unknown)}.")
    words = list(command) if command else _command(where, file_fields)
    definition = {
        "name": _name(where, file_fields, words),
        "method": "tpe" if method == "bayes" else method,
        "parameters": parameters,
        "metric": _metric(where, file_fields.get("metric")),
        "command": words,
        **{key: file_fields[key] for key in OURS if key in file_fields},
    }
    if "run_cap" in file_fields:
        _alone(where, file_fields, "run_cap", "samples")
        definition["samples"] = require_integer(where, "run_cap", file_fields["run_cap"], 1)
    if "early_terminate" in file_fields:
        _alone(where, file_fields, "early_terminate", "stop")
        definition["stop"] = _hyperband(where, file_fields["early_terminate"])
    try:
        return check(definition, where)
    except InvalidSweep as error:
        raise renamed(error, where, _own_names(file_fields)) from None


def _own_names(file_fields: dict[str, Any]) -> dict[str, str]:
    """Return the file's names of keys that have another name in a definition."""
    names = {}
    if "early_terminate" in file_fields:
        names = {"stop": "early_terminate", "stop.min": "early_terminate.min_iter",
                 "stop.max": "early_terminate.max_iter"}  # fmt: skip
    if file_fields.get("method") == "bayes":
        names["method tpe"] = "method bayes"
    metric = file_fields.get("metric")
    for key, path in (("regex", "pattern"), ("file", "path")):
        if isinstance(metric, dict) and key in metric:
            names[f"metric.source.{path}"] = f"metric.{key}"
    return names


def load(source: str, where: str) -> object:
    """Parse YAML 1.2, so that 1e-4 is a number; JSON is YAML as well."""
    import warnings

    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
    from ruamel.yaml.error import YAMLError

    class Plain(SafeConstructor):
        """Keeps dates as texts."""

    Plain.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Plain
    try:
        with warnings.catch_warnings(action="ignore"):  # a file with a YAML 1.1 directive
            return yaml.load(source.removeprefix("\ufeff"))
    except DuplicateKeyError as error:
        key = str(error.problem).partition('"')[2].partition('"')[0]
        raise InvalidSweep(f"{_line(where, error)}: the key {key} is given twice.") from None
    except YAMLError as error:
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidSweep(f"{_line(where, error)}: this is not YAML: {why}.") from None
    except RecursionError:
        raise InvalidSweep(f"{where} is not a sweep: it is nested too deep.") from None
    except ValueError as error:  # a number that Python rejects
        raise InvalidSweep(f"{where} is not YAML: {error}.") from None


def _line(where: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return where if mark is None else f"{where}, line {mark.line + 1}"


def _alone(where: str, file_fields: dict[str, Any], theirs: str, ours: str) -> None:
    if ours in file_fields:
        raise InvalidSweep(f"{where}: {theirs} and {ours} mean the same; give only one of them.")


def _name(where: str, file_fields: dict[str, Any], words: list[str]) -> str:
    if "name" in file_fields:
        return cleaned(text(where, "name", file_fields["name"], "the name of the sweep"))
    name = program_name(words)
    return name if name != "sweep" else cleaned(where.rpartition("/")[2].partition(".")[0])


def _flatten(
    where: str,
    given: dict[str, Any],
    path: str,
    prefix: str,
    into: dict[str, Any],
    doubts: list[str],
) -> None:
    """Collect parameters; nested ones get dotted names."""
    if path.count(".") > 2 * MAX_DEPTH:
        raise InvalidSweep(f"{where}: {path[:60]}… is nested more than {MAX_DEPTH} deep.")
    for key, raw in given.items():
        name, parameter_path = f"{prefix}{key}", f"{path}.{key}"
        if isinstance(raw, dict) and "parameters" in raw:
            reject_unknown_keys(where, parameter_path, raw, ("parameters",))
            inner = table(where, f"{parameter_path}.parameters", raw["parameters"])
            _flatten(where, inner, f"{parameter_path}.parameters", f"{name}.", into, doubts)
        elif name in into:
            raise InvalidSweep(
                f"{where}: {parameter_path} is the second parameter with the name {name}."
            )
        else:
            into[name] = parameter(where, parameter_path, raw)
            doubts += doubtful(where, parameter_path, raw)


def _command(where: str, file_fields: dict[str, Any]) -> list[str]:
    """Return the words of the command, including the program."""
    program = file_fields.get("program")
    if program is not None:
        text(where, "program", program, "the file of a program")
    given = file_fields.get("command")
    if given is None:
        if program is None:
            raise InvalidSweep(f"{where}: program is missing; give the path of a program.")
        # A script in another language is executed directly; without a suffix W&B uses Python.
        stem = program.rpartition("/")[2]
        is_executable = "." in stem.lstrip(".") and not stem.endswith(".py")
        return with_program(DEFAULT[2:] if is_executable else DEFAULT, program)
    if isinstance(given, str):
        from shlex import split

        try:
            given = split(given)
        except ValueError as error:
            raise InvalidSweep(f"{where}: command cannot be read as words: {error}.") from None
    if not isinstance(given, list) or not given:
        raise invalid_value(where, "command", given, "a list of words")
    words = [_word(where, f"command[{index}]", word) for index, word in enumerate(given)]
    if any("${" in word for word in words) and not any(_passes(word) for word in words):
        words.append("${no_args}")  # intentional: the script reads its parameters elsewhere
    return words if program is None else with_program(words, program)


def _word(where: str, path: str, word: object) -> str:
    if isinstance(word, bool) or not isinstance(word, str | int | float):
        raise invalid_value(where, path, word, "a word")
    return str(word)


def _passes(word: str) -> bool:
    """Return True if a word of a command passes parameters."""
    return any(macro in word for macro in ("${args", "${param:", "${no_args}"))


def _metric(where: str, raw: object) -> dict[str, Any] | None:
    """Return the metric; `regex` or `file` may give its source."""
    if raw is None:
        return None
    fields = dict(table(where, "metric", raw))
    for key in ("impute", "impute_while_running"):
        fields.pop(key, None)  # settings of W&B's search for failed runs
    ways = [key for key in ("source", "regex", "file") if key in fields]
    if len(ways) > 1:
        raise InvalidSweep(f"{where}: metric has {' and '.join(ways)}; one of them is enough.")
    pattern, file = fields.pop("regex", None), fields.pop("file", None)
    if "regex" in ways:
        fields["source"] = {"kind": "log", "pattern": text(where, "metric.regex", pattern)}
    if "file" in ways:
        fields["source"] = {"kind": "file", "path": text(where, "metric.file", file)}
    return fields


def _hyperband(where: str, raw: object) -> dict[str, Any]:
    """Return W&B's early stopping: its Hyperband has one bracket, like ASHA."""
    path = "early_terminate"
    fields = table(where, path, raw)
    if fields.get("type") == "envelope":
        raise InvalidSweep(f"{where}: {path}.type envelope is not supported; use hyperband.")
    require_choice(where, f"{path}.type", fields.get("type"), ("hyperband",))
    reject_unknown_keys(where, path, fields, HYPERBAND)
    if not isinstance(fields.get("strict", False), bool):
        raise invalid_value(where, f"{path}.strict", fields["strict"], "true or false")
    eta = require_number(where, f"{path}.eta", fields.get("eta", 3))
    if eta <= 1:
        raise invalid_value(where, f"{path}.eta", eta, "a number above 1")
    max_step = fields.get("max_iter")
    if max_step is not None:
        require_integer(where, f"{path}.max_iter", max_step, 1)
    if "min_iter" in fields:
        first: float = require_integer(where, f"{path}.min_iter", fields["min_iter"], 1)
    elif max_step is None or "s" not in fields:
        raise InvalidSweep(f"{where}: {path} has neither min_iter nor max_iter with s.")
    else:
        first = _first(
            where, path, max_step, eta, require_integer(where, f"{path}.s", fields["s"], 1)
        )
    return {"kind": "asha", "min": first, "eta": eta, "max": max_step, "brackets": 1}


def _first(where: str, path: str, max_step: int, eta: float, brackets: int) -> int | float:
    """Return the first rung for `brackets` rungs up to `most`; at least 1."""
    first: float = max_step
    for _ in range(brackets):
        if first / eta < 1:
            break
        first /= eta
    if first == max_step:
        raise InvalidSweep(
            f"{where}: {path}.max_iter is {max_step}; at least eta, {eta}, was expected."
        )
    return int(first) if first == int(first) else round(first, 9)
