"""Sweeps: cost of a trial compared with a job, and gain of early stopping."""

import math
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.curves import FAMILIES, STEPS, TrialPool, best_value
from benchmarks.home import Home, missing
from benchmarks.lab import REPOSITORY, fresh_directory
from benchmarks.plot import Panel, draw
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings
from benchmarks.stopping import (
    GPUS,
    NoStopping,
    OptunaRule,
    StokerRule,
    StokerTpeRule,
    StoppingRule,
    best_so_far,
    halving,
    median_rule,
    run_trials,
)
from benchmarks.throughput import say

MAX_RATIO = 1.3
ROUNDS = 6
"""Full trainings per GPU in the available time."""
MOMENTS = 60
PLAIN, SWEPT = "one bulk submission", "one sweep"


def measure(settings: Settings) -> dict[str, Any]:
    """Measure both; the second in virtual time."""
    why = missing(settings.cache)
    if why:
        found: dict[str, Any] = {"missing": {"stoker sweep": why}}
    else:
        found = {"trials": trials(settings)}
    return {**found, "stopping": stopping(settings)}


# ------------------------------------------------------------------- a trial and a plain job


def trials(settings: Settings) -> dict[str, list[float]]:
    """Measure equal commands as jobs and as trials alternately, each with a new daemon."""
    stopping_rules = {PLAIN: as_jobs, SWEPT: as_trials}
    samples: dict[str, list[float]] = {name: [] for name in stopping_rules}
    for number in range(settings.rounds):
        for name in list(stopping_rules)[:: 1 if number % 2 else -1]:
            with fresh_directory(settings.runs) as directory:
                samples[name].append(once(Home(directory), stopping_rules[name], settings.jobs))
            say(f"round {number + 1}: {name} {samples[name][-1]:.2f} s")
    ratio = median(samples[SWEPT]) / median(samples[PLAIN])
    print(f"\nSweeps: {settings.jobs} × `true` on 4 slots, {settings.rounds} rounds\n")
    rows = []
    for name, found in samples.items():
        each = f"{median(found) / settings.jobs * 1e3:.2f}"
        kept = f"{ratio:.2f} ×, ≤ {MAX_RATIO} {verdict(ratio, MAX_RATIO)}" if name == SWEPT else ""
        rows.append([name, f"{median(found):.2f}", f"{min(found):.2f}", each, kept])
    print(table(["", "median s", "min s", "ms each", "promise"], rows))
    return samples


def once(home: Home, submit: Callable[[Home, int], None], jobs: int) -> float:
    """Return the seconds from the submission to the last end, with a running daemon."""
    home.start(4)
    try:
        begin = time.perf_counter()
        submit(home, jobs)
        home.stoker("wait", "last")
        seconds = time.perf_counter() - begin
        home.expect_logs(jobs)
        return seconds
    finally:
        home.stop()


def as_jobs(home: Home, jobs: int) -> None:
    """Submit one line per job."""
    lines = home.directory / "lines"
    lines.write_text("".join(f"true {number}\n" for number in range(jobs)), encoding="utf-8")
    home.stoker("submit", "--gpus", "1", "--each-line", str(lines))


def as_trials(home: Home, jobs: int) -> None:
    """Submit a sweep with one value per trial."""
    rows = home.directory / "rows.csv"
    rows.write_text("n\n" + "".join(f"{number}\n" for number in range(jobs)), encoding="utf-8")
    home.stoker("sweep", "--gpus", "1", "--csv", str(rows), "true {n}")


# -------------------------------------------------------------------------- early stopping


def stopping_rules(pool: TrialPool) -> list[Callable[[], StoppingRule]]:
    """Return all compared rules, random search first."""
    found: list[Callable[[], StoppingRule]] = [
        NoStopping,
        lambda: StokerRule("stoker asha, from 1/27", halving(3)),
        lambda: StokerRule("stoker hyperband, 3 brackets", halving(1, brackets=3)),
        lambda: StokerRule("stoker asha, from step 1", halving(1)),
        lambda: StokerRule("stoker median", median_rule(5, 5)),
    ]
    if find_spec("optuna") is None:
        return found
    from optuna import pruners

    found += [
        lambda: OptunaRule(
            "optuna SuccessiveHalving, from 1/27",
            pruners.SuccessiveHalvingPruner(min_resource=3, reduction_factor=3), (3, 9, 27),
        ),
        lambda: OptunaRule(
            "optuna SuccessiveHalving, as it comes",
            pruners.SuccessiveHalvingPruner(), (1, 4, 16, 64),
        ),
        lambda: OptunaRule(
            "optuna Hyperband",
            pruners.HyperbandPruner(min_resource=1, max_resource=STEPS), (1, 3, 9, 27),
        ),
        lambda: OptunaRule(
            "optuna Median", pruners.MedianPruner(n_warmup_steps=5),
            tuple(int(step) for step in median_rule(5, 5).rungs),
        ),
        lambda: StokerTpeRule("stoker asha, from 1/27, tpe", halving(3), pool),
    ]  # fmt: skip
    return found


