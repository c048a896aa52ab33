"""`stoker simulate`: read workloads, replay them under each policy, print the results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stoker import wire
from stoker.core.model.units import BadValue
from stoker.core.policies.parameters import RANGES
from stoker.core.policies.policy import ABOUT_AUTO, AUTO, POLICIES, policy
from stoker.places import describe_os_error
from stoker.simulate.arguments import Options, SimulateArgs, read_simulate_args
from stoker.simulate.compare import Comparison, compare, without_page_data, workloads
from stoker.simulate.progress import ProgressLine
from stoker.simulate.report.page import html
from stoker.simulate.report.table import as_json, lines, size_lines
from stoker.simulate.summary import summary_json, summary_lines
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import STDIN
from stoker.simulate.workload import Workload
from stoker.terminal import FilteredStream


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb with its options as JSON and its words; return the exit code."""
    verb, options, *words = sys.argv[1:] if argv is None else argv
    streams: Any = sys.stdout, sys.stderr
    filtered: Any = [stream and FilteredStream(stream) for stream in streams]
    sys.stdout, sys.stderr = filtered
    try:
        return _run(verb, Options(json.loads(options)), words)
    finally:
        sys.stdout, sys.stderr = streams


def _run(verb: str, options: Options, words: list[str]) -> int:
    try:
        code = VERBS[verb](options, words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = wire.EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = wire.EXIT_OK
    except (TraceError, BadValue) as error:
        code = _report_error(str(error), "usage", wire.EXIT_USAGE, options.flag("json"))
    except OSError as error:
        code = _report_error(
            describe_os_error(error), "failed", wire.EXIT_FAILED, options.flag("json")
        )
    return code


def _report_error(message: str, code: str, exit: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "exit": exit}}))
    else:
        print_message(message)
    return exit


def print_message(text: str) -> None:
    """Print a message for the user on stderr."""
    if sys.stderr is not None:
        print(f"stoker: {text}", file=sys.stderr, flush=True)


def simulate(options: Options, traces: Sequence[str]) -> int:
    """Compare policies on recorded workloads."""
    if options.flag("list_policies"):
        return _list_policies(options.flag("json"))
    args = read_simulate_args(options, traces)
    pending, skipped = _read_workloads(args, ProgressLine(0, quiet=args.json))
    jobs = sum(len(workload.jobs) for workload in pending) * len(args.variants)
    progress = ProgressLine(jobs, quiet=args.json)
    several = len(pending) > 1
    comparisons: list[Comparison] = []
    try:
        pending.reverse()
        while pending:
            # Popped, so that the memory of a finished workload is freed.
            comparison = compare(pending.pop(), args, progress)
            progress.clear()
            if not args.json:
                text = "\n".join(comparison_lines(comparison, args.baseline))
                print(text, end="\n\n" if pending else "\n", flush=True)
            if args.html is not None:
                _write_page(comparison, args, len(comparisons) if several else None)
            comparisons.append(comparison)
    finally:
        progress.clear()
    if args.json:
        reply = _json(comparisons, args, skipped)
        print(json.dumps(reply, indent=2 if sys.stdout.isatty() else None))
    elif several:
        print("\n" + "\n".join(summary_lines(comparisons, args.baseline)))
    for note in skipped:
        print_message(f"skipped: {note}")
    return wire.EXIT_OK


def _read_workloads(args: SimulateArgs, progress: ProgressLine) -> tuple[list[Workload], list[str]]:
    """Return the workloads to replay, and a note for each without a job that can run."""
    readable: list[Workload] = []
    skipped: list[str] = []
    try:
        for path in args.traces:
            progress.show(f"reading {'standard input' if path == STDIN else path}")
            for workload in workloads(replace(args, traces=[path])):
                if workload.jobs:
                    readable.append(workload)
                else:
                    skipped.append(f"{workload.title}: {workload.notes[-1]}")
    except TraceError as error:
        message = str(error)
        if path == STDIN and message.startswith(str(STDIN)):
            raise TraceError(f"standard input{message.removeprefix(str(STDIN))}") from None
        raise
    finally:
        progress.clear()
    if not readable:
        raise BadValue(skipped[0])
    return readable, skipped


def comparison_lines(comparison: Comparison, baseline: str | None) -> list[str]:
    """Return the report of one workload as text."""
    width = terminal_width()
    text = [comparison.heading, "", *lines(comparison.statistics, width, baseline)]
    sizes = {group.name for run in comparison.statistics for group in run.by_size}
    if len(sizes) > 1:
        text += ["", *size_lines(comparison.statistics, width)]
    if comparison.notes:
        text += ["", *(f"note: {note}" for note in comparison.notes)]
    return text


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout, None if stdout is not a terminal."""
    try:
        return (os.get_terminal_size(1).columns or 80) if os.isatty(1) else None
    except OSError:
        return None


def _json(
    comparisons: Sequence[Comparison], args: SimulateArgs, skipped: Sequence[str]
) -> dict[str, Any]:
    reports = [
        {
            **as_json(comparison.runs, args.baseline, comparison.statistics),
            "notes": comparison.notes,
        }
        for comparison in comparisons
    ]
    reply: dict[str, Any] = {"seed": args.seed, "workloads": reports}
    if skipped:
        reply["left_out"] = skipped
    if len(comparisons) > 1:
        reply["summary"] = summary_json(comparisons, args.baseline)
    return reply


def _write_page(comparison: Comparison, args: SimulateArgs, number: int | None) -> None:
    """Write the page of one workload; with several workloads its name is numbered."""
    assert args.html is not None
    path = args.html if number is None else _numbered(args.html, number, comparison.workload)
    text = html(
        comparison.runs, comparison.workload, comparison.notes, args.baseline,
        comparison.statistics,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
    comparison.runs = [without_page_data(run) for run in comparison.runs]
    print_message(f"wrote {path}")


def _numbered(path: Path, number: int, title: str) -> Path:
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in title)
    return path.with_name(f"{path.stem}-{number + 1}-{plain[:60]}{path.suffix or '.html'}")


def _list_policies(as_json: bool) -> int:
    policies = {AUTO: ABOUT_AUTO, **{rules.name: rules.about for rules in POLICIES.values()}}
    if as_json:
        views = [
            {"name": name, "about": about,
             "parameters": {key: getattr(policy(name), key) for key in RANGES}}
            for name, about in policies.items()
        ]  # fmt: skip
        print(json.dumps({"policies": views}))
        return wire.EXIT_OK
    width = max(map(len, policies))
    for name, about in policies.items():
        print(f"{name:<{width}}  {about}")
    print(f"\nParameters, for --set POLICY.NAME=VALUE: {', '.join(RANGES)}")
    return wire.EXIT_OK


def _what_if(options: Options, words: Sequence[str]) -> int:
    from stoker.simulate.whatif.whatif import what_if

    return what_if(options, words)


VERBS: dict[str, Callable[[Options, list[str]], int]] = {"simulate": simulate, "what-if": _what_if}
