"""Run the commands on stdin, one per line, one GPU each, in the foreground.

Blank lines and lines that begin with # are passed over. If this user's daemon is running,
the lines go into its queue and are followed; otherwise feed is the daemon until they are
done. ^C cancels the lines of this feed; SIGUSR1 lets the running ones finish and starts no
more. Exit: 0 all succeeded, 1 some failed, 130 after ^C.
"""

from __future__ import annotations

import os
import sys

from stoker.cli.options import Option, parse
from stoker.client.errors import UsageError
from stoker.feed.lines import Lines
from stoker.feed.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args

USAGE = ("feed [OPTIONS] < commands.txt", "feed [OPTIONS] commands.txt")
OPTIONS = (
    Option("--gpus", "0,1,2", "the devices to use, whatever strangers do (all that are free)"),
    Option("--each", "N", "GPUs per line: 1, 2, 0.5", key="each"),
    Option("--no-gpus", None, "the lines need no GPU: one core each", key="no_gpus"),
    Option("-c/--cpus", "N", "cores per line", key="cpus"),
    Option("--mem", "SIZE", "RAM per line: 8G"),
    Option("--gpu-memory", "SIZE", "memory per GPU that a line will use"),
    Option("-t/--time", "TIME", "time limit per line: 90m, 1:30:00"),
    Option("-J/--name", "NAME", "a name for the jobs", key="name"),
    Option("--label", "WORD", "a label for the jobs", many=True),
    Option("--retries", "N", "try failed lines again"),
    Option("--retry-on", "CAUSE", "which failures: oom,lost,exit:3"),
    Option("--resources", "JSON5", "what this machine has: '{gpu:4,licence:[2]}'"),
    Option("-q/--quiet", None, "no progress, failures only", key="quiet"),
)


def main(argv: list[str]) -> int:
    """Feed lines to the engine and follow them to their ends."""
    if argv and argv[0] in ("-h", "--help"):
        from stoker.cli.help import of_verb

        print(of_verb(USAGE, __doc__ or "", OPTIONS))
        return 0
    args = parse(OPTIONS, argv, verb="feed")
    lines = Lines(_input(args))
    progress = Progress(lines.expected(), quiet=args.flag("quiet"))
    options = job_options(args)
    devices = named_devices(args)
    if not _daemon_answers():
        from stoker.feed.driver import LostTheRace, drive

        try:
            return drive(lines, progress, options, devices, args.text("resources"))
        except LostTheRace:
            pass  # somebody's daemon started at the same moment: it shall have the lines
    from stoker.feed.follow import follow

    return follow(lines, progress, options)


def _input(args: Args) -> int:
    if not args.words:
        if os.isatty(0):
            sys.stderr.write("stoker: type commands, one per line; ^D when done\n")
        return 0
    if len(args.words) > 1:
        raise UsageError("feed takes one file, or stdin. For a single command: stoker submit")
    try:
        return os.open(args.words[0], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{args.words[0]} cannot be read: {error.strerror}.") from None


def named_devices(args: Args) -> list[str]:
    """The devices typed, in order."""
    text = args.text("gpus")
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--gpus names no device; write a list such as 0,1,2.")
    if len(set(names)) != len(names):
        raise UsageError("--gpus names a device twice; for two lines on one GPU: --each 0.5")
    return names


def job_options(args: Args) -> dict[str, object]:
    """What every line asks for, in the words of a submission."""
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


def _daemon_answers() -> bool:
    """Whether somebody listens on this user's socket."""
    from stoker import places
    from stoker.client.errors import DaemonUnreachable
    from stoker.client.transport import open_socket

    try:
        open_socket(places.socket_path(), 5.0).close()
    except DaemonUnreachable:
        return False
    return True
