"""Facts about a training job as text: epochs, times, memory, preemption."""

from __future__ import annotations

from stoker.cli.output import clean, counted
from stoker.cli.output.job_table import epochs_text
from stoker.cli.output.times import approximate
from stoker.wire import JsonObject

BAR_WIDTH = 20


def bar(done: int, total: int) -> str:
    """Return a progress bar."""
    filled = min(round(BAR_WIDTH * done / total), BAR_WIDTH)
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def training_rows(view: JsonObject) -> list[tuple[str, str]]:
    """Return names and texts of what is known about a training job."""
    training = view["training"]
    counts = epochs_text(training) != "-"  # of a plain job only the memory is measured
    rows = [
        ("epochs", _epochs(training) if counts else ""),
        ("time left", _time_left(view, training)),
    ]
    rows += [("memory", _memory(view, training)), ("stopping", _stopping(view, training))]
    if training["preemptions"]:
        rows.append(("preempted", counted(training["preemptions"], "time")))
    if training["shortages"]:
        rows.append(("ran short", f"of GPU memory, {counted(training['shortages'], 'time')}"))
    rows += [("may have", _elastic(training)), ("speed", _speeds(training))]
    if training["overran"] and view.get("result") is None:
        rows.append(("late", _overrun_text(training)))
    if training["metrics"]:
        pairs = (f"{clean(name)} {_value(value)}" for name, value in training["metrics"].items())
        rows.append(("metrics", ", ".join(pairs)))
    if counts or training["snapshots"]:
        rows.append(("checkpoints", clean(training["checkpoints"])))
    return [(key, text) for key, text in rows if text]


def _value(value: str | float) -> str:
    """Return a metric value with few digits; NaN and infinity arrive as text."""
    return clean(value) if isinstance(value, str) else f"{value:g}"


def _epochs(training: JsonObject) -> str:
    done, total = training["epochs_done"], training["epochs"]
    text = f"{bar(done, total)} {done} of {total}" if total else f"{done} done"
    if training["epoch"] is not None and training["step"]:
        text += f"; epoch {training['epoch'] + 1}, step {training['step']}"
    seconds = training["epoch_seconds"]
    return f"{text}; {_seconds(seconds)} each" if seconds else text


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else approximate(seconds)


def _time_left(view: JsonObject, training: JsonObject) -> str:
    left = training["remaining_seconds"]
    if left is None or view.get("result") is not None:
        return ""
    expected = training["expected_seconds"]
    text = f"about {approximate(left)}"
    if not expected:
        return text
    if training["epoch_seconds"] is None:
        return f"{text}, from what you expected"
    return f"{text} (you expected {approximate(expected)} in all)"


def _memory(view: JsonObject, training: JsonObject) -> str:
    """Return requested, reserved and measured memory per GPU."""
    requested = (view.get("request") or {}).get("gpu_memory")
    parts = [
        f"{value} MiB {what}"
        for value, what in (
            (requested, "asked for"),
            (training["memory_reserved"], "set aside"),
            (training["memory_peak"], "seen at most"),
            (training["memory_now"], "now"),
        )
        if value is not None
    ]
    return f"{', '.join(parts)}, on each GPU" if parts else ""


def _stopping(view: JsonObject, training: JsonObject) -> str:
    stop = training["stopping"]
    if stop is None:
        return ""
    preemptor = f" for job {stop['by']}" if stop["by"] else ""
    if stop.get("ignored"):
        return f"asked to stop{preemptor} but has not stopped: {clean(stop['why'])}"
    return f"{_stop_time(view, training)}{preemptor}: {clean(stop['why'])}"


def _stop_time(view: JsonObject, training: JsonObject) -> str:
    if view["state"] == "SUSPENDED":
        return "when it is resumed"
    if view["state"] != "RUNNING" or not training["listening"]:
        return "as soon as it can"
    several = len((view.get("devices") or {}).get("gpu") or ()) > 1 or view.get("parts")
    return "at the end of its epoch or of the next" if several else "at the end of its epoch"


def _elastic(training: JsonObject) -> str:
    if training["elastic"] is None:
        return ""
    min_gpus, max_gpus = training["elastic"]
    text = f"{min_gpus} to {max_gpus} GPUs" if max_gpus else f"{min_gpus} or more GPUs"
    gpus_wanted = training["gpus_wanted"]
    return f"{text}; {gpus_wanted} wanted now" if gpus_wanted else text


def _speeds(training: JsonObject) -> str:
    """Return the time of an epoch per number of GPUs, and the speed-up."""
    speeds = training["speedups"]
    if len(speeds) < 2:
        return ""
    base = speeds[0][1]
    return ", ".join(
        f"{counted(gpus, 'GPU')}: {_seconds(seconds)}"
        + (f" ({base / seconds:.1f}x)" if number and seconds else "")
        for number, (gpus, seconds) in enumerate(speeds)
    )


def _overrun_text(training: JsonObject) -> str:
    expected, estimate = training["expected_seconds"], training["estimate_seconds"]
    numbers = ""
    if expected and estimate:
        numbers = f" ({approximate(expected)} said, about {approximate(estimate)} measured)"
    than = "was said" if expected else "expected from its epochs"
    return f"it runs much longer than {than}{numbers}; the remaining time is estimated from that"
