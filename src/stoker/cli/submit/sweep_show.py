"""A sweep and its trials, the best first; which parameters matter; a report to keep.

Without a name, the newest sweep. The report is one HTML file that needs nothing else.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import WATCH, Args, Option, parse
from stoker.cli.output import colour, table, times
from stoker.cli.output.estimates import estimate_sentence
from stoker.cli.output.sweep_text import (
    best_text,
    completed_count,
    number_text,
    params_text,
    value_text,
)
from stoker.cli.output.table import Cell, Column
from stoker.cli.session import connect_existing
from stoker.client.client import Client
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("sweep show [SWEEP] [OPTIONS]",)
OPTIONS = (
    WATCH,
    Option("--csv", None, "print CSV: all trials, all parameters"),
    Option("--html", "[=FILE]", "write a report (sweep-17.html) and print its name"),
    Option("-a/--all", None, "print all trials (default on a terminal: the first 50)"),
    Option("--no-header", None, "print only the table, without a header line"),
)
MAX_ROWS = 50
BAR_WIDTH = 20
"""Characters of the longest importance bar."""
EIGHTHS = " ▏▎▍▌▋▊▉"
STATE_ORDER = {"RUNNING": 1, "COMPLETING": 1, "SUSPENDED": 1, "CONFIGURING": 2, "QUEUED": 2,
         "PENDING": 3, "COMPLETED": 4}  # fmt: skip
"""Order of trials without a value, after those with one."""


def main(argv: list[str]) -> int:
    """Print one sweep."""
    args = parse(OPTIONS, argv, verb="sweep")
    names = [word for word in args.words if not (args.flag("html") and word.endswith(".html"))]
    if len(names) > 1 or len(args.words) - len(names) > 1:
        raise UsageError("One sweep at a time. For example: stoker sweep show 17")
    client = connect_existing(autostart=False)
    name = names[0] if names and names[0] not in {"last", "-1"} else newest_sweep(client)
    if args.flag("html"):
        file = args.text("html") or next((w for w in args.words if w.endswith(".html")), None)
        return _write_html(client, name, file, args)
    if args.flag("watch"):
        from stoker.cli.session.live import watch

        return watch(
            args, lambda: client.get_sweep(name), lambda reply, _: sweep_lines(reply, args)
        )
    return show_sweep(client, name, args)


def show_sweep(client: Client, name: str, args: Args) -> int:
    """Print one sweep as text, JSON or CSV."""
    reply = client.get_sweep(name)
    if args.flag("json"):
        output.emit({**reply, "importance": parameter_importance(reply)})
    elif args.flag("csv"):
        print(to_csv(reply), end="")
    else:
        print("\n".join(sweep_lines(reply, args)))
        failed = [str(trial["label"]) for trial in reply["trials"] if _has_failed(trial)]
        if failed:
            from stoker.cli.session.follow import dismiss_jobs

            dismiss_jobs(client, failed)
    return 0


def newest_sweep(client: Client) -> str:
    """Return the label of the newest sweep."""
    sweeps = client.sweeps(all=True)["sweeps"]
    if not sweeps:
        raise UsageError("There are no sweeps. Start with: stoker sweep COMMAND lr=0.1,0.01")
    return str(sweeps[-1]["label"])


def sweep_lines(reply: JsonObject, args: Args) -> list[str]:
    """Return the summary of a sweep and the table of its trials."""
    width = table.terminal_width()
    trials = ranked_trials(reply)
    columns, rows = trial_table(reply, trials)
    header = not args.flag("no_header")
    lines = summary_lines(reply, width) if header else []
    cut = width is not None and not args.flag("all") and len(rows) > MAX_ROWS
    if rows:
        lines += [""] if header else []
        shown = rows[:MAX_ROWS] if cut else rows
        lines += table.render(columns, shown, header=header, width=width)
    if cut:
        lines.append(f"... and {len(rows) - MAX_ROWS:,} more (stoker sweep show -a)")
    return lines


# ---------------------------------------------------------------------------- the head


def summary_lines(reply: JsonObject, width: int | None) -> list[str]:
    """Return the lines about the whole sweep."""
    sweep = reply["sweep"]
    head = colour.paint(f"Sweep {sweep['label']} {output.clean(sweep['name'])}", "bold")
    goal = f", {sweep['goal']}s {output.clean(sweep['metric'])}" if sweep.get("metric") else ""
    lines = [f"{head}  {sweep['state']}  {sweep['method']}{goal}"]
    lines.append(f"  trials      {counts_line(sweep)}")
    if (sweep.get("foreseen") or {}).get("end"):
        lines.append(f"  ends        {estimate_sentence(sweep['foreseen']['end'])}")
    if sweep.get("best"):
        trial = sweep["best"]
        lines.append(
            f"  best        {best_text(sweep)}  ({trial['label']}: {params_text(trial['params'])})"
        )
    if sweep.get("note"):
        lines.append(f"  note        {output.clean(sweep['note'])}")
    lines += importance_lines(parameter_importance(reply))
    lines = [line if width is None else shorten_plain(line, width) for line in lines]
    missing = missing_metric_text(reply)
    return [*lines, f"  metric      {missing}"] if missing else lines


def missing_metric_text(reply: JsonObject) -> str:
    """Return what to do if trials have ended and none has the metric; else nothing."""
    sweep, metric = reply["sweep"], reply["definition"].get("metric")
    has_values = any(trial.get("value") is not None for trial in reply["trials"])
    if not metric or not completed_count(sweep) or has_values:
        return ""
    name, source = output.clean(metric["name"]), metric["source"]
    if sweep.get("reading"):
        return f"reading the metrics of {output.counted(int(sweep['reading']), 'trial')}"
    first = next((t["label"] for t in reply["trials"] if t["state"] == "COMPLETED"), sweep["label"])
    if source["kind"] == "log":
        what = f"no line of a log matches {source['pattern']!r}: stoker logs {first}"
    elif source["kind"] == "file":
        what = f"{output.clean(source['path'])} does not exist or lacks the metric"
    else:
        call = f"{name}=..." if name.isidentifier() else f"**{{'{name}': ...}}"
        what = (
            f"report it with stoker.training.report({call}), or submit again with "
            "--new and --metric-regex or --metric-file"
        )
    return f"no trial has reported '{name}'; {what}"


def shorten_plain(line: str, width: int) -> str:
    """Cut a line to the width of the terminal, unless it has colours."""
    return line if "\x1b" in line else table.shorten(line, width)


def counts_line(sweep: JsonObject) -> str:
    """Return `7 of 20 done (3 stopped early), 2 running, 10 waiting, 1 failed`."""
    counts, total = sweep["counts"], sweep.get("total")
    of_all = f" of {total:,}" if total is not None else ""
    early = f" ({counts['stopped']:,} stopped early)" if counts.get("stopped") else ""
    parts = [f"{completed_count(sweep):,}{of_all} done{early}"]
    others = ("running", "waiting", "failed", "cancelled")
    parts += [f"{counts[name]:,} {name}" for name in others if counts.get(name)]
    if sweep.get("max_running"):
        parts.append(f"at most {sweep['max_running']} at a time")
    held = sweep.get("held") and not sweep.get("ended_at")
    return ", ".join([*parts, "held"] if held else parts)


def parameter_importance(reply: JsonObject) -> dict[str, float]:
    """Return the importance of each parameter, the highest first."""
    from stoker.sweep.results.comparison import counts
    from stoker.sweep.results.importance import importance

    rows = [
        (trial["params"], trial["value"])
        for trial in reply["trials"]
        if trial.get("value") is not None and counts(trial)
    ]
    names = varying_parameters(reply)
    shares = importance([({name: p.get(name) for name in names}, value) for p, value in rows])
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def importance_lines(shares: dict[str, float]) -> list[str]:
    """Return one line with a bar per parameter."""
    lines: list[str] = []
    longest = max((table.display_width(output.clean(name)) for name in shares), default=0)
    for name, share in list(shares.items())[:8]:
        title = "importance" if not lines else ""
        full, part = divmod(round(share * BAR_WIDTH * 8), 8)
        bar = "█" * full + (EIGHTHS[part] if part else "")
        text = output.clean(name)
        space = " " * (longest - table.display_width(text))
        bar = colour.paint(bar, "cyan")
        lines.append(f"  {title:<10}  {text}{space}  {share:4.2f}  {bar}".rstrip())
    return lines


# --------------------------------------------------------------------------- the trials


def ranked_trials(reply: JsonObject) -> list[JsonObject]:
    """Return trials with a value, the best first, then unfinished ones, then all others.

    Failed and cancelled trials are among the others, whatever their last value.
    """
    sign = -1.0 if reply["sweep"].get("goal") == "maximize" else 1.0

    def sort_key(trial: JsonObject) -> tuple[int, float, int]:
        value = trial.get("value")
        if value is not None and trial["state"] in STATE_ORDER:
            return 0, sign * value, trial["number"]
        return STATE_ORDER.get(str(trial["state"]), 5), 0.0, trial["number"]

    return sorted(reply["trials"], key=sort_key)


def varying_parameters(reply: JsonObject) -> list[str]:
    """Return the parameters that differ, or may differ, between trials."""
    definition = reply["definition"]
    specs = definition.get("parameters") or {}
    names = list(specs) or list((definition.get("points") or [{}])[0])
    fixed = {name for name, spec in specs.items() if "value" in spec}
    values: dict[str, set[str]] = {name: set() for name in names}
    for trial in reply["trials"]:
        for name, value in trial["params"].items():
            values.setdefault(name, set()).add(repr(value))
    several = [name for name in values if len(values[name]) > 1]
    return several or [name for name in names if name not in fixed] or names


def trial_table(
    reply: JsonObject, trials: list[JsonObject]
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows, with one column per varying parameter."""
    names, metric = varying_parameters(reply), reply["sweep"].get("metric")
    columns = [Column("TRIAL", right=True), Column("STATE")]
    if metric:
        columns += [Column(output.clean(metric).upper(), right=True), Column("STEP", right=True)]
    columns.append(Column("TIME", right=True))
    columns += [Column(output.clean(name), cut=True) for name in names]
    rows = []
    for trial in trials:
        row = [str(trial["label"]), _state_cell(trial)]
        if metric:
            row += [number_text(trial.get("value")), number_text(trial.get("step"))]
        row.append(times.duration(trial.get("elapsed")) or "-")
        row += [value_text(trial["params"].get(name)) for name in names]
        rows.append(row)
    causes = [str(trial.get("cause") or "") if _has_failed(trial) else "" for trial in trials]
    if any(causes):
        table.insert_column(columns, rows, len(columns), Column("CAUSE", cut=True), causes)
    return columns, rows


