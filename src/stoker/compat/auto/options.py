"""Options of all `auto` commands."""

from __future__ import annotations

from stoker.cli.options import COMMON, Args, Option, parse
from stoker.client.errors import UsageError
from stoker.compat.arguments import whole_number

DEFAULT_PORT = 25647
NAME = "auto"
"""Name of the queue, and the `client` of its jobs."""
DEFAULT_PRIORITY = 10
"""A task priority p is the job priority 10 - p, so that both defaults agree."""

ADDRESS_OPTIONS = ("--ip", "--port")
SWITCHES = tuple(name for option in COMMON for name in option.names)
SERVER_ADDRESS = (
    Option("--ip", "ADDRESS", "host of the server (127.0.0.1)"),
    Option(
        "--port",
        "PORT",
        f"port of the server (that of your server; on another host {DEFAULT_PORT})",
    ),
)
IDS = Option("-i/--id", "ID ...", "ids of the tasks", key="id", many=True)
SERVER = (
    Option("--gpus", "ID ...", "GPUs for tasks (required): 0 1 2 3", many=True),
    Option("--max-run", "N", "maximum number of pending tasks (10000)"),
    Option("--num-records", "N", "finished tasks to show of each kind (10000)"),
    Option("--port", "PORT", f"port for clients ({DEFAULT_PORT}; 0: any free port)"),
    Option("--limit", "N", "maximum GPUs per task (8, or all if there are fewer)"),
    Option("--max-load", "SHARE", "a GPU is free only below this load (0.1)"),
    Option("--max-memory", "SHARE", "and only below this share of its memory (0.1)"),
    Option("--log-file", "FILE", "also append the messages to this file"),
    Option("--bind", "ADDRESS", "also serve other hosts at this address, with TLS"),
)
RUN = (
    Option("-c/--cmd", "COMMAND", "command to run (required)", key="cmd"),
    Option("-n/--num-gpus", "N", "number of GPUs (1)", key="num_gpus"),
    Option("-p/--priority", "P", "lower values start earlier (10)", key="priority"),
    Option("--cpus", "N", "number of cores"),
    Option("--memory", "SIZE", "memory: 8G"),
    Option("--chdir", "DIR", "working directory (this one; on another host that of the server)"),
    *SERVER_ADDRESS,
)
VERBOSE = Option("-v/--verbose", None, "show the paths of the log files")
HISTORY = (
    Option("-n/--num-records", "N", "the N most recent (-1: all)", key="num_records"),
    Option("-f/--fail", None, "failed tasks", key="fail"),
    Option("--clear", None, "clear the history"),
    VERBOSE,
    *SERVER_ADDRESS,
)
VERBS: dict[str, tuple[str, str, tuple[Option, ...]]] = {
    "server": ("server --gpus 0 1 2 3 [OPTIONS]", "run tasks on GPUs until stopped", SERVER),
    "run": ("run -c COMMAND [OPTIONS]", "queue a task; print its id", RUN),
    "status": ("status [-v]", "list running and pending tasks", (VERBOSE, *SERVER_ADDRESS)),
    "cancel": ("cancel -i ID ...", "cancel pending tasks", (IDS, *SERVER_ADDRESS)),
    "kill": ("kill -i ID ...", "terminate running tasks", (IDS, *SERVER_ADDRESS)),
    "history": ("history [-n N] [-f] [--clear]", "list finished tasks", HISTORY),
    "clean": ("clean", "clear the history of finished tasks", SERVER_ADDRESS),
    "wait": (
        "wait ID ... [--timeout TIME]",
        "wait for tasks to end; return their exit code",
        (
            Option("-t/--timeout", "TIME", "stop waiting after 90s, 5m, 2h: exit code 101"),
            IDS,
            *SERVER_ADDRESS,
        ),
    ),
    "logs": (
        "logs ID [-f | --path]",
        "print the output of a task",
        (
            Option("-f/--follow", None, "follow until the task ends", key="follow"),
            Option("--path", None, "print the path of the log file instead"),
            IDS,
            *SERVER_ADDRESS,
        ),
    ),
    "trust": (
        "trust ADDRESS:PORT FINGERPRINT [< TOKEN-FILE]",
        "trust a server that was started with --bind",
        (Option("--forget", None, "remove the server"),),
    ),
}
MULTI_VALUE_OPTIONS = {"server": ("--gpus",), "cancel": ("-i", "--id"), "kill": ("-i", "--id")}
"""Options that take all words up to the next option."""
VERBS_WITH_WORDS = ("wait", "logs", "trust")


def parse_verb(verb: str, words: list[str]) -> Args:
    """Parse the options of a verb; raise UsageError."""
    try:
        args = parse(VERBS[verb][2], _repeat_option_names(words, MULTI_VALUE_OPTIONS.get(verb, ())))
    except UsageError as error:
        sentence = error.message.partition(" See: ")[0]
        end = "" if sentence.endswith((".", "?")) else "."
        raise UsageError(f"{sentence}{end} See: auto {verb} --help") from None
    if args.words and verb not in VERBS_WITH_WORDS:
        raise UsageError(f"Unexpected argument {args.words[0]!r}. See: auto {verb} --help")
    return args


def _repeat_option_names(words: list[str], names: tuple[str, ...]) -> list[str]:
    """Turn `--id 1 2 3` into `--id 1 --id 2 --id 3`."""
    words_out: list[str] = []
    name, has_value = "", False
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            has_value = bool(equals)
        elif name in names and has_value:
            words_out.append(name)
        else:
            has_value = True
        words_out.append(word)
    return words_out


def parse_count(args: Args, key: str, default: int, minimum: int, maximum: int = 10**9) -> int:
    """Return an option as a whole number within bounds."""
    text = args.text(key)
    name = f"--{key.replace('_', '-')}"
    return default if text is None else whole_number(name, text, minimum, maximum)


def task_ids(args: Args) -> list[int]:
    """Return the given task ids without duplicates."""
    ids = [*args.many("id"), *args.words]
    if not ids:
        raise UsageError("No task ids given. Example: --id 1 2 3")
    for text in ids:
        if not (text.isdecimal() and text.isascii() and len(text) < 16):
            raise UsageError(f"{text!r} is not a task id; auto run prints the id.")
    return list(dict.fromkeys(int(text) for text in ids))


def overview() -> str:
    """Return the general help."""
    lines = ["  auto [--ip ADDRESS] [--port PORT] OPTION ...", ""]
    lines += [f"  {verb:<9}{text}" for verb, (_, text, _) in VERBS.items()]
    return "\n".join([*lines, "", "More: auto OPTION --help"])


def usage(verb: str) -> str:
    """Return the help of one verb."""
    syntax, text, options = VERBS[verb]
    lines = [f"  auto {syntax}", "", f"{text[0].upper()}{text[1:]}.", "", "Options"]
    for option in (*options, *COMMON):
        names = ", ".join(option.names) + (f" {option.value}" if option.value else "")
        lines.append(f"  {names:<26}  {option.text}")
    return "\n".join(lines)
