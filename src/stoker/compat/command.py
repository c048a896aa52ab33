"""Run the commands of other tools with stoker's engine, or install them on PATH.

`stoker compat` lists the commands. `stoker compat NAME ...` runs the command NAME with the
arguments that follow. `stoker compat install NAME ...` writes a small script of that name beside
the `stoker` command (or to ~/.local/bin). It hides no other command of that name unless --force is
given, and never overwrites a file that it did not write. `stoker compat uninstall` removes only
such scripts.
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.client.errors import UsageError
from stoker.compat.registry import COMMANDS, NEVER_ON_PATH, run_compat_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args

USAGE = (
    "compat",
    "compat NAME [ARG ...]",
    "compat install NAME ... | --all [--dir DIR] [--force]",
    "compat uninstall NAME ... | --all [--dir DIR]",
)
OPTIONS = (
    Option("--all", None, "all commands"),
    Option("--dir", "DIR", "directory to install to or to uninstall from"),
    Option("--force", None, "install even if another program of that name is on PATH"),
)
ACTIONS = {
    "install": "write commands of these names",
    "uninstall": "remove the commands that install wrote",
}


def main(argv: list[str]) -> int:
    """List the compat commands, run one, install or uninstall."""
    first = argv[0] if argv else ""
    if first in COMMANDS:
        return run_compat_command(first, argv[1:])
    if first in {"-h", "--help"}:
        from stoker.cli.help import verb_help

        print(verb_help(USAGE, __doc__ or "", OPTIONS))
        return 0
    word = next((word for word in argv if not word.startswith("-")), "")
    if word in COMMANDS and not any(action in argv for action in ACTIONS):
        raise UsageError(f"Options go after the name of the command: stoker compat {word} {first}")
    args = parse(OPTIONS, argv, verb="compat")
    if not args.words:
        _check_options(args, "list")
        return _list(args.flag("json"))
    action, *names = args.words
    if action not in ACTIONS:
        raise _unknown_name(action, [*COMMANDS, *ACTIONS])
    _check_options(args, action)
    return _install(args, names) if action == "install" else _uninstall(args, names)


def complete(words: list[str]) -> list[str] | None:
    """Return completions of `stoker compat` and these words; None means files."""
    names = [f"{name}\t{text}" for name, text in COMMANDS.items()]
    if len(words) == 1:
        return [*names, *(f"{action}\t{text}" for action, text in ACTIONS.items())]
    if words[0] not in ACTIONS or words[-2] == "--dir":
        return None
    if words[-1].startswith("-"):
        return [f"{option.names[0]}\t{option.text}" for option in OPTIONS]
    return names


def _list(as_json: bool) -> int:
    from stoker.cli import output
    from stoker.cli.output.table import Column, write
    from stoker.compat.path_commands import OTHER, STOKER, find_on_path

    on_path = {name: find_on_path(name) for name in COMMANDS}
    if as_json:
        output.emit({
            "commands": [
                {"name": name, "text": COMMANDS[name], "path": path, "owner": owner}
                for name, (path, owner) in on_path.items()
            ]
        })  # fmt: skip
        return 0
    owner_text = {STOKER: "yes", OTHER: "another program", None: "no"}
    columns = [Column("COMMAND"), Column("ON PATH")]
    columns += [Column("WHERE", cut=True), Column("DESCRIPTION", cut=True)]
    rows = [
        [name, owner_text[owner], path or "-", COMMANDS[name]]
        for name, (path, owner) in on_path.items()
    ]
    write(columns, rows)
    if output.is_terminal(1):
        output.say(
            "\nstoker compat NAME ... runs a command; stoker compat install NAME puts it on PATH."
        )
    return 0


def _install(args: Args, names: list[str]) -> int:
    from stoker.cli import output
    from stoker.compat.wrapper_scripts import install

    result = install(_selected_names(args, names), args.text("dir"), force=args.flag("force"))
    if args.flag("json"):
        output.emit(vars(result))
        return 0
    for line in result.messages():
        output.say(f"stoker: {line}")
    return 0


def _uninstall(args: Args, names: list[str]) -> int:
    from stoker.cli import output
    from stoker.compat.wrapper_scripts import uninstall

    removed, left = uninstall(
        _selected_names(args, names), args.text("dir"), ignore_missing=args.flag("all")
    )
    if args.flag("json"):
        output.emit({"removed": removed, "left": left})
        return 1 if left else 0
    for path in removed:
        output.say(f"stoker: removed {output.clean(path)}")
    for path in left:
        output.say(f"stoker: kept {output.clean(path)}: it is not the file that stoker wrote")
    if not removed and not left:
        output.say("stoker: nothing to remove")
    return 1 if left else 0


def _selected_names(args: Args, names: list[str]) -> list[str]:
    """Return the selected command names without duplicates."""
    if args.flag("all") == bool(names):
        raise UsageError("Name the commands, or use --all. To list them: stoker compat")
    for name in names:
        if name not in COMMANDS:
            raise _unknown_name(name, COMMANDS)
        if name in NEVER_ON_PATH:
            raise UsageError(f'{name} is not installed; type: eval "$(stoker compat {name})"')
    return list(dict.fromkeys(names)) or [name for name in COMMANDS if name not in NEVER_ON_PATH]


def _check_options(args: Args, action: str) -> None:
    allowed = {"list": (), "install": ("all", "dir", "force"), "uninstall": ("all", "dir")}[action]
    for option in OPTIONS:
        if option.key in args.values and option.key not in allowed:
            commands = "stoker compat install" + (" or uninstall" if option.key != "force" else "")
            raise UsageError(f"--{option.key} is an option of {commands}.")
    if args.text("dir") == "":
        raise UsageError("--dir is empty. Name a directory, or omit --dir.")


def _unknown_name(word: str, choices: dict[str, str] | list[str]) -> UsageError:
    from stoker.compat.arguments import did_you_mean

    hint = did_you_mean(word, choices, "To list them: stoker compat")
    return UsageError(f"There is no compatibility command {word!r}. {hint}")
