"""What can be typed after `auto`."""

from __future__ import annotations

from stoker.cli.options import COMMON, Args, Option, parse
from stoker.client.errors import UsageError

PORT = 25647
DOOR = "auto"
"""The name of this door's queue, and what its jobs are marked with."""
USUAL_PRIORITY = 10
"""A task's priority p is the job's priority 10 - p, so that both defaults agree."""

HERE = ("--ip", "--port")
SWITCHES = tuple(name for option in COMMON for name in option.names)
WHERE = (
    Option("--ip", "ADDRESS", "the machine of the server (127.0.0.1)"),
    Option("--port", "PORT", f"its port (where yours is; on another machine {PORT})"),
)
IDS = Option("-i/--id", "ID ...", "which tasks", key="id", many=True)
SERVER = (
    Option("--gpus", "ID ...", "the GPUs to give out (required): 0 1 2 3", many=True),
    Option("--max-run", "N", "so many tasks may wait (10000)"),
    Option("--num-records", "N", "so many ended tasks of each kind are shown (10000)"),
    Option("--port", "PORT", f"where clients come in ({PORT}; 0: any free port)"),
    Option("--limit", "N", "GPUs for one task at most (8, or all if there are fewer)"),
    Option("--max-load", "SHARE", "a GPU is free only below this load (0.1)"),
    Option("--max-memory", "SHARE", "... and below this share of its memory (0.1)"),
    Option("--log-file", "FILE", "append what is said here to a file too"),
    Option("--bind", "ADDRESS", "serve other machines too, at this address, with TLS"),
)
RUN = (
    Option("-c/--cmd", "COMMAND", "what to run (required)", key="cmd"),
    Option("-n/--num-gpus", "N", "GPUs it needs (1)", key="num_gpus"),
    Option("-p/--priority", "P", "the smaller, the earlier (10)", key="priority"),
    Option("--cpus", "N", "cores it needs"),
    Option("--memory", "SIZE", "RAM it needs: 8G"),
    Option("--chdir", "DIR", "where to run it (here; on another machine where the server is)"),
    *WHERE,
)
VERBOSE = Option("-v/--verbose", None, "with the names of the log files")
HISTORY = (
    Option("-n/--num-records", "N", "the N most recent (-1: all)", key="num_records"),
    Option("-f/--fail", None, "those that failed", key="fail"),
    Option("--clear", None, "forget all of them"),
    VERBOSE,
    *WHERE,
)
VERBS: dict[str, tuple[str, str, tuple[Option, ...]]] = {
    "server": ("server --gpus 0 1 2 3 [OPTIONS]", "give GPUs to tasks, until stopped", SERVER),
    "run": ("run -c COMMAND [OPTIONS]", "queue a task; print its id", RUN),
    "status": ("status [-v]", "what runs and what waits", (VERBOSE, *WHERE)),
    "cancel": ("cancel -i ID ...", "take waiting tasks off the queue", (IDS, *WHERE)),
    "kill": ("kill -i ID ...", "end running tasks", (IDS, *WHERE)),
    "history": ("history [-n N] [-f] [--clear]", "tasks that have ended", HISTORY),
    "clean": ("clean", "forget the tasks that have ended", WHERE),
    "wait": (
        "wait ID ... [--timeout TIME]",
        "wait for tasks to end; return their exit code",
        (Option("-t/--timeout", "TIME", "give up after 90s, 5m, 2h: exit code 101"), IDS, *WHERE),
    ),
    "logs": (
        "logs ID [-f | --path]",
        "what a task has written",
        (
            Option("-f/--follow", None, "go on until it ends", key="follow"),
            Option("--path", None, "print the file's name instead"),
            IDS,
            *WHERE,
        ),
    ),
    "trust": (
        "trust ADDRESS:PORT FINGERPRINT [< TOKEN-FILE]",
        "remember a server that was started with --bind",
        (Option("--forget", None, "no longer"),),
    ),
}
MANY = {"server": ("--gpus",), "cancel": ("-i", "--id"), "kill": ("-i", "--id")}
"""Options that take all words up to the next option."""
WORDY = ("wait", "logs", "trust")


def parsed(verb: str, words: list[str]) -> Args:
    """Read the options of a verb; one sentence if they make no sense."""
    try:
        args = parse(VERBS[verb][2], _spread(words, MANY.get(verb, ())))
    except UsageError as error:
        sentence = error.message.partition(" See: ")[0]
        end = "" if sentence.endswith((".", "?")) else "."
        raise UsageError(f"{sentence}{end} See: auto {verb} --help") from None
    if args.words and verb not in WORDY:
        raise UsageError(f"{args.words[0]!r} means nothing here. See: auto {verb} --help")
    return args


def _spread(words: list[str], names: tuple[str, ...]) -> list[str]:
    """Turn `--id 1 2 3` into `--id 1 --id 2 --id 3`."""
    found: list[str] = []
    name, served = "", False
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            served = bool(equals)
        elif name in names and served:
            found.append(name)
        else:
            served = True
        found.append(word)
    return found


def whole(args: Args, key: str, default: int, least: int, most: int = 10**9) -> int:
    """Return a whole number within bounds."""
    text = args.text(key)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if digits.isdecimal() and digits.isascii() and len(digits) < 12 and least <= int(text) <= most:
        return int(text)
    name = f"--{key.replace('_', '-')}"
    bounds = f"from {least} on" if most == 10**9 else f"between {least} and {most}"
    raise UsageError(f"{name} takes a whole number {bounds}, not {text!r}.")


def task_ids(args: Args) -> list[int]:
    """Return the ids of tasks that were typed."""
    typed = [*args.many("id"), *args.words]
    if not typed:
        raise UsageError("Which tasks? Name them by id: --id 1 2 3.")
    for text in typed:
        if not (text.isdecimal() and text.isascii() and len(text) < 16):
            raise UsageError(f"{text!r} is not the id of a task; auto run prints it.")
    return list(dict.fromkeys(int(text) for text in typed))


def overview() -> str:
    """Return what can be typed."""
    lines = ["  auto [--ip ADDRESS] [--port PORT] OPTION ...", ""]
    lines += [f"  {verb:<9}{text}" for verb, (_, text, _) in VERBS.items()]
    return "\n".join([*lines, "", "More: auto OPTION --help"])


def usage(verb: str) -> str:
    """Return the help of one verb."""
    typed, text, options = VERBS[verb]
    lines = [f"  auto {typed}", "", f"{text[0].upper()}{text[1:]}.", "", "Options"]
    for option in (*options, *COMMON):
        names = ", ".join(option.names) + (f" {option.value}" if option.value else "")
        lines.append(f"  {names:<26}  {option.text}")
    return "\n".join(lines)