def _state_cell(trial: JsonObject) -> str:
    """Return the state; a trial that was stopped early has its own."""
    if trial.get("stopped"):
        return Cell("STOPPED", "dim")
    return Cell(trial["state"], colour.STATE_COLOURS.get(str(trial["state_code"]), ""))


def _has_failed(trial: JsonObject) -> bool:
    return trial["state"] not in {*STATE_ORDER, "CANCELLED"}


def to_csv(reply: JsonObject) -> str:
    """Return all fields of all trials as CSV."""
    import csv
    import io

    from stoker.client import fast_json

    defined = reply["definition"].get("parameters") or {}
    from_trials = (name for trial in reply["trials"] for name in trial["params"])
    names = list(dict.fromkeys((*defined, *from_trials)))
    fields = ("label", "number", "state", "stopped", "value", "step", "elapsed", "started_at",
             "ended_at", "attempt", "node", "cause")  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fields, *(f"params.{name}" if name in fields else name for name in names)])
    for trial in ranked_trials(reply):
        cells = [*(trial.get(field) for field in fields), *(trial["params"].get(n) for n in names)]
        writer.writerow(
            fast_json.dumps(cell) if isinstance(cell, list | dict | bool) else cell
            for cell in cells
        )
    return text.getvalue()


def _write_html(client: Client, name: str, file: str | None, args: Args) -> int:
    from stoker.cli.output.sweep_report import write_report

    reply = client.get_sweep(name)
    path = file or f"sweep-{reply['sweep']['label']}.html"
    write_report(client, reply, ranked_trials(reply), path)
    if args.flag("json"):
        return output.emit({"path": path})
    print(path)
    return 0
