"""Run the commands on stdin, one per line, one GPU each, in the foreground.

Blank lines and lines that start with # are skipped. If your daemon is running, the lines are
submitted to it and followed; otherwise feed schedules them itself. ^C cancels the lines of this
feed; SIGUSR1 starts no more lines and waits for running ones. A line that is not UTF-8, contains a
NUL byte or exceeds 1 MiB is skipped and counts as failed.
Exit code: 0 if every line succeeded, 1 if some failed or did not run, 130 after ^C.
"""

from __future__ import annotations

import os
import stat
import sys

from stoker import places
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.client.errors import UsageError
from stoker.client.route import system_socket
from stoker.feed.line_reader import LineReader
from stoker.feed.progress import Progress
from stoker.feed.read_ahead import ReadAheadStream
from stoker.feed.run import run
from stoker.feed.submit_environment import submit_environment

USAGE = ("feed [OPTIONS] < commands.txt", "feed [OPTIONS] commands.txt")
OPTIONS = (
    Option("--gpus", "0,1,2", "GPUs to use, even if other processes use them (default: all free)"),
    Option("--each", "N", "GPUs per line: 1, 2, 0.5", key="each"),
    Option("--no-gpus", None, "lines need no GPU: one core each", key="no_gpus"),
    Option("-c/--cpus", "N", "cores per line", key="cpus"),
    Option("--mem", "SIZE", "RAM per line: 8G"),
    Option("--gpu-memory", "SIZE", "memory that a line uses on each GPU"),
    Option("-t/--time", "TIME", "time limit per line: 90m, 1:30:00"),
    Option("-J/--name", "NAME", "name of the jobs", key="name"),
    Option("--label", "WORD", "label of the jobs; repeatable", many=True),
    Option("--retries", "N", "on failure, run a line again up to N times"),
    Option("--retry-on", "CAUSES", "retry only on oom,lost,exit:3 (3 times unless --retries)"),
    Option("--resources", "JSON5", "resources of this node: '{gpu:4,licence:[2]}'"),
    Option("-q/--quiet", None, "print failures only, no progress", key="quiet"),
)


def main(argv: list[str]) -> int:
    """Run the lines of a file or of stdin."""
    if argv and argv[0] in ("-h", "--help"):
        from stoker.cli.help import verb_help

        print(verb_help(USAGE, __doc__ or "", OPTIONS))
        return 0
    args = parse(OPTIONS, argv, verb="feed")
    options = job_options(args)
    lines = LineReader(_input(args))
    progress = Progress(lines.expected(), quiet=args.flag("quiet"))
    work = ReadAheadStream(lines, named_devices(args), progress, options)
    code = run(work, submit_environment(), args.text("resources"))
    # A system daemon has the logs of each user in another place; `stoker logs` finds them.
    logs = None if system_socket() else places.logs_dir()
    progress.finish(logs)
    if args.flag("json"):
        output.emit(progress.summary(logs))
    return code


def _input(args: Args) -> int:
    """Return the descriptor to read commands from."""
    if len(args.words) > 1:
        raise UsageError("feed takes one file, or stdin. For a single command: stoker submit")
    name = args.words[0] if args.words else "stdin"
    try:
        if args.words:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        elif sys.stdin is None:
            raise UsageError("stdin is closed. Type: stoker feed < commands.txt")
        else:
            fd = 0
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise UsageError(f"{name} cannot be read: Is a directory.")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None
    if not args.words and os.isatty(0):
        output.say("stoker: type commands, one per line; ^D when done")
    return fd


def named_devices(args: Args) -> list[str]:
    """Return the GPUs of --gpus, in order."""
    text = args.text("gpus")
    if text is None:
        return []
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        if first.isdecimal() and last.isdecimal() and len(part) <= 11:
            if int(first) > int(last):
                raise UsageError(f"--gpus {part} is a descending range; write {last}-{first}.")
            names += map(str, range(int(first), int(last) + 1))
        else:
            names.append(part)
    if not names:
        raise UsageError("--gpus names no device; write a list such as 0,1,2.")
    if len(set(names)) != len(names):
        raise UsageError("--gpus names a device twice; for two lines on one GPU: --each 0.5")
    return names


def job_options(args: Args) -> dict[str, object]:
    """Return the options of every line, as in a submission."""
    options: dict[str, object] = {"feed": f"{os.getpid()}-{os.urandom(4).hex()}"}
    names = named_devices(args)
    if names and args.flag("no_gpus"):
        raise UsageError("--gpus and --no-gpus contradict each other.")
    if names:
        options["use_gpus"] = ",".join(names)
        options["explicit"] = True
    if not args.flag("no_gpus"):
        options["gpus"] = args.text("each") or "1"
    for key in ("cpus", "mem", "gpu_memory", "time", "name", "retries", "retry_on"):
        value = args.text(key)
        if value is not None:
            options[key] = value
    if args.many("label"):
        options["label"] = args.many("label")
    return options
