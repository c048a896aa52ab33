"""Build a submission from a command line: what to run, where, in which environment."""

from __future__ import annotations

import os
import sys

from stoker.cli import output
from stoker.cli.options import Args, Value, parse
from stoker.cli.options.environment import job_environment
from stoker.cli.options.job import JOB, SUBMIT, job_options
from stoker.client import submit_environment
from stoker.client.client import new_key
from stoker.client.errors import UsageError
from stoker.client.submit_environment import NO_DIRECTORY, utf8_path
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SBATCH_NAMES = {"timelimit": "time", "array_inx": "array", "job_name": "name",
                "partition": "queue", "mem_per_node": "mem", "cpus_per_task": "cpus"}  # fmt: skip
SET_INSIDE_JOBS = frozenset({
    "STOKER_DEADLINE", "STOKER_GPUS", "STOKER_JOB_NAME", "STOKER_NODES",
})  # fmt: skip
"""Inside a job, these name its allocation and are not options."""
SHELL_CHARACTERS = frozenset("|&;<>()$`\\\"'*?[]#={}!")


def build_submission(
    argv: list[str],
    verb: str,
    what_of: Callable[[Args], JsonObject] | None = None,
    defaults_of: Callable[[JsonObject, Args], dict[str, Value]] | None = None,
) -> tuple[JsonObject, Args]:
    """Return the request body of `submit` or `run`, and the merged options.

    `what_of` returns what is run, `defaults_of` options of lowest precedence.
    """
    given = parse((*JOB, *SUBMIT), argv, command=True, verb=verb)
    what = (what_of or what_to_run)(given)
    layers = [options_from_environment(os.environ)]
    if "script" in what:
        from stoker.cli.options.directives import read_directives

        directives, ignored = read_directives(what["script"], strict=given.flag("strict"))
        if ignored:
            names = " ".join(dict.fromkeys(ignored))
            output.say(f"stoker: #SBATCH options without effect: {names}")
        layers.insert(0, directives.values)
    args = Args(merge_options([*layers, given.values]), given.words)
    if defaults_of is not None:
        args.values = {**defaults_of(what, args), **args.values}
    return {**submission_fields(job_options(args), args), "what": what}, args


def submission_fields(options: dict[str, object], args: Args) -> JsonObject:
    """Return what submissions of jobs and of sweeps have in common; --chdir becomes absolute."""
    directory = None
    if "chdir" in options:
        directory = options["chdir"] = absolute_path(os.path.expanduser(str(options["chdir"])))
    environment = job_environment(os.environ, keep_terminal=bool(options.get("pty")))
    return {
        "key": new_key(),
        "options": options,
        **submit_environment.submit_fields(environment, directory),
        "dry_run": args.flag("dry_run"),
    }


def what_to_run(args: Args) -> JsonObject:
    """Return the `what` of a submission: a script, a shell line, an argv or many lines."""
    words = args.words
    line, file = args.text("wrap"), args.text("each_line")
    if sum((bool(words), line is not None, file is not None)) > 1:
        raise UsageError("Give a command, --wrap LINE or --each-line FILE; only one of them.")
    if file is not None:
        return {"lines": read_lines(file)}
    if line is not None:
        return {"line": line}
    if not words:
        raise UsageError("No command given. For example: stoker submit --gpus 1 python train.py")
    if os.path.isfile(words[0]) and (len(words) == 1 or not os.access(words[0], os.X_OK)):
        text = read_script(words[0], alone=len(words) == 1)
        if text is not None:
            name = os.path.basename(words[0])
            return {"script": text, "script_name": name, "args": words[1:]}
        return {"argv": [absolute_path(words[0]), *words[1:]]}
    if len(words) == 1:
        if not words[0].strip():
            raise UsageError("The command is empty.")
        if any(char.isspace() or char in SHELL_CHARACTERS for char in words[0]):
            return {"line": words[0]}
    return {"argv": list(words)}


def read_script(path: str, *, alone: bool = True) -> str | None:
    """Return a script's text; None for a binary."""
    data = read_bytes(path)
    if b"\0" in data[:4096]:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if path.endswith(".py") and not text.startswith("#!"):
        more = "" if alone else " ..."
        raise UsageError(
            f"{path} has no #! line, so a shell would run it. Type: python {path}{more}"
        )
    return text


def read_lines(path: str) -> list[str]:
    """Return the commands in a file, one per line, without blank and # lines."""
    name = "stdin" if path == "-" else path
    data = read_bytes(path)
    try:
        lines = [line.strip() for line in data.decode().split("\n")]
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"Line {number} of {name} is not valid UTF-8.") from None
    commands = [line for line in lines if line and not line.startswith("#")]
    if not commands:
        raise UsageError(f"{name} contains no commands.")
    if "\0" in "".join(commands):
        number = next(at for at, line in enumerate(lines, 1) if "\0" in line)
        raise UsageError(f"Line {number} of {name} contains a NUL byte.")
    return commands


def read_bytes(path: str) -> bytes:
    """Read a whole file, or stdin for `-`."""
    if path == "-" and sys.stdin is None:
        raise UsageError("stdin is closed. Name a file instead of -, or redirect stdin from one.")
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        name = "stdin" if path == "-" else path
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None


def options_from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return options set by SBATCH_* and STOKER_* variables; STOKER_* takes precedence."""
    values: dict[str, Value] = {}
    by_key = {option.key: option for option in JOB}
    inside = "STOKER_JOB_ID" in environ
    for prefix in ("SBATCH_", "STOKER_"):
        for name, text in environ.items():
            if not name.startswith(prefix) or (inside and name in SET_INSIDE_JOBS):
                continue
            key = name[len(prefix) :].lower()
            key = SBATCH_NAMES.get(key, key)
            option = by_key.get(key)
            if option is None or not text:
                continue
            if option.many:
                values[key] = [text]
            elif option.value is None:
                if text.lower() not in {"0", "no", "false"}:
                    values[key] = True
            else:
                values[key] = text
    return values


def merge_options(layers: list[dict[str, Value]]) -> dict[str, Value]:
    """Merge options; later layers take precedence, lists are concatenated."""
    merged: dict[str, Value] = {}
    for layer in layers:
        for key, value in layer.items():
            earlier = merged.get(key)
            if isinstance(value, list) and isinstance(earlier, list):
                merged[key] = earlier + value
            else:
                merged[key] = value
    return merged


def absolute_path(path: str) -> str:
    """Return an absolute path that is valid UTF-8."""
    try:
        return utf8_path(os.path.abspath(path))
    except FileNotFoundError:
        raise UsageError(NO_DIRECTORY) from None
