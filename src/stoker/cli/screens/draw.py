"""The screens as lines of text."""

from __future__ import annotations

from stoker.cli.output.alarm_text import alarm_line, short_alarm
from stoker.cli.output.plot import plot
from stoker.cli.output.times import duration, relative
from stoker.cli.screens import model as m
from stoker.cli.screens.lines import (
    Piece,
    bars,
    column_width,
    fit,
    pad,
    progress_bar,
    uncoloured,
    window,
)
from stoker.cli.screens.model import TopModel
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TITLES = {
    m.GPUS: "GPUs",
    m.QUEUE: "Queue",
    m.JOB: "Job",
    m.SWEEPS: "Sweeps",
    m.NODES: "Machines",
    m.HELP: "Help",
}
STATE_COLOURS = {
    "RUNNING": "green", "CONFIGURING": "green", "COMPLETING": "green", "PENDING": "yellow",
    "SUSPENDED": "blue", "QUEUED": "yellow", "COMPLETED": "dim", "CANCELLED": "dim",
}  # fmt: skip
GPU_COLOURS = {"free": "green", "busy": "cyan", "shared": "cyan", "foreign": "yellow",
               "drained": "magenta", "unreachable": "red", "unavailable": "red"}  # fmt: skip
SWEEP_COLOURS = {"RUNNING": "green", "WAITING": "yellow", "HELD": "yellow"}
ENDED_TRIALS = ("done", "stopped", "failed", "cancelled")
KEYS = "1 GPUs  2 queue  3 job  4 sweeps  5 machines  / search  ? help  q quit"
HELP = (
    "1 2 3 4 5      GPUs, queue, the selected job, sweeps, machines",
    "j k ↓ ↑        move; PgDn PgUp, g and G: further",
    "Enter          open the selected job, or the trials of a sweep; Esc goes back",
    "/              search: label, name, user, %label, command; Esc clears it",
    "s              sort the queue by start, submission, elapsed time or name",
    "x              select jobs of the queue; Esc deselects them",
    "c h u r        cancel, hold, release or retry the selected jobs or sweep",
    "l              read the output of the job again",
    "q ^C           quit; ^Z suspends",
)


def draw(model: TopModel, width: int, height: int, now: float, compact: bool = False) -> list[str]:
    """Return the lines of the screen, `height` of them at most."""
    head = [_title(model, width)]
    if model.note:
        head.append(fit([(model.note, "red")], width))
    foot = [fit([(model.message or KEYS, "bold" if model.message else "dim")], width)]
    space = max(height - len(head) - len(foot), 1)
    if model.screen == m.GPUS:
        body = gpu_lines(model, width, space, now, compact)
    elif model.screen == m.QUEUE:
        body = queue_lines(model, width, space, now)
    elif model.screen == m.JOB:
        body = job_lines(model, width, space)
    elif model.screen == m.SWEEPS:
        body = sweep_lines(model, width, space)
    elif model.screen == m.NODES:
        body = node_lines(model, width, space)
    else:
        body = [fit([(line, "")], width) for line in HELP]
    body = body[:space]
    return [*head, *body, *[""] * (space - len(body)), *foot][:height]


def _title(model: TopModel, width: int) -> str:
    counts = ", ".join(
        f"{number} {state.lower().replace('_', ' ')}" for state, number in model.counts.items()
    )
    free = sum(row[5] == "free" for row in model.readings.values())
    gpus = f"  {free} of {len(model.readings)} GPUs free" if model.readings else ""
    return fit(
        [(f"stoker  {TITLES[model.screen]}", "bold"), (gpus, ""), (f"  {counts}", "")], width
    )


# -- GPUs ---------------------------------------------------------------------------------


