"""What `stoker simulate` does: reads workloads, plays them under each policy, tells the result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stoker import wire
from stoker.core.policy.rules import ABOUT_AUTO, AUTO, PARAMETERS, POLICIES, policy
from stoker.core.units import BadValue
from stoker.places import describe_os_error
from stoker.simulate.arguments import SimulateArgs, asked
from stoker.simulate.compare import Compared, compared, light, workloads
from stoker.simulate.progress import ProgressLine
from stoker.simulate.report import as_json, lines, size_lines, write
from stoker.simulate.summary import summary_json, summary_lines
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import STDIN
from stoker.simulate.workload import Workload
from stoker.terminal import FilteredStream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the verbs and return its exit code; what is wrong is said in one sentence."""
    verb, *args = sys.argv[1:] if argv is None else argv
    streams: Any = sys.stdout, sys.stderr
    filtered: Any = [each and FilteredStream(each) for each in streams]
    sys.stdout, sys.stderr = filtered
    try:
        return _run(verb, args)
    finally:
        sys.stdout, sys.stderr = streams


def _run(verb: str, args: list[str]) -> int:
    try:
        code = VERBS[verb](args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = wire.EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = wire.EXIT_OK
    except (TraceError, BadValue) as error:
        code = _refused(str(error), "usage", wire.EXIT_USAGE, "--json" in args)
    except OSError as error:
        code = _refused(describe_os_error(error), "failed", wire.EXIT_FAILED, "--json" in args)
    return code


def _refused(message: str, code: str, exit: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "exit": exit}}))
    else:
        say(message)
    return exit


def say(text: str) -> None:
    """Say something to the person, on stderr."""
    if sys.stderr is not None:
        print(f"stoker: {text}", file=sys.stderr, flush=True)


def simulate(args: Sequence[str]) -> int:
    """Compare policies on recorded workloads."""
    if "--list-policies" in args:
        return _list("--json" in args)
    wanted = asked(args)
    todo, none = _read(wanted, ProgressLine(0, quiet=wanted.json))
    jobs = sum(len(each.jobs) for each in todo) * len(wanted.variants)
    meter = ProgressLine(jobs, quiet=wanted.json)
    several = len(todo) > 1
    found: list[Compared] = []
    try:
        todo.reverse()
        while todo:
            # Taken off the list, so that a workload that is done takes no room.
            each = compared(todo.pop(), wanted, meter)
            meter.clear()
            if not wanted.json:
                print(
                    "\n".join(told(each, wanted.baseline)), end="\n\n" if todo else "\n", flush=True
                )
            if wanted.html is not None:
                _page(each, wanted, len(found) if several else None)
            found.append(each)
    finally:
        meter.clear()
    if wanted.json:
        whole = _json(found, wanted, none)
        print(json.dumps(whole, indent=2 if sys.stdout.isatty() else None))
    elif several:
        print("\n" + "\n".join(summary_lines(found, wanted.baseline)))
    for sentence in none:
        say(f"skipped: {sentence}")
    return wire.EXIT_OK


def _read(wanted: SimulateArgs, meter: ProgressLine) -> tuple[list[Workload], list[str]]:
    """What is to be replayed, and why some of it cannot be at all."""
    todo: list[Workload] = []
    none: list[str] = []
    try:
        for path in wanted.traces:
            meter.show(f"reading {'standard input' if path == STDIN else path}")
            for each in workloads(replace(wanted, traces=[path])):
                if each.jobs:
                    todo.append(each)
                else:
                    none.append(f"{each.title}: {each.notes[-1]}")
    except TraceError as error:
        said = str(error)
        if path == STDIN and said.startswith(str(STDIN)):
            raise TraceError(f"standard input{said.removeprefix(str(STDIN))}") from None
        raise
    finally:
        meter.clear()
    if not todo:
        raise BadValue(none[0])
    return todo, none


def told(each: Compared, base: str | None) -> list[str]:
    """One workload as a person reads it."""
    width = terminal_width()
    text = [each.heading, "", *lines(each.figures, width, base)]
    sizes = {group.name for figures in each.figures for group in figures.by_size}
    if len(sizes) > 1:
        text += ["", *size_lines(each.figures, width)]
    if each.notes:
        text += ["", *(f"note: {note}" for note in each.notes)]
    return text


def terminal_width() -> int | None:
    """Columns of the terminal on stdout, None when it is none."""
    try:
        return (os.get_terminal_size(1).columns or 80) if os.isatty(1) else None
    except OSError:
        return None


def _json(found: Sequence[Compared], wanted: SimulateArgs, none: Sequence[str]) -> dict[str, Any]:
    told = [
        {**as_json(each.runs, wanted.baseline, each.figures), "notes": each.notes} for each in found
    ]
    whole: dict[str, Any] = {"seed": wanted.seed, "workloads": told}
    if none:
        whole["left_out"] = none
    if len(found) > 1:
        whole["summary"] = summary_json(found, wanted.baseline)
    return whole


def _page(each: Compared, wanted: SimulateArgs, number: int | None) -> None:
    """Write the page of one workload, under a name of its own where there are several."""
    assert wanted.html is not None
    path = wanted.html if number is None else _numbered(wanted.html, number, each.workload)
    write(path, each.runs, each.workload, each.notes, wanted.baseline, each.figures)
    each.runs = [light(run) for run in each.runs]
    say(f"wrote {path}")


def _numbered(path: Path, number: int, title: str) -> Path:
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in title)
    return path.with_name(f"{path.stem}-{number + 1}-{plain[:60]}{path.suffix or '.html'}")


def _list(as_json: bool) -> int:
    """The policies that there are."""
    known = {AUTO: ABOUT_AUTO, **{each.name: each.about for each in POLICIES.values()}}
    if as_json:
        found = [
            {"name": name, "about": about,
             "parameters": {key: getattr(policy(name), key) for key in PARAMETERS}}
            for name, about in known.items()
        ]  # fmt: skip
        print(json.dumps({"policies": found}))
        return wire.EXIT_OK
    wide = max(map(len, known))
    for name, about in known.items():
        print(f"{name:<{wide}}  {about}")
    print(f"\nParameters, for --set POLICY.NAME=VALUE: {', '.join(PARAMETERS)}")
    return wire.EXIT_OK


def _what_if(args: Sequence[str]) -> int:
    from stoker.simulate.whatif.whatif import what_if

    return what_if(args)


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"simulate": simulate, "what-if": _what_if}