def measure_family(family: str, seed: int) -> dict[str, tuple[list[float], int]]:
    """Return by rule the regret over time, and the number of trials."""
    pool = TrialPool(family, seed)
    seconds = duration(family)
    moments = [seconds * (number + 1) / MOMENTS for number in range(MOMENTS)]
    found = {}
    for make in stopping_rules(pool):
        way = make()
        runs = run_trials(way, pool, seconds)
        found[way.name] = (
            [each - best_value(family) for each in best_so_far(runs, moments)],
            len(runs),
        )
    return found


def duration(family: str) -> float:
    """Return the available time: enough for ROUNDS full trainings per GPU."""
    pool = TrialPool(family, 10_000)
    return ROUNDS * STEPS * statistics.mean(pool[number][1].seconds for number in range(200))


def stopping(settings: Settings) -> dict[str, Any]:
    """Measure all families with several seeds, in one process per core."""
    seeds = range(2 if settings.quick else 16)
    say(f"early stopping: {len(FAMILIES)} families of curves, {len(seeds)} seeds")
    results: dict[str, Any] = {}
    panels = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for family in FAMILIES:
            runs = list(workers.map(partial(measure_family, family), seeds))
            names = list(runs[0])
            regrets = {name: [run[name][0] for run in runs] for name in names}
            begun = {name: statistics.mean(run[name][1] for run in runs) for name in names}
            results[family] = regrets
            print(
                f"\nEarly stopping, {family}: {GPUS} GPUs, the same trials for all but tpe;"
                f" how far the best so far is from the best there is, mean of {len(seeds)}\n"
            )
            print(table(HEAD, [row(name, regrets, begun[name]) for name in names]))
            hours = GPUS * duration(family) / 3600
            shown = {name: mean(regrets[name]) for name in SHOWN if name in regrets}
            panels.append(Panel(family, hours, shown))
    if not settings.quick:
        picture = REPOSITORY / "docs/images/asha.svg"
        picture.write_text(draw(panels), encoding="utf-8")
        print(f"\nwritten: {picture.relative_to(REPOSITORY)}")
    return results


HEAD = ["", "at 25 %", "at 50 %", "at 100 %", "area, × random", "as good as random after", "trials"]
SHOWN = (
    "random search", "stoker asha, from 1/27", "stoker hyperband, 3 brackets",
    "optuna SuccessiveHalving, as it comes", "optuna Hyperband",
)  # fmt: skip


def row(name: str, regrets: dict[str, list[list[float]]], begun: float) -> list[str]:
    """Return the row of one rule."""
    own, base = regrets[name], regrets["random search"]
    line = mean(own)
    area = sum(map(sum, capped(own))) / sum(map(sum, capped(base)))
    reached = [time_to_reach(curve, other[-1]) for curve, other in zip(own, base, strict=True)]
    usual = statistics.median(reached)
    after = "never" if math.isinf(usual) else f"{usual * 100:.0f} % of the time"
    return [
        name, f"{line[MOMENTS // 4 - 1]:.4f}", f"{line[MOMENTS // 2 - 1]:.4f}", f"{line[-1]:.4f}",
        f"{area:.2f}", after, f"{begun:.0f}",
    ]  # fmt: skip


def mean(curves: list[list[float]]) -> list[float]:
    """Return the mean of several curves."""
    return [statistics.mean(values) for values in zip(*capped(curves), strict=True)]


def capped(curves: list[list[float]]) -> list[list[float]]:
    """Replace infinite values before the first report by 1."""
    return [[min(each, 1.0) for each in curve] for curve in curves]


def time_to_reach(curve: list[float], goal: float) -> float:
    """Return the share of the time after which a curve reaches a goal."""
    return next(((n + 1) / MOMENTS for n, each in enumerate(curve) if each <= goal), math.inf)
