"""Options of `sweep`, and the sweep definition that they make."""

from __future__ import annotations

import os

from stoker.cli.options import Args, Option, parse
from stoker.cli.options.job import JOB, SUBMIT
from stoker.cli.options.submission import merge_options, read_bytes
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

SWEEP = (
    Option("--param", "NAME=VALUES", "lr=0.1,0.01 or 'lr=log_uniform(1e-5,0.1)'; repeatable",
           many=True),
    Option("--csv", "FILE", "one trial per row; the first row holds the names"),
    Option("--jsonl", "FILE", "one JSON object per line and trial"),
    Option("--method", "NAME", "grid, random, sobol, tpe (also: bayes), gp"),
    Option("-n/--samples/--count/--run-cap", "N", "number of trials", key="samples"),
    Option("--seed", "N", "random seed"),
    Option("--metric", "NAME", "metric that trials report; smaller is better unless --goal max"),
    Option("--goal", "min|max", "direction of optimisation (min)"),
    Option("--minimize", "NAME", "metric to minimise"),
    Option("--maximize", "NAME", "metric to maximise"),
    Option("--metric-regex", "REGEX", "read the metric from the log: 'loss=(?P<loss>\\S+)'"),
    Option("--metric-file", "PATH", "read the metric from a JSON or CSV file of the script"),
    Option("--summary", "last|best", "value that counts for a trial (last)"),
    Option("--target", "X", "start no more trials once one reaches X"),
    Option("--stop", "RULE", "early stopping: asha, hyperband, median, none"),
    Option("--min-steps", "N", "stop no trial before this step"),
    Option("--max-steps", "N", "last step of a trial, if known"),
    Option("--eta", "N", "asha, hyperband: one of N trials continues (3)"),
    Option("--max-running", "N", "maximum number of running trials"),
    Option("--new", None, "create a new sweep even if an equal one exists"),
)  # fmt: skip
EXCLUDED_KEYS = frozenset({"array", "pty", "ntasks"})
"""Options that a trial cannot have, or that have another short name here."""
OPTIONS = (
    *SWEEP,
    *(option for option in JOB if option.key not in EXCLUDED_KEYS),
    Option("--ntasks", "N", "number of tasks"),
    *(option for option in SUBMIT if option.key in {"wrap", "wait", "dry_run", "quiet"}),
)
SWEEP_KEYS = frozenset(option.key for option in SWEEP)
"""Options that describe the sweep, not its trials."""
SUFFIXES = (".yaml", ".yml", ".json")
MAX_PROBE_BYTES = 100_000
"""How much of a file without suffix is searched for `parameters:`."""
JOB_VERBS = frozenset({"cancel", "hold", "release", "retry", "wait", "logs", "why"})
EXAMPLE = "stoker sweep python train.py lr=0.1,0.01 'seed=range(0,3)'"


def parse_sweep(argv: list[str]) -> Args:
    """Parse the options, also those after the name of a sweep file."""
    args = parse(OPTIONS, argv, command=True, verb="sweep")
    if not args.words or not is_sweep_file(args.words[0]):
        return args
    more = parse(OPTIONS, args.words[1:], verb="sweep")
    if more.words:
        raise UsageError(
            f"{args.words[0]} describes the whole sweep, including its command; "
            f"{more.words[0]!r} cannot follow it."
        )
    return Args(merge_options([args.values, more.values]), args.words[:1])


def is_sweep_file(word: str) -> bool:
    """Return True if a word names a sweep file: by its suffix, else by its content."""
    if word == "-" or word.endswith(SUFFIXES):
        return True
    if "." in os.path.basename(word) or not os.path.isfile(word) or os.access(word, os.X_OK):
        return False
    try:
        with open(word, "rb") as file:
            return b"\nparameters:" in b"\n" + file.read(MAX_PROBE_BYTES)
    except OSError:
        return False


def build_definition(args: Args, warnings: list[str]) -> JsonObject:
    """Return the validated sweep definition; raise UsageError if it is invalid.

    Warnings about probable mistakes are added to `warnings`.
    """
    from stoker.cli.options.sweep_stopping import apply_options, option_names
    from stoker.sweep.definition.definition import InvalidSweep, check
    from stoker.sweep.definition.template import doubts as template_warnings
    from stoker.sweep.validation import renamed

    where = "the sweep"
    try:
        where, raw = _read_definition(args, warnings)
        if is_sweep_file(args.words[0] if args.words else ""):
            for text in args.many("param"):
                name, spec = _parse_param(text)
                raw["parameters"] = {**raw.get("parameters", {}), name: spec}
        apply_options(raw, args)
        definition = check(raw, where)
    except InvalidSweep as error:
        raise UsageError(str(renamed(error, where, option_names(args)))) from None
    warnings += template_warnings(definition, filled_in=f"{args.values.get('resources')}")
    return definition


