"""What was typed about a sweep: its options, and the definition that they amount to."""

from __future__ import annotations

import os
import sys

from stoker.cli.jobflags import JOB, SUBMIT
from stoker.cli.options import Args, Option, parse
from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SWEEP = (
    Option("--param", "NAME=VALUES", "lr=0.1,0.01 or 'lr=log_uniform(1e-5,0.1)'; repeatable",
           many=True),
    Option("--csv", "FILE", "one trial per row, the first row has the names"),
    Option("--jsonl", "FILE", "one trial per line, each a JSON object"),
    Option("--method", "NAME", "grid, random, sobol, tpe (also: bayes), gp"),
    Option("-n/--samples/--count/--run-cap", "N", "how many trials", key="samples"),
    Option("--seed", "N", "another sequence of random trials"),
    Option("--metric", "NAME", "what the trials report; smaller is better, but for --goal max"),
    Option("--goal", "min|max", "whether it should become small or large"),
    Option("--minimize", "NAME", "the metric, smaller is better"),
    Option("--maximize", "NAME", "the metric, larger is better"),
    Option("--metric-regex", "REGEX", "where it stands in the log: 'loss=(?P<loss>\\S+)'"),
    Option("--metric-file", "PATH", "a JSON or CSV file of the script with the metric"),
    Option("--summary", "last|best", "which of its figures a trial is worth (last)"),
    Option("--target", "X", "good enough: no trial is begun after one that got there"),
    Option("--stop", "RULE", "stop poor trials early: asha, hyperband, median; none"),
    Option("--min-steps", "N", "not before this step"),
    Option("--max-steps", "N", "the last step of a trial, if it is known"),
    Option("--eta", "N", "of so many trials one goes on (3)"),
    Option("--max-running", "N", "at most so many trials at a time"),
    Option("--new", None, "a new sweep, even if there is the same already"),
)  # fmt: skip
NOT_OF_TRIALS = frozenset({"array", "pty", "ntasks"})
"""What a trial cannot have, and what has another short name here."""
OPTIONS = (
    *SWEEP,
    *(option for option in JOB if option.key not in NOT_OF_TRIALS),
    Option("--ntasks", "N", "tasks"),
    *(option for option in SUBMIT if option.key in {"wrap", "wait", "dry_run", "quiet"}),
)
KEYS = frozenset(option.key for option in SWEEP)
"""What describes the sweep, not its trials."""
FILES = (".yaml", ".yml", ".json")
METHODS = {"bayes": "tpe", "bayesian": "tpe", "optuna": "tpe", "quasi-random": "sobol"}
"""What other tools call them."""
GOALS = {"min": "minimize", "minimize": "minimize", "max": "maximize", "maximize": "maximize"}
EXAMPLE = "stoker sweep python train.py lr=0.1,0.01 'seed=range(0,3)'"


def typed(argv: Sequence[str]) -> Args:
    """Read the options; behind the name of a sweep's file there are options as well."""
    args = parse(OPTIONS, argv, command=True, verb="sweep")
    if not args.words or not is_file(args.words[0]):
        return args
    more = parse(OPTIONS, args.words[1:], verb="sweep")
    if more.words:
        raise UsageError(
            f"{args.words[0]} describes the whole sweep, its command too; "
            f"{more.words[0]!r} cannot follow it."
        )
    from stoker.cli.submission import merged

    return Args(merged([args.values, more.values]), args.words[:1])


def is_file(word: str) -> bool:
    """Whether a word names a file that describes a sweep."""
    return word == "-" or word.endswith(FILES)


def definition_of(args: Args) -> dict[str, Any]:
    """Return the sweep that was asked for, checked; one sentence if it cannot be."""
    from stoker.sweep.definition import BadSweep, check

    try:
        where, raw = _described(args)
        _change(raw, args)
        return check(raw, where)
    except BadSweep as error:
        raise UsageError(str(error)) from None


def _described(args: Args) -> tuple[str, dict[str, Any]]:
    """What is swept and run, from a file or from the command line, and what to call that."""
    tables = [key for key in ("csv", "jsonl") if args.text(key) is not None]
    is_described = bool(args.words) and is_file(args.words[0])
    if len(tables) + is_described > 1 or (tables and args.many("param")):
        raise UsageError("The trials come from one place: a file, --csv, --jsonl or --param.")
    if is_described:
        from stoker.sweep.wandb import read_yaml

        path = args.words[0]
        if args.text("wrap") is not None:
            raise UsageError(f"{path} describes the whole sweep; --wrap does not go with it.")
        where = "stdin" if path == "-" else path
        return where, {**read_yaml(read(path), where)}
    raw, parameters = _command(args)
    if tables:
        if parameters:
            raise UsageError("The trials come from one place: a table, or values in the command.")
        return "the sweep", {**raw, "method": "list", "points": _rows(args, tables[0])}
    for text in args.many("param"):
        name, spec = _param(text)
        if name in parameters:
            raise UsageError(f"{name} is swept twice; once is enough.")
        parameters[name] = spec
    if not parameters:
        raise UsageError(_nothing_varies(args.words))
    return "the sweep", {**raw, "parameters": parameters, "method": _usual(parameters, args)}


