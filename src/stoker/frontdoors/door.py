"""The commands of other tools, run by stoker: enter one, or give it a name of its own on PATH.

`stoker door` lists them. `stoker door NAME ...` is the command NAME, and every word behind it is
its own. `stoker door install NAME ...` writes a small script of that name beside the `stoker`
command (or to ~/.local/bin), so that it can be typed alone; it does not hide a command of that
name that is there already, unless --force is given, and never overwrites a file that it did not
write. `stoker door uninstall` removes what `install` wrote, and nothing else.
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.client.errors import UsageError
from stoker.frontdoors.doors import DOORS, enter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args

USAGE = (
    "door",
    "door NAME [ARG ...]",
    "door install NAME ... | --all [--dir DIR] [--force]",
    "door uninstall NAME ... | --all [--dir DIR]",
)
OPTIONS = (
    Option("--all", None, "every door"),
    Option("--dir", "DIR", "where to write, or to remove (beside stoker; wherever it was written)"),
    Option("--force", None, "also when another program of that name is on PATH"),
)
ACTS = {
    "install": "write commands of these names",
    "uninstall": "remove the commands that install wrote",
}


def main(argv: list[str]) -> int:
    """List the doors, enter one, install or uninstall."""
    first = argv[0] if argv else ""
    if first in DOORS:
        return enter(first, argv[1:])
    if first in {"-h", "--help"}:
        from stoker.cli.help import of_verb

        print(of_verb(USAGE, __doc__ or "", OPTIONS))
        return 0
    args = parse(OPTIONS, argv, verb="door")
    if not args.words:
        _check_options(args, "list")
        return _list(args.flag("json"))
    act, *names = args.words
    if act not in ACTS:
        raise _no_such(act, [*DOORS, *ACTS])
    _check_options(args, act)
    return _install(args, names) if act == "install" else _uninstall(args, names)


def complete(words: list[str]) -> list[str] | None:
    """Return what could follow `stoker door`; None where files could."""
    names = [f"{name}\t{text}" for name, text in DOORS.items()]
    if len(words) == 1:
        return [*names, *(f"{act}\t{text}" for act, text in ACTS.items())]
    if words[0] not in ACTS or words[-2] == "--dir":
        return None
    if words[-1].startswith("-"):
        return [f"{option.names[0]}\t{option.text}" for option in OPTIONS]
    return names


def _list(as_json: bool) -> int:
    from stoker.cli import output
    from stoker.cli.table import Column, write
    from stoker.frontdoors.doorfiles import ANOTHER, OURS, found_on_path

    doors = []
    for name, text in DOORS.items():
        path, whose = found_on_path(name)
        doors.append({"name": name, "text": text, "path": path, "whose": whose})
    if as_json:
        output.emit({"doors": doors})
        return 0
    told = {OURS: "yes", ANOTHER: "another program", None: "no"}
    rows = [[door["name"], told[door["whose"]], door["path"] or "", door["text"]] for door in doors]
    columns = [Column("DOOR"), Column("ON PATH"), Column("WHERE", cut=True), Column("FOR")]
    write(columns, [[str(cell) for cell in row] for row in rows])
    output.say(
        "Enter one: stoker door NAME ...   Give it a name of its own: stoker door install NAME"
    )
    return 0


def _install(args: Args, names: list[str]) -> int:
    from stoker.cli import output
    from stoker.frontdoors.doorfiles import install

    done = install(_chosen(args, names), args.text("dir"), force=args.flag("force"))
    if args.flag("json"):
        output.emit(done.as_dict())
        return 0
    for line in done.sentences():
        output.say(f"stoker: {line}")
    return 0


def _uninstall(args: Args, names: list[str]) -> int:
    from stoker.cli import output
    from stoker.frontdoors.doorfiles import uninstall

    removed, left = uninstall(_chosen(args, names), args.text("dir"), everything=args.flag("all"))
    if args.flag("json"):
        output.emit({
            "removed": removed,
            "left": [{"path": path, "why": why} for path, why in left.items()],
        })  # fmt: skip
    else:
        for path in removed:
            output.say(f"stoker: removed {path}")
        for path, why in left.items():
            output.say(f"stoker: {path} left as it is: {why}")
    return 1 if left else 0


def _chosen(args: Args, names: list[str]) -> list[str]:
    """Return the doors meant, each once."""
    if args.flag("all") == bool(names):
        raise UsageError("Name the doors, or write --all. They are listed by: stoker door")
    for name in names:
        if name not in DOORS:
            raise _no_such(name, DOORS)
    return list(dict.fromkeys(names or DOORS))


def _check_options(args: Args, act: str) -> None:
    allowed = {"list": (), "install": ("all", "dir", "force"), "uninstall": ("all", "dir")}[act]
    for option in OPTIONS:
        if option.key in args.values and option.key not in allowed:
            where = "stoker door install" + (" or uninstall" if option.key != "force" else "")
            raise UsageError(f"--{option.key} is an option of {where}.")


def _no_such(word: str, choices: dict[str, str] | list[str]) -> UsageError:
    from stoker.cli.nearest import nearest

    guess = nearest(word, choices)
    hint = f"Did you mean {guess}?" if guess else "They are listed by: stoker door"
    return UsageError(f"There is no door {word!r}. {hint}")