def _read_definition(args: Args, warnings: list[str]) -> tuple[str, JsonObject]:
    """Return where the definition comes from, for messages, and the raw definition."""
    tables = [key for key in ("csv", "jsonl") if args.text(key) is not None]
    is_described = bool(args.words) and is_sweep_file(args.words[0])
    if len(tables) + is_described > 1 or (tables and args.many("param")):
        raise UsageError("Give only one source of trials: a file, --csv, --jsonl or --param.")
    if is_described:
        from stoker.sweep.notations.wandb import read_yaml

        path = args.words[0]
        if args.text("wrap") is not None:
            raise UsageError(
                f"{path} describes the whole sweep; --wrap cannot be combined with it."
            )
        where = "stdin" if path == "-" else path
        return where, {**read_yaml(read_text(path), where, doubts=warnings)}
    raw, parameters = _split_command(args, warnings)
    if tables:
        if parameters:
            raise UsageError("Give only one source of trials: a table, or values in the command.")
        return "the sweep", {**raw, "method": "list", "points": _read_points(args, tables[0])}
    for text in args.many("param"):
        name, spec = _parse_param(text)
        if name in parameters:
            raise UsageError(f"{name} is swept twice.")
        parameters[name] = spec
    if not parameters:
        raise UsageError(_no_parameters_message(args.words))
    return "the sweep", {
        **raw,
        "parameters": parameters,
        "method": _default_method(parameters, args),
    }


def _no_parameters_message(words: list[str]) -> str:
    """Return the message if no parameter varies, also for `stoker sweep cancel 17`."""
    if len(words) == 2 and words[0] in JOB_VERBS:
        return f"Use the commands for jobs: stoker {words[0]} {words[1]}"
    return f"No parameter varies. For example: {EXAMPLE}"


def _split_command(args: Args, warnings: list[str]) -> tuple[JsonObject, JsonObject]:
    """Return the command, and the parameters in it."""
    words, line = args.words, args.text("wrap")
    if bool(words) == (line is not None):
        raise UsageError(
            "Give a command or --wrap LINE; one of them."
            if words
            else f"No command given. For example: {EXAMPLE}"
        )
    if len(words) == 1 and os.path.isfile(words[0]):
        return {"command": [_executable(words[0])]}, {}
    if len(words) <= 1:
        return {"line": words[0] if words else line}, {}
    if any(char.isspace() for char in words[0]) and not os.path.exists(words[0]):
        raise UsageError("stoker's options come before the shell command line, which is one word.")
    from stoker.cli.options.hydra import ignored_note, split_multirun_options
    from stoker.sweep.notations.overrides import split

    trial_words, ignored = split_multirun_options(words)
    kept, parameters = split(trial_words)
    if ignored and not parameters:  # not a Hydra command
        kept, parameters = split(list(words))
    elif ignored:
        warnings.append(ignored_note(ignored))
    return {"command": kept}, parameters


def _executable(path: str) -> str:
    """Return the absolute path of an executable file."""
    if os.access(path, os.X_OK):
        return os.path.abspath(path)
    command = f"python {path}" if path.endswith(".py") else f"sh {path}"
    raise UsageError(f"{path} is not executable. Write: stoker sweep ... {command}")


def _parse_param(text: str) -> tuple[str, JsonObject]:
    from stoker.sweep.notations.overrides import param_option

    return param_option(text)


def _default_method(parameters: JsonObject, args: Args) -> str:
    """Return `grid` for a finite space without --samples, else `random`."""
    finite = all("distribution" not in spec for spec in parameters.values())
    return "grid" if finite and args.text("samples") is None else "random"


def _read_points(args: Args, kind: str) -> list[JsonObject]:
    from stoker.sweep.notations.points_table import read_csv, read_jsonl

    path = args.text(kind) or ""
    where = "stdin" if path == "-" else path
    return (read_csv if kind == "csv" else read_jsonl)(read_text(path), where)


def read_text(path: str) -> str:
    """Return the text of a file, or of stdin for `-`."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{'stdin' if path == '-' else path} is not valid UTF-8.") from None