def _nothing_varies(words: list[str]) -> str:
    """Say what is missing; `stoker sweep cancel 17` is meant otherwise."""
    if len(words) == 2 and words[0] in {
        "cancel",
        "hold",
        "release",
        "retry",
        "wait",
        "logs",
        "why",
    }:
        return f"Sweeps take the verbs of jobs. Type: stoker {words[0]} {words[1]}"
    return f"Nothing varies. Say what does: {EXAMPLE}"


def _command(args: Args) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to run, and the parameters that stand in it."""
    words, line = args.words, args.text("wrap")
    if bool(words) == (line is not None):
        raise UsageError(
            "Give a command or --wrap LINE; one of them." if words else f"What runs? {EXAMPLE}"
        )
    if len(words) == 1 and os.path.isfile(words[0]):
        return {"command": [_program(words[0])]}, {}
    if len(words) <= 1:
        return {"line": words[0] if words else line}, {}
    if any(char.isspace() for char in words[0]) and not os.path.exists(words[0]):
        raise UsageError("Our options come before the line for a shell, which is one word.")
    from stoker.sweep.overrides import split

    kept, parameters = split(list(words))
    return {"command": kept}, parameters


def _program(path: str) -> str:
    """A file that is run by itself."""
    if os.access(path, os.X_OK):
        return os.path.abspath(path)
    how = f"python {path}" if path.endswith(".py") else f"sh {path}"
    raise UsageError(f"{path} cannot be executed by itself. Type: stoker sweep ... {how}")


def _param(text: str) -> tuple[str, dict[str, Any]]:
    from stoker.sweep.overrides import param_option

    return param_option(text)


def _usual(parameters: dict[str, Any], args: Args) -> str:
    """All combinations where there is an end to them; else, or of so many samples, at random."""
    finite = all("distribution" not in spec for spec in parameters.values())
    return "grid" if finite and args.text("samples") is None else "random"


def _rows(args: Args, kind: str) -> list[dict[str, Any]]:
    from stoker.sweep.tables import read_csv, read_jsonl

    path = args.text(kind) or ""
    where = "stdin" if path == "-" else path
    return (read_csv if kind == "csv" else read_jsonl)(read(path), where)


def read(path: str) -> str:
    """Return the text of a file, or of stdin for `-`."""
    name = "stdin" if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise UsageError("stdin is closed.")
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode("utf-8-sig")
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not valid UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None


# ------------------------------------------------------------- what options say besides


def _change(raw: dict[str, Any], args: Args) -> None:
    """Options win over what a file says."""
    if is_file(args.words[0] if args.words else ""):
        for text in args.many("param"):
            name, spec = _param(text)
            raw["parameters"] = {**raw.get("parameters", {}), name: spec}
    method = args.text("method")
    if args.text("name") is not None:
        raw["name"] = args.text("name")
    if method is not None:
        raw["method"] = METHODS.get(method.lower(), method.lower())
    for key in ("samples", "seed"):
        if args.text(key) is not None:
            raw[key] = args.count(key)
    if args.text("max_running") is not None:
        raw["max_running"] = args.count("max_running") or None  # 0 is any number of them
    metric = _metric(args, raw.get("metric"))
    if metric is not None:
        raw["metric"] = metric
    raw["stop"] = _stop(args, raw.get("stop"))


def _metric(args: Args, before: dict[str, Any] | None) -> dict[str, Any] | None:
    named = [key for key in ("metric", "minimize", "maximize") if args.text(key) is not None]
    if len(named) > 1:
        raise UsageError("A sweep has one metric: give --metric, --minimize or --maximize once.")
    found = dict(before or {})
    if named:
        found["name"] = args.text(named[0])
    if named and named[0] != "metric":
        found["goal"] = named[0]
        if args.text("goal") is not None:
            raise UsageError(f"--{named[0]} says the goal already; --goal goes with --metric.")
    elif args.text("goal") is not None:
        goal = args.text("goal") or ""
        if goal not in GOALS:
            raise UsageError(f"--goal takes min or max, not {goal!r}.")
        found["goal"] = GOALS[goal]
    if args.text("summary") is not None:
        found["summary"] = args.text("summary")
    if args.text("target") is not None:
        found["target"] = args.number("target")
    source = _source(args)
    if source is not None:
        found["source"] = source
    if found and "name" not in found:
        raise UsageError("Which metric? Give its name: --minimize loss or --maximize accuracy.")
    return found or None


def _source(args: Args) -> dict[str, Any] | None:
    pattern, path = args.text("metric_regex"), args.text("metric_file")
    if pattern is not None and path is not None:
        raise UsageError("Give --metric-regex or --metric-file; one of them.")
    if pattern is not None:
        return {"kind": "log", "pattern": pattern}
    return {"kind": "file", "path": path} if path is not None else None


def _stop(args: Args, before: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = args.text("stop")
    given = {
        name: args.number(key)
        for name, key in (("min", "min_steps"), ("max", "max_steps"), ("eta", "eta"))
        if args.text(key) is not None
    }
    if kind in {"none", "no", "off"}:
        before = None
    elif kind is not None:
        same = before is not None and before.get("kind") == kind
        before = before if same else {"kind": kind}
    if before is None:
        if given:
            raise UsageError("--min-steps, --max-steps and --eta go with --stop asha.")
        return None
    return {**before, **{key: _whole(value) for key, value in given.items()}}


def _whole(value: float | None) -> float | None:
    return int(value) if value is not None and value == int(value) else value
