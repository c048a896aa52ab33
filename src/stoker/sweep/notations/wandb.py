"""Read a sweep's YAML file in W&B's format, with stoker's own keys."""

from __future__ import annotations

from stoker.sweep.definition.definition import check
from stoker.sweep.definition.template import cleaned, program_name, with_program
from stoker.sweep.notations.wandb_distributions import doubtful, parameter
from stoker.sweep.validation import MAX_DEPTH, Field, InvalidSweep, Table, renamed

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


def read_yaml(source: str, where: str, *, doubts: list[str] | None = None) -> dict[str, Any]:
    """Read a sweep's file.

    Warnings about what is probably not intended are added to `doubts`.
    """
    whole = Field(where, "the file", load(source, where))
    file = whole.table("a sweep: method, parameters and so on,", is_root=True)
    file.reject_unknown(KEYS)
    file = Table(where, "", {key: value for key, value in file.values.items() if value is not None})
    method = file.field("method").choice(METHODS)
    parameters: dict[str, Any] = {}
    unsure: list[str] = [] if doubts is None else doubts
    _flatten(file.field("parameters", {}).table(), "", parameters, unsure)
    if unknown := [key for key in LAUNCH if key in file]:
        unsure.append(f"{where}: W&B keys without effect here: {', '.join(unknown)}.")
    words = _command(file)
    definition = {
        "name": _name(file, words),
        "method": "tpe" if method == "bayes" else method,
        "parameters": parameters,
        "metric": _metric(file.field("metric")),
        "command": words,
        **{key: file.values[key] for key in OURS if key in file},
    }
    if "run_cap" in file:
        _alone(file, "run_cap", "samples")
        definition["samples"] = file.field("run_cap").integer(1)
    if "early_terminate" in file:
        _alone(file, "early_terminate", "stop")
        definition["stop"] = _hyperband(file.field("early_terminate").table())
    try:
        return check(definition, where)
    except InvalidSweep as error:
        raise renamed(error, where, _own_names(file.values)) from None


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


def _alone(file: Table, theirs: str, ours: str) -> None:
    if ours in file:
        raise InvalidSweep(
            f"{file.where}: {theirs} and {ours} mean the same; give only one of them."
        )


def _name(file: Table, words: list[str]) -> str:
    if "name" in file:
        return cleaned(file.field("name").text("the name of the sweep"))
    name = program_name(words)
    return name if name != "sweep" else cleaned(file.where.rpartition("/")[2].partition(".")[0])


def _flatten(given: Table, prefix: str, into: dict[str, Any], doubts: list[str]) -> None:
    """Collect parameters; nested ones get dotted names."""
    if given.path.count(".") > 2 * MAX_DEPTH:
        raise InvalidSweep(
            f"{given.where}: {given.path[:60]}… is nested more than {MAX_DEPTH} deep."
        )
    for key, raw in given.values.items():
        name, field = f"{prefix}{key}", given.field(key)
        if isinstance(raw, dict) and "parameters" in raw:
            nested = field.table()
            nested.reject_unknown(("parameters",))
            _flatten(nested.field("parameters").table(), f"{name}.", into, doubts)
        elif name in into:
            raise field.error(f"is the second parameter with the name {name}")
        else:
            into[name] = parameter(given.where, field.path, raw)
            doubts += doubtful(given.where, field.path, raw)


def _command(file: Table) -> list[str]:
    """Return the words of the command, including the program."""
    program = file.values.get("program")
    if program is not None:
        file.field("program").text("the file of a program")
    field = file.field("command")
    given = field.value
    if given is None:
        if program is None:
            raise InvalidSweep(f"{file.where}: program is missing; give the path of a program.")
        # A script in another language is executed directly; without a suffix W&B uses Python.
        stem = program.rpartition("/")[2]
        is_executable = "." in stem.lstrip(".") and not stem.endswith(".py")
        return with_program(DEFAULT[2:] if is_executable else DEFAULT, program)
    if isinstance(given, str):
        from shlex import split

        try:
            given = split(given)
        except ValueError as error:
            raise field.error(f"cannot be read as words: {error}") from None
    if not isinstance(given, list) or not given:
        raise Field(file.where, "command", given).invalid("a list of words")
    words = [
        _word(Field(file.where, f"command[{index}]", word)) for index, word in enumerate(given)
    ]
    if any("${" in word for word in words) and not any(_passes(word) for word in words):
        words.append("${no_args}")  # intentional: the script reads its parameters elsewhere
    return words if program is None else with_program(words, program)


def _word(field: Field) -> str:
    if isinstance(field.value, bool) or not isinstance(field.value, str | int | float):
        raise field.invalid("a word")
    return str(field.value)


def _passes(word: str) -> bool:
    """Return True if a word of a command passes parameters."""
    return any(macro in word for macro in ("${args", "${param:", "${no_args}"))


def _metric(field: Field) -> dict[str, Any] | None:
    """Return the metric; `regex` or `file` may give its source."""
    if field.value is None:
        return None
    metric = field.table()
    fields = dict(metric.values)
    for key in ("impute", "impute_while_running"):
        fields.pop(key, None)  # settings of W&B's search for failed runs
    ways = [key for key in ("source", "regex", "file") if key in fields]
    if len(ways) > 1:
        raise metric.error(f"has {' and '.join(ways)}; one of them is enough")
    fields.pop("regex", None)
    fields.pop("file", None)
    if "regex" in ways:
        fields["source"] = {"kind": "log", "pattern": metric.field("regex").text()}
    if "file" in ways:
        fields["source"] = {"kind": "file", "path": metric.field("file").text()}
    return fields


def _hyperband(fields: Table) -> dict[str, Any]:
    """Return W&B's early stopping: its Hyperband has one bracket, like ASHA."""
    kind = fields.field("type")
    if kind.value == "envelope":
        raise kind.error("envelope is not supported; use hyperband")
    kind.choice(("hyperband",))
    fields.reject_unknown(HYPERBAND)
    strict = fields.field("strict", False)
    if not isinstance(strict.value, bool):
        raise strict.invalid("true or false")
    eta = fields.field("eta", 3)
    if eta.number() <= 1:
        raise eta.invalid("a number above 1")
    max_iter = fields.field("max_iter")
    max_step = None if max_iter.value is None else max_iter.integer(1)
    if "min_iter" in fields:
        first: float = fields.field("min_iter").integer(1)
    elif max_step is None or "s" not in fields:
        raise fields.error("has neither min_iter nor max_iter with s")
    else:
        first = _first(max_iter, max_step, eta.number(), fields.field("s").integer(1))
    return {"kind": "asha", "min": first, "eta": eta.value, "max": max_step, "brackets": 1}


def _first(max_iter: Field, max_step: int, eta: float, brackets: int) -> int | float:
    """Return the first rung for `brackets` rungs up to `max_step`; at least 1."""
    first: float = max_step
    for _ in range(brackets):
        if first / eta < 1:
            break
        first /= eta
    if first == max_step:
        raise max_iter.invalid(f"at least eta, {eta},")
    return int(first) if first == int(first) else round(first, 9)
