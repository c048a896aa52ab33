"""Submit a parameter sweep: one trial of a command per parameter set.

Parameters come from a W&B sweep file, Hydra overrides after the command (lr=0.1,0.01), --param, or
a table with one trial per row. If the command has several words, {lr} is replaced and parameters
without a placeholder are appended as --lr=0.1. A single word is a shell command line and must
contain a placeholder for each parameter. Submitting the same sweep again runs only trials that are
missing or failed. `stoker sweep list`, `show` and `edit` inspect and change sweeps.
"""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.cli.options import Args
from stoker.cli.options.sweep import OPTIONS, SWEEP_KEYS, build_definition, parse_sweep
from stoker.client.client import connect
from stoker.wire import JsonObject

USAGE = (
    "sweep [OPTIONS] COMMAND [ARG ...] NAME=VALUE,VALUE ...",
    "sweep [OPTIONS] --param NAME=VALUE,VALUE ... COMMAND [ARG ...]",
    "sweep [OPTIONS] --csv FILE | --jsonl FILE COMMAND [ARG ...]",
    "sweep FILE.yaml [OPTIONS]",
    "sweep list [--all]",
    "sweep show [SWEEP] [--watch | --csv | --json | --html]",
    "sweep edit SWEEP [--max-running N] [--priority N]",
)
SUBCOMMANDS = {"show": "sweep_show", "list": "sweep_list", "ls": "sweep_list",
               "edit": "sweep_edit"}  # fmt: skip
ADAPTIVE_METHODS = ("tpe", "gp")
"""Methods that choose trials by earlier results."""
MAX_EXAMPLES = 5
"""Example trials of a method that chooses them one by one."""

__all__ = ["OPTIONS", "SUBCOMMANDS", "USAGE", "main"]


def main(argv: list[str]) -> int:
    """Submit a sweep, or run a subcommand."""
    if argv and argv[0] in SUBCOMMANDS:
        module = __import__(f"stoker.cli.submit.{SUBCOMMANDS[argv[0]]}", fromlist=["main"])
        if argv[1:2] in (["--help"], ["-h"]):
            from stoker.cli.help import verb_help

            print(verb_help(module.USAGE, module.__doc__ or "", module.OPTIONS))
            return 0
        return int(module.main(argv[1:]))
    body, args, warnings = build_sweep(argv)
    client = connect()
    reply = client.sweep(body)
    if not args.flag("quiet"):
        for text in [*warnings, *(reply.get("warnings") or ())]:
            output.say(f"stoker: {output.clean(text)}")
    if args.flag("dry_run"):
        return _print_plan(reply, body["definition"], args)
    if args.flag("json"):
        output.emit({"id": reply["sweep"], **reply})
    else:
        print(reply["label"], flush=True)
        if not args.flag("quiet"):
            output.say(f"stoker: {receipt_text(reply, body['definition'])}")
            output.say(f"stoker: to inspect it: stoker sweep show {reply['label']}")
    if args.flag("wait"):
        from stoker.cli.session.follow import wait_to_end

        return wait_to_end(client, str(reply["label"]))
    return 0


def build_sweep(argv: list[str]) -> tuple[JsonObject, Args, list[str]]:
    """Return the request body, the merged options, and warnings."""
    from stoker.cli.options import submission
    from stoker.cli.options.job import job_options

    given = parse_sweep(argv)
    warnings: list[str] = []
    definition = build_definition(given, warnings)
    keys = {option.key for option in OPTIONS}
    variables = submission.options_from_environment(os.environ)
    layers = [{key: variables[key] for key in variables if key in keys}, given.values]
    args = Args(submission.merge_options(layers), given.words)
    options = {
        key: value for key, value in job_options(args).items() if key not in SWEEP_KEYS | {"name"}
    }
    fields = submission.submission_fields(options, args)
    return {**fields, "definition": definition, "new": args.flag("new")}, args, warnings


def receipt_text(reply: JsonObject, definition: JsonObject) -> str:
    """Return `sweep 17 (train): 12 new, 1 again, 7 done already of 20`."""
    counts, total = reply["counts"], reply.get("total")
    added, retried = int(reply["added"]), int(reply["retried"])
    done = counts.get("done", 0) + counts.get("stopped", 0)
    unfinished = counts.get("waiting", 0) + counts.get("running", 0) - added - retried
    to_come = total - sum(counts.values()) if total is not None else 0
    parts = [
        (added, "new"),
        (retried, "again"),
        (unfinished, "under way"),
        (done, "done already"),
        (to_come, "to come"),
    ]
    text = ", ".join(f"{count:,} {what}" for count, what in parts if count > 0)
    head = f"sweep {reply['label']} ({output.clean(reply['name'])})"
    if total is None:
        return f"{head}: {f'{text}, more' if text else 'trials'} {end_text(definition)}"
    return f"{head}: {text or 'nothing to do'} of {total:,}"


def end_text(definition: JsonObject) -> str:
    """Return when a sweep without a number of samples ends."""
    from stoker.sweep.sampling.space import size

    combinations = size(definition["parameters"])
    if combinations is None:
        return "until it is cancelled"
    return f"until all {combinations:,} combinations have run"


def _print_plan(reply: JsonObject, definition: JsonObject, args: Args) -> int:
    """Print the first trials that would run."""
    commands, added, total = reply.get("commands") or [], int(reply["added"]), reply.get("total")
    is_adaptive = definition["method"] in ADAPTIVE_METHODS
    one_by_one = is_adaptive or total is None
    if one_by_one and not commands:
        commands = _example_commands(definition)
    if args.flag("json"):
        output.emit({"id": None, **reply, "commands": commands})
        return 0
    if commands:
        print("\n".join(output.clean(line) for line in commands))
    if not one_by_one and added > len(commands):
        output.say(f"stoker: ... and {added - len(commands):,} more")
    again = f" and {reply['retried']:,} again" if reply["retried"] else ""
    if is_adaptive:
        output.say(
            f"stoker: these are examples; {definition['method']} chooses each trial from the "
            "results of earlier ones"
        )
    if one_by_one:
        count = f"{total:,} trials in all" if total else f"trials {end_text(definition)}"
        output.say(f"stoker: this would run {count}{again}")
        return 0
    what = f"run {output.counted(added, 'new trial')}{again}"
    output.say(f"stoker: this would {what}" + (f", of {total:,} in all" if total else ""))
    return 0


def _example_commands(definition: JsonObject) -> list[str]:
    """Return the commands of the first trials; for an adaptive method, of random trials."""
    from itertools import islice
    from shlex import join

    from stoker.sweep.definition.template import command_of
    from stoker.sweep.sampling import samplers

    if definition["method"] in ADAPTIVE_METHODS:
        definition = {**definition, "method": "random"}
    count = min(definition["samples"] or MAX_EXAMPLES, MAX_EXAMPLES)
    points = islice(samplers.new_points(definition, 0, lambda _: False), count)
    commands = (command_of(definition, params) for params in points)
    return [command if isinstance(command, str) else join(command) for command in commands]