def gpu_lines(
    model: TopModel, width: int, height: int, now: float, compact: bool = False
) -> list[str]:
    """Return one or two lines per GPU: figures and jobs, and its last minutes as bars."""
    rows = list(model.readings.items())
    if not rows:
        return [fit([("no GPUs. To declare some: stoker daemon restart --gpus 0,1", "dim")], width)]
    tall = not compact and bool(model.history) and len(rows) * 2 <= height
    shown = height // (2 if tall else 1)
    top = model.top = window(model.cursor, min(model.top, max(len(rows) - shown, 0)), shown)
    facts = {f"{gpu['node']}/{gpu['id']}": gpu for gpu in model.gpus}
    name_width = max(len(key) for key, _ in rows) + 1
    lines = []
    for at, (key, row) in list(enumerate(rows))[top : top + shown]:
        gpu = facts.get(key, {})
        pieces: list[Piece] = [(pad(key, name_width), "bold")]
        if not tall and width >= 110:
            pieces.append((bars(model.history.get(key, []), 20) + " ", "cyan"))
        pieces += _gpu_pieces(model, gpu, row, now)
        pieces += _alarm_pieces(_gpu_alarms(model, key, row), now)
        lines.append(fit(pieces, width, marked=at == model.cursor))
        if tall:
            size = max(min(width - name_width - 3, m.HISTORY_POINTS), 1)
            text = bars(model.history.get(key, []), size)
            lines.append(fit([(" " * name_width, ""), (text, "cyan")], width))
    return lines


def _gpu_pieces(model: TopModel, gpu: JsonObject, row: list[Any], now: float) -> list[Piece]:
    _, utilization, used, temperature, power, state, jobs = row
    total = gpu.get("memory")
    memory = f"{used / 1024:.1f}/{total / 1024:.0f}G" if used is not None and total else "-"
    pieces: list[Piece] = [
        (pad("-" if utilization is None else f"{utilization:.0f}%", 5, right=True), ""),
        (pad(memory, 11, right=True), ""),
        (pad("-" if temperature is None else f"{temperature:.0f}°C", 6, right=True), "dim"),
        (pad("-" if power is None else f"{power:.0f}W", 6, right=True) + "  ", "dim"),
    ]
    if not jobs:
        pieces.append((state, GPU_COLOURS.get(state, "")))
        if gpu.get("foreign_process") and state != "free":
            pieces.append((f"  {gpu['foreign_process']}", "dim"))
        return pieces
    for number, (id, share, _) in enumerate(jobs):
        job = model.running.get(id, {})
        text = "  " * bool(number) + f"{job.get('label', id)} {job.get('name', '')}"
        pieces.append((text, "green"))
        part = "" if share == "1" else f" ×{share}"
        pieces.append((f"{part} {job.get('user', '')} {_times(job, now)}", ""))
    return pieces


def _gpu_alarms(model: TopModel, key: str, row: list[Any]) -> list[JsonObject]:
    """Return the alarms of a GPU, and those of its jobs that are about no other GPU."""
    jobs = {job[0] for job in row[6]}
    return [
        alarm for alarm in model.alarms
        if f"{alarm['node']}/{alarm['gpu']}" == key
        or (alarm["gpu"] is None and alarm["job"] in jobs)
    ]  # fmt: skip


def _alarm_pieces(alarms: list[JsonObject], now: float) -> list[Piece]:
    return [(f"  ⚠ {short_alarm(alarms, now)}", "red")] if alarms else []


def _times(job: JsonObject, now: float) -> str:
    """Return how long a job has run, and how much is left."""
    if job.get("started") is None:
        return str(job.get("state", "")).lower()
    elapsed = max(now - job["started"], 0)
    left = ""
    if job.get("expected"):
        left = f" ~{duration(max(job['expected'] - now, 0))} left"
    elif job.get("limit"):
        left = f" ≤{duration(max(job['limit'] - elapsed, 0))} left"
    return duration(elapsed) + left


# -- queue --------------------------------------------------------------------------------


