"""`stoker --help` and `stoker help VERB`."""

from __future__ import annotations

from stoker.cli.options import COMMON, Option
from stoker.cli.verbs import ALIASES, GROUPS, MODULES, VERBS

SELECTORS = (
    "Jobs are named by id (5), range (3-7, 3-10:2), list (1,4-6), array task (42_3),\n"
    "name, %label, `last` (the newest submission; also `-1`) or `all` (those not finished)."
)


def overview() -> str:
    """Return the list of verbs, in groups."""
    lines = ["stoker keeps your GPUs fed.", "", "  stoker [VERB] [OPTIONS] ...", ""]
    for title, verbs in GROUPS.items():
        lines.append(title)
        lines += [f"  {verb:<11}{text}" for verb, text in verbs.items()]
        lines.append("")
    lines += [SELECTORS, "", "Every verb takes --json. More: stoker help VERB; stoker --version"]
    return "\n".join(lines)


def verb_help(usage: tuple[str, ...], text: str, options: tuple[Option, ...]) -> str:
    """Return the help of one verb: usage, description, options."""
    lines = [f"  stoker {line}" for line in usage]
    lines += ["", text.strip()]
    lines += ["", "Options"]
    for option in (*options, *COMMON):
        names = _option_names(option)
        if len(names) > 30:
            lines.append(f"  {names}")
            names = ""
        lines.append(f"  {names:<30}  {option.text}")
    return "\n".join(lines)


def show(verb: str) -> int:
    """Print the help of a verb."""
    from importlib import import_module

    verb = ALIASES.get(verb, verb)
    module = import_module(MODULES[verb])
    if verb == "feed":
        return int(module.main(["--help"]))
    print(verb_help(module.USAGE, module.__doc__ or VERBS[verb], module.OPTIONS))
    return 0


def _option_names(option: Option) -> str:
    names = ", ".join(option.names)
    if option.value is None:
        return names
    return names + (option.value if option.value.startswith("[=") else f" {option.value}")
