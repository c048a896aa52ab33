"""Speed of the simulator."""

from pathlib import Path

from benchmarks.planner.goals import Section, Verdict
from benchmarks.planner.suite import MILLION, Outcome, Task, played, told


def speed(folder: Path, full: bool, quick: bool) -> Section:
    """Measure each workload in its own process, because of its memory."""
    names = ["philly 6c71a0" if quick else "philly", *([MILLION] if full else [])]
    rows, verdicts = [], []
    for name in names:
        told(f"replaying {name}")
        ours = next(iter(played([Task(name, "planner")], folder, {})))
        rows.append(_cells(name, ours))
        if name == "philly":
            verdicts.append(Verdict("speed", "all of Philly", ours.took, 60.0, "s"))
        if name == MILLION:
            minutes = ours.took / 60
            verdicts.append(Verdict("speed", "10⁶ jobs on 10⁵ GPUs", minutes, 30.0, "min"))
            verdicts.append(Verdict("speed", "its memory", ours.peak / 1024, 4.0, "GiB"))
    return Section(
        "The simulator, one core",
        ["workload", "jobs", "GPUs", "seconds", "µs per event", "MiB"],
        rows,
        verdicts,
        [] if full else ["With --full also 10⁶ synthetic jobs on 12,500 × 8 GPUs."],
    )


def _cells(name: str, ours: Outcome) -> list[str]:
    return [
        name, f"{ours.jobs:,}", f"{ours.gpus:,}", f"{ours.took:,.1f}",
        f"{ours.decision * 1e6:,.0f}", f"{ours.peak:,}",
    ]  # fmt: skip