def queue_lines(model: TopModel, width: int, height: int, now: float) -> list[str]:
    """Return the jobs around the cursor."""
    search = f"/{model.text}  " if model.text else ""
    sweep = f"sweep {model.sweep['label']} {model.sweep['name']}  " if model.sweep else ""
    chosen = f", {len(model.chosen)} selected" if model.chosen else ""
    head = f"{sweep}{search}{model.total} jobs by {model.sort}{chosen}"
    rows = model.rows
    label = column_width([row["label"] for row in rows], 3, 14)
    name = column_width([row["name"] for row in rows], 4, max(23, width // 4))
    user = column_width([row["user"] for row in rows], 4, 9)
    status = column_width([_state(row) for row in rows], 7, 13)
    titles = f"{'JOB':<{label}}{'NAME':<{name}}{'USER':<{user}}{'STATE':<{status}}{'GPUS':>4}  TIME"
    lines = [fit([(head, "dim")], width), fit([(titles, "dim")], width)]
    shown = max(height - len(lines), 1)
    top = model.top = window(model.cursor, model.top, shown)
    for position in range(top, min(top + shown, model.total)):
        at = position - model.first
        if not 0 <= at < len(model.rows):
            lines.append(fit([("…", "dim")], width))
            continue
        row = model.rows[at]
        gpus = "-" if row["gpus"] is None else f"{row['gpus']:g}"
        pieces: list[Piece] = [
            (pad(row["label"], label - 1) + " ", "bold"), (pad(row["name"], name - 1) + " ", ""),
            (pad(row["user"], user - 1) + " ", "dim"),
            (pad(_state(row), status), STATE_COLOURS.get(row["state"], "red")),
            (pad(gpus, 4, right=True) + "  ", ""), (_queue_time(row, now), ""),
            *_alarm_pieces(model.job_alarms(row["id"]), now),
        ]  # fmt: skip
        is_chosen = row["id"] in model.chosen
        lines.append(fit(pieces, width, marked=position == model.cursor, chosen=is_chosen))
    if not model.total:
        lines.append(fit([("no jobs" if not model.text else "no job matches", "dim")], width))
    return lines


def _state(row: JsonObject) -> str:
    return "HELD" if row["held"] and row["state"] == "PENDING" else str(row["state"])


def _queue_time(row: JsonObject, now: float) -> str:
    if row["state"] in m.HOLDING:
        epochs = f"  epoch {row['epochs']}" if row["epochs"] is not None else ""
        if epochs and row["total_epochs"]:
            epochs += f"/{row['total_epochs']}"
        return f"{_times(row, now)}{epochs}  {row['node'] or ''}"
    if row["state"] == "PENDING":
        if row["expected"]:
            return f"starts in ~{duration(max(row['expected'] - now, 0))}"
        return f"waits {duration(max(now - row['submitted'], 0))}"
    return f"{row['cause'] or ''}"


# -- job ----------------------------------------------------------------------------------


def job_lines(model: TopModel, width: int, height: int) -> list[str]:
    """Return a job: what it is, why it waits, its first metric, and the end of its output."""
    job = model.job
    if job is None:
        return [
            fit([("no job is selected: choose one in the queue (2), then Enter", "dim")], width)
        ]
    gpus = job["request"]["gpus"] or "0"
    facts = f"{gpus} GPU{'s' * (gpus != '1')}  queue {job['queue']}  {job['node'] or ''}"
    facts += f"  submitted {relative(job['submitted_at'])}"
    lines = [
        fit([(f"{job['label']} {job['name']}", "bold"), (f"  {job['user']}  ", "dim"),
             (job["state"], STATE_COLOURS.get(job["state"], "red")),
             (f"  {job['cause'] or ''}", "")], width),
        fit([(facts, "dim")], width),
        fit([(job["command"], "")], width),
    ]  # fmt: skip
    text = model.why.get("text") or job.get("reason_text")
    if text and job["state"] == "PENDING":
        lines.append(fit([(str(text), "yellow")], width))
    lines += [fit([(line, "")], width) for line in (model.why.get("unblocks") or ())[:3]]
    lines += [
        fit([(alarm_line(alarm), "red")], width) for alarm in model.job_alarms(int(job["id"]))
    ]
    if model.curve is not None and height >= 20:
        name, points = model.curve
        last = points[-1][1]
        lines.append(fit([(f"{name} {last:.4g}" if last is not None else name, "cyan")], width))
        lines += [fit([(line, "cyan")], width) for line in plot(points, max(width - 4, 10), 5)]
    lines.append("")
    space = max(height - len(lines), 1)
    return lines + [fit([(uncoloured(line), "")], width) for line in model.log[-space:]]


# -- sweeps -------------------------------------------------------------------------------


def sweep_lines(model: TopModel, width: int, height: int) -> list[str]:
    """Return the sweeps: progress as a bar, trials by status, best value, expected end."""
    head = f"{'SWEEP':<8}{'NAME':<20}{'USER':<10}{'STATE':<11}{'PROGRESS':<13}{'BEST':<22}TRIALS"
    lines = [fit([(head, "dim")], width)]
    shown = max(height - 1, 1)
    top = model.top = window(model.cursor, min(model.top, len(model.sweeps)), shown)
    for at, sweep in list(enumerate(model.sweeps))[top : top + shown]:
        counts, best = sweep["counts"], sweep["best"]
        ended = sum(counts.get(status, 0) for status in ENDED_TRIALS)
        total = sweep["total"] or sweep["issued"]
        value = (
            f"{sweep['metric']} {best['value']:.4g}" if best and best["value"] is not None else ""
        )
        trials = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        end = f"  ends {relative(sweep['eta'])}" if sweep["eta"] else ""
        pieces: list[Piece] = [
            (pad(sweep["label"], 8), "bold"), (pad(sweep["name"], 19) + " ", ""),
            (pad(sweep["user"], 9) + " ", "dim"),
            (pad(sweep["state"], 11), SWEEP_COLOURS.get(sweep["state"], "dim")),
            (pad(progress_bar(ended, total, 8), 13), "green"),
            (pad(value, 21) + " ", "cyan"), (trials, ""), (end, "dim"),
            (f"  {sweep['note']}" if sweep["note"] else "", "red"),
        ]  # fmt: skip
        lines.append(fit(pieces, width, marked=at == model.cursor))
    if not model.sweeps:
        lines.append(fit([("no sweeps", "dim")], width))
    return lines


# -- machines -----------------------------------------------------------------------------


def node_lines(model: TopModel, width: int, height: int) -> list[str]:
    """Return the nodes: state, GPUs, cores, memory and jobs."""
    used = f"{'GPU USED':>9}{'CPU USED':>11}{'MEM USED':>14}"
    head = f"{'MACHINE':<16}{'STATE':<13}{used}{'JOBS':>6}  NOTE"
    lines = [fit([(head, "dim")], width)]
    shown = max(height - 1, 1)
    top = model.top = window(model.cursor, min(model.top, len(model.nodes)), shown)
    for at, node in list(enumerate(model.nodes))[top : top + shown]:
        resources = node["resources"]
        state = node["state"]
        pieces: list[Piece] = [
            (pad(node["name"], 16), "bold"),
            (pad(state, 12) + " ", "green" if state == "up" else "red"),
            (pad(_amount(resources.get("gpu")), 9, right=True), ""),
            (pad(_amount(resources.get("cpu")), 11, right=True), ""),
            (pad(_amount(resources.get("mem"), 1024, "G"), 14, right=True), ""),
            (pad(str(node["jobs"]), 6, right=True) + "  ", ""),
            (node["why"] or "; ".join(node["notes"]), "dim"),
        ]
        lines.append(fit(pieces, width, marked=at == model.cursor))
    return lines


def _amount(resource: JsonObject | None, factor: int = 1, unit: str = "") -> str:
    """Return what is held and the total of a resource."""
    if resource is None:
        return "-"
    held, total = float(resource["held"]) / factor, float(resource["total"]) / factor
    return f"{held:.3g}/{total:.4g}{unit}"
