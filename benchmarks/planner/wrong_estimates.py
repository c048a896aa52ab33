"""Goals when the planner's estimates are wrong or missing, relative to SRSF with true durations."""

from collections.abc import Sequence

from benchmarks.planner.goals import Find, Section, Verdict
from benchmarks.planner.suite import Task, geometric

MAX_RATIO_BY_ERROR = {0.7: 1.12, 1.6: 1.25}
"""Target by the standard deviation of the logarithm of the factor."""
SILENT_SHARE, MAX_SILENT_RATIO = 0.5, 1.30
FAILING_SHARE, MAX_FAILING_RATIO = 0.2, 1.15


def error_task(name: str, error: float) -> Task:
    """Return the planner with epoch times that are wrong by a factor per job."""
    return Task(name, "planner", epoch_error=error)


def error_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks with wrong epoch times, and the oracle."""
    tasks = [error_task(name, error) for name in names for error in MAX_RATIO_BY_ERROR]
    return [*tasks, *(Task(name, policy) for name in names for policy in ("srsf", "planner"))]


def errors(names: Sequence[str], find: Find) -> Section:
    """Compare wrong epoch times with exact ones."""
    columns = [[Task(name, "planner") for name in names]]
    columns += [[error_task(name, error) for name in names] for error in MAX_RATIO_BY_ERROR]
    references = [Task(name, "srsf") for name in names]
    ratios = [_ratios(column, references, find) for column in columns]
    verdicts = [
        Verdict("errors", f"mean JCT × SRSF, σ = {error}, geometric mean", geometric(column), most)
        for (error, most), column in zip(MAX_RATIO_BY_ERROR.items(), ratios[1:], strict=True)
    ]
    return Section(
        "Measured epochs wrong by a log-normal factor per job: mean JCT × SRSF",
        ["workload", "exact", *(f"σ = {error}" for error in MAX_RATIO_BY_ERROR)],
        _rows(names, ratios),
        verdicts,
    )


def silent_task(name: str, share: float) -> Task:
    """Return the planner if this share of the jobs never reports an epoch."""
    return Task(name, "planner", silent_share=share)


def silent_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks with silent jobs, the oracle and Tiresias."""
    tasks = [silent_task(name, share) for name in names for share in (SILENT_SHARE, 1.0)]
    return [*tasks, *(Task(name, policy) for name in names for policy in ("srsf", "tiresias"))]


def silent(names: Sequence[str], find: Find) -> Section:
    """Compare workloads in which half of the jobs, or all, never report an epoch."""
    references = [Task(name, "srsf") for name in names]
    tiresias = [Task(name, "tiresias") for name in names]
    nothing = [silent_task(name, 1.0) for name in names]
    half = _ratios([silent_task(name, SILENT_SHARE) for name in names], references, find)
    against_tiresias = _ratios(nothing, tiresias, find)
    columns = [half, _ratios(nothing, references, find), _ratios(tiresias, references, find)]
    return Section(
        "Silent jobs: mean JCT × SRSF",
        ["workload", "half silent", "all silent", "Tiresias", "all silent ÷ Tiresias"],
        _rows(names, [*columns, against_tiresias]),
        [
            Verdict("silent", "mean JCT × SRSF, half silent, geometric mean", geometric(half),
                    MAX_SILENT_RATIO),
            Verdict("silent", "mean JCT × Tiresias, all silent, worst", max(against_tiresias), 1.0),
        ],
    )  # fmt: skip


def failure_task(name: str, policy: str) -> Task:
    """Return a policy on a workload in which jobs fail."""
    return Task(name, policy, failing_share=FAILING_SHARE)


def failure_tasks(names: Sequence[str]) -> list[Task]:
    """Return the planner and the oracle, which knows when each job fails."""
    return [failure_task(name, policy) for name in names for policy in ("srsf", "planner")]


def failures(names: Sequence[str], find: Find) -> Section:
    """Compare workloads in which some jobs fail early."""
    ours, references = (
        [failure_task(name, policy) for name in names] for policy in ("planner", "srsf")
    )
    ratios = _ratios(ours, references, find)
    words = f"mean JCT × SRSF, {FAILING_SHARE:.0%} fail early, geometric mean"
    return Section(
        f"{FAILING_SHARE:.0%} of the jobs fail at a random point of their work: mean JCT × SRSF",
        ["workload", "mean JCT ×"],
        _rows(names, [ratios]),
        [Verdict("failures", words, geometric(ratios), MAX_FAILING_RATIO)],
        ["The oracle knows when each job fails; the planner does not."],
    )


def _ratios(ours: Sequence[Task], references: Sequence[Task], find: Find) -> list[float]:
    """Return the mean completion times relative to those of the references."""
    pairs = zip(ours, references, strict=True)
    return [find(task).mean / find(reference).mean for task, reference in pairs]


def _rows(names: Sequence[str], columns: Sequence[Sequence[float]]) -> list[list[str]]:
    """Return a row per workload and one with the geometric means."""
    rows = [
        [name, *(f"{value:.3f}" for value in values)]
        for name, *values in zip(names, *columns, strict=True)
    ]
    return [*rows, ["geometric mean", *(f"{geometric(column):.3f}" for column in columns)]]
