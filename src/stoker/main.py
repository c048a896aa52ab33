"""Entry point of `stoker`: find the verb, import only its module, run it."""

from __future__ import annotations

import sys

from stoker.cli.errors import run_command


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    # After these verbs, --json may belong to the job's command; only the parser can tell.
    may_be_ours = bool(args) and args[0] not in {"submit", "run", "sweep", "add", "compat"}
    return run_command(lambda: _dispatch(args), "stoker", may_be_ours and "--json" in args)


def _dispatch(args: list[str]) -> int:
    first = args[0] if args else ""
    if first in {"--version", "-V", "version"}:
        from stoker import __version__

        print(f"stoker {__version__}")
        return 0
    if first in {"--help", "-h"} or (first == "help" and len(args) == 1):
        from stoker.cli.help import overview

        print(overview())
        return 0
    if first == "help":
        return _help(args[1])
    if not first or first.startswith("-"):
        return _run("queue", args)
    return _run(_resolve_verb(first), args[1:])


def _run(verb: str, args: list[str]) -> int:
    from stoker.cli.verbs import MODULES

    if _wants_help(verb, args):
        return _help(verb)
    # __import__ with a list of names returns the module itself, without importing importlib.
    module = __import__(MODULES[verb], fromlist=["main"])
    return int(module.main(args))


def _wants_help(verb: str, args: list[str]) -> bool:
    if verb in {"feed", "compat"}:  # these have their own
        return False
    if args[:1] in (["--help"], ["-h"]):
        return True
    # What follows the options of these verbs is the command of a job.
    if verb in {"submit", "run", "sweep", "daemon"}:
        return False
    return "--help" in (args[: args.index("--")] if "--" in args else args)


def _help(word: str) -> int:
    from stoker.cli.help import show

    return show(_resolve_verb(word))


def _resolve_verb(word: str) -> str:
    """Return the verb that a name means; raise with a suggestion if there is none."""
    from stoker.cli.verbs import ALIASES, MODULES, OTHER_TOOLS, VERBS
    from stoker.client.errors import UsageError

    if word in MODULES:
        return word
    if word in ALIASES:
        return ALIASES[word]
    if word in OTHER_TOOLS:
        raise UsageError(f"There is no command {word!r} in stoker. Use: stoker {OTHER_TOOLS[word]}")
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(word, [*VERBS, *ALIASES])
    hint = f"Did you mean `stoker {guess}`?" if guess else "See: stoker --help"
    raise UsageError(f"There is no command {word!r}. {hint}")
