"""Options that several commands share, and what squeue and sinfo print for them."""

from __future__ import annotations

import time

from stoker.cli.options import Option
from stoker.compat.slurm.columns.formats import parse_codes, parse_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.cli.options import Args
    from stoker.compat.slurm.columns.formats import Column, Format

COMMON = (
    Option("-M/--clusters/--cluster", "NAMES", "", key="clusters"),
    Option("-v/--verbose", None, "", key="verbose"),
)
FILTERS = (
    Option("-t/--states/--state", "STATES", "", key="states"),
    Option("-p/--partition", "NAMES", "", key="partition"),
)
TABLE = (
    Option("-h/--noheader", None, "", key="noheader"),
    Option("-o/--format", "FORMAT", "", key="format"),
    Option("-O/--Format", "COLUMNS", "", key="columns"),
    Option("-l/--long", None, "", key="long"),
    Option("-S/--sort", "KEYS", "", key="sort"),
    Option("-a/--all", None, "", key="all"),
    *FILTERS,
    *COMMON,
)


def chosen_format(
    args: Args,
    names: Mapping[str, Column],
    codes: Mapping[str, Column],
    default: str,
    error: str,
) -> Format:
    """Return the format of `-O`, of `-o`, or the default one."""
    words = args.text("columns")
    if words is not None:
        return parse_names(words, names, error)
    return parse_codes(args.text("format") or default, codes, error)


def print_head(args: Args, chosen: Format) -> None:
    """Print what comes before the rows."""
    if args.flag("noheader"):
        return
    if args.flag("long"):
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    print(chosen.header())
