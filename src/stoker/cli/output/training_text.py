"""What is said of a training job: how far it is, how long it takes, what it shares."""

from __future__ import annotations

from stoker.cli.output import clean, counted
from stoker.cli.output.job_table import epochs
from stoker.cli.output.times import rough

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BAR = 20


def bar(done: int, total: int) -> str:
    """Return a bar that is filled as far as a job is."""
    filled = min(round(BAR * done / total), BAR)
    return "█" * filled + "░" * (BAR - filled)


def told(view: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a training job, in a sensible order."""
    training = view["training"]
    counts = epochs(training) != "-"  # of a plain job only the memory is measured
    found = [("epochs", _epochs(training) if counts else ""), ("time left", _left(view, training))]
    found += [("memory", _memory(view, training)), ("stopping", _stopping(view, training))]
    if training["preemptions"]:
        found.append(("preempted", counted(training["preemptions"], "time")))
    if training["shortages"]:
        found.append(("ran short", f"of GPU memory, {counted(training['shortages'], 'time')}"))
    found += [("may have", _elastic(training)), ("speed", _speeds(training))]
    if training["overran"] and view.get("result") is None:
        found.append(("late", _overrun(training)))
    if training["metrics"]:
        pairs = (f"{clean(name)} {_value(value)}" for name, value in training["metrics"].items())
        found.append(("metrics", ", ".join(pairs)))
    if counts or training["snapshots"]:
        found.append(("checkpoints", clean(training["checkpoints"])))
    return [(key, text) for key, text in found if text]


def _value(value: Any) -> str:
    """Return a number in few digits; what is none, such as nan, comes as a text."""
    return clean(value) if isinstance(value, str) else f"{value:g}"


def _epochs(training: dict[str, Any]) -> str:
    done, total = training["epochs_done"], training["epochs"]
    text = f"{bar(done, total)} {done} of {total}" if total else f"{done} done"
    if training["epoch"] is not None and training["step"]:
        text += f"; epoch {training['epoch'] + 1}, step {training['step']}"
    each = training["epoch_seconds"]
    return f"{text}; {_seconds(each)} each" if each else text


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else rough(seconds)


def _left(view: dict[str, Any], training: dict[str, Any]) -> str:
    left = training["remaining_seconds"]
    if left is None or view.get("result") is not None:
        return ""
    expected = training["expected_seconds"]
    text = f"about {rough(left)}"
    if not expected:
        return text
    if training["epoch_seconds"] is None:
        return f"{text}, from what you expected"
    return f"{text} (you expected {rough(expected)} in all)"


def _memory(view: dict[str, Any], training: dict[str, Any]) -> str:
    """Say what was asked, what is set aside, and what was seen, on each GPU."""
    asked = (view.get("request") or {}).get("gpu_memory")
    parts = [
        f"{value} MiB {what}"
        for value, what in (
            (asked, "asked for"),
            (training["memory_reserved"], "set aside"),
            (training["memory_peak"], "seen at most"),
            (training["memory_now"], "now"),
        )
        if value is not None
    ]
    return f"{', '.join(parts)}, on each GPU" if parts else ""


def _stopping(view: dict[str, Any], training: dict[str, Any]) -> str:
    stop = training["stopping"]
    if stop is None:
        return ""
    for_whom = f" for job {stop['by']}" if stop["by"] else ""
    if stop.get("ignored"):
        return f"asked to stop{for_whom} but has not stopped: {clean(stop['why'])}"
    return f"{_when(view, training)}{for_whom}: {clean(stop['why'])}"


def _when(view: dict[str, Any], training: dict[str, Any]) -> str:
    if view["state"] == "SUSPENDED":
        return "when it is resumed"
    if view["state"] != "RUNNING" or not training["listening"]:
        return "as soon as it can"
    several = len((view.get("devices") or {}).get("gpu") or ()) > 1 or view.get("parts")
    return "at the end of its epoch or of the next" if several else "at the end of its epoch"


def _elastic(training: dict[str, Any]) -> str:
    if training["elastic"] is None:
        return ""
    least, most = training["elastic"]
    text = f"{least} to {most} GPUs" if most else f"{least} or more GPUs"
    wanted = training["gpus_wanted"]
    return f"{text}; {wanted} wanted now" if wanted else text


def _speeds(training: dict[str, Any]) -> str:
    """Say how long an epoch takes on how many GPUs, and how much faster that is."""
    speeds = training["speedups"]
    if len(speeds) < 2:
        return ""
    base = speeds[0][1]
    return ", ".join(
        f"{counted(gpus, 'GPU')}: {_seconds(seconds)}"
        + (f" ({base / seconds:.1f}x)" if number and seconds else "")
        for number, (gpus, seconds) in enumerate(speeds)
    )


def _overrun(training: dict[str, Any]) -> str:
    expected, estimate = training["expected_seconds"], training["estimate_seconds"]
    figures = ""
    if expected and estimate:
        figures = f" ({rough(expected)} said, about {rough(estimate)} measured)"
    than = "was said" if expected else "expected from its epochs"
    return f"it runs much longer than {than}{figures}; the remaining time is estimated from that"
