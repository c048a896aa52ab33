"""grass: queues with their own resources."""

from __future__ import annotations

from stoker.client.errors import UsageError

VERBS = {
    "start": "start the daemon in the background",
    "stop": "stop it; running jobs continue and the next daemon recovers them",
    "create-queue": "create a queue with its own devices",
    "delete-queue": "delete a queue; running jobs continue",
    "enqueue": "add a job to a queue",
    "show": "show queues and their jobs",
}
"""Purpose of every verb; each is a module here with `main(argv) -> int`."""


def main(argv: list[str]) -> int:
    """Run a verb and return the exit code."""
    word, arguments = (argv[0], argv[1:]) if argv else ("--help", [])
    if word in {"-h", "--help", "help"}:
        from stoker.compat.grass.help import HELP

        print(HELP, end="")
        return 0
    if word in {"-V", "--version"}:
        from stoker import __version__

        print(f"grass (stoker {__version__})")
        return 0
    if word not in VERBS:
        from stoker.compat.arguments import did_you_mean

        hint = did_you_mean(word, VERBS, "See: grass --help")
        raise UsageError(f"There is no command {word!r}. {hint}")
    module = __import__(f"stoker.compat.grass.{word.replace('-', '_')}", fromlist=["main", "USAGE"])
    if arguments and arguments[0] in {"-h", "--help"}:
        print(module.USAGE, end="")
        return 0
    return int(module.main(arguments))
