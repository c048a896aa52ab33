"""What the side effects of jobs prove, compared with what stoker says of the jobs."""

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.clients import RETRIED, Submission

DEFINITIONS = {
    "lost": "an acknowledged job that is absent, ended with a code that it does not show, "
    "is over and never ran to its end, or does not end",
    "run twice": "a side effect of one attempt seen twice, two attempts of a job alive at once, "
    "a further attempt after one that ended for good, or one submitted line as two jobs",
    "unknown exit": "the daemon and the attempt's supervisor were both killed while it ran, "
    "or while it was started and its claim was deleted then (NODE_FAIL); no violation",
    "orphans": "a process that is alive although its job is over, "
    "or a process of stoker that is alive after the daemon stopped",
    "over-commits": "two attempts that hold the same share of a GPU at one time",
    "reused ids": "one id for two submissions or two lines",
}
VIOLATIONS = ("lost", "run twice", "orphans", "over-commits", "reused ids")
OVER = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE",
}  # fmt: skip
SLACK_SECONDS = 0.3
"""How far a recorded time may be from the moment that it is compared with."""
AGAIN = {RETRIED, 75}
"""Exit codes after which another attempt is due."""


@dataclass
class Attempt:
    """The records of one attempt."""

    started: float | None = None
    ended: float | None = None
    line: int | None = None
    parent: int = 0
    code: int | None = None


@dataclass
class Kills:
    """When daemons ended, and when which supervisor was killed (boot clock)."""

    daemons: list[tuple[float, float]] = field(default_factory=list)
    supervisors: dict[int, float] = field(default_factory=dict)
    claims_deleted: bool = False
    """The run directory was deleted: nothing proves any more that a start was not made."""

    def excuse(self, attempt: Attempt) -> bool:
        """Return True if daemon and supervisor of an attempt were both ended while it ran."""
        if attempt.started is None:
            return True
        begin = attempt.started - SLACK_SECONDS
        end = (attempt.ended or float("inf")) + SLACK_SECONDS
        daemon = any(first <= end and last >= begin for first, last in self.daemons)
        at = self.supervisors.get(attempt.parent)
        if at is not None:
            return daemon and begin <= at <= end
        # It recorded its parent after that had been killed.
        near = attempt.started + SLACK_SECONDS
        return daemon and any(begin <= each <= near for each in self.supervisors.values())


@dataclass
class Violation:
    """One thing that must not be."""

    kind: str
    job: int | None
    what: str
    proof: list[str] = field(default_factory=list)
    """The journalled events and the records of that job."""


@dataclass
class Findings:
    """The result of an audit."""

    jobs: int = 0
    attempts: int = 0
    acknowledged: int = 0
    unknown: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def add(self, kind: str, job: int | None, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(kind, job, what))

    def include(self, other: "Findings") -> None:
        """Add up the findings of two installations."""
        self.jobs += other.jobs
        self.attempts += other.attempts
        self.acknowledged += other.acknowledged
        self.unknown += other.unknown
        self.violations += other.violations


def read_records(directory: Path) -> dict[int, dict[int, Attempt]]:
    """Return the attempts that left records, by job and number."""
    found: dict[int, dict[int, Attempt]] = defaultdict(lambda: defaultdict(Attempt))
    for path in directory.iterdir():
        job, number, what = [*path.name.split("."), "", ""][:3]
        if what not in {"start", "end"}:
            continue
        attempt = found[int(job)][int(number)]
        words = path.read_text().split()
        with contextlib.suppress(IndexError, ValueError):  # cut off by a kill
            at = float(words[0])
            values = dict(word.split("=", 1) for word in words[1:])
            if what == "start":
                attempt.started = at
                attempt.line, attempt.parent = int(values["line"]), int(values["parent"])
            else:
                attempt.ended, attempt.code = at, int(values["code"])
    return found


def marks(directory: Path, what: str) -> list[tuple[int, str]]:
    """Return the records of one kind of violation, with the job that left them."""
    return [
        (int(path.name.split(".")[0]), f"{path.name}: {path.read_text().strip()}")
        for path in sorted(directory.glob(f"*.{what}"))
    ]


def audit(
    records: list[Path],
    jobs: dict[int, dict[str, Any]],
    submissions: list[Submission],
    cancelled: set[int],
    kills: Kills,
) -> Findings:
    """Compare records, acknowledgements and jobs."""
    found = Findings(jobs=len(jobs))
    attempts: dict[int, dict[int, Attempt]] = defaultdict(dict)
    for directory in records:
        for job, each in read_records(directory).items():
            for number, attempt in each.items():
                if number in attempts[job]:
                    found.add("run twice", job, f"attempt {number} left records in two places")
                attempts[job][number] = attempt
        for job, text in marks(directory, "twice"):
            found.add("run twice", job, text)
        for job, text in marks(directory, "overcommit"):
            found.add("over-commits", job, text)
    found.attempts = sum(map(len, attempts.values()))
    lines = _lines(found, submissions)
    arrays = {each.lines[0] for each in submissions if each.is_array}
    _check_ids(found, attempts, lines, set(jobs), arrays)
    for job in sorted({*jobs, *lines}):
        view = jobs.get(job)
        if view is None:
            found.add("lost", job, "acknowledged and absent")
        else:
            _check_job(found, job, view, attempts.get(job, {}), job in cancelled, kills)
    return found


def _lines(found: Findings, submissions: list[Submission]) -> dict[int, int]:
    """Return the line of every acknowledged id."""
    lines: dict[int, int] = {}
    for each in submissions:
        for id, line in zip(each.ids, each.lines, strict=False):
            found.acknowledged += 1
            if id in lines:
                found.add("reused ids", id, f"acknowledged for lines {lines[id]} and {line}")
            lines[id] = line
    return lines


def _check_ids(
    found: Findings,
    attempts: dict[int, dict[int, Attempt]],
    lines: dict[int, int],
    jobs: set[int],
    arrays: set[int],
) -> None:
    ids: dict[int, set[int]] = defaultdict(set)
    for job, each in attempts.items():
        seen = {attempt.line for attempt in each.values() if attempt.line is not None}
        if job in lines:
            seen.add(lines[job])
        if len(seen) > 1:
            found.add("reused ids", job, f"ran lines {sorted(seen)}")
        for line in seen:
            ids[line].add(job)
        if job not in jobs and job not in lines:
            found.add("lost", job, "it ran, and no such job is known")
    for line, several in ids.items():
        if len(several) > 1 and line not in arrays:
            found.add("run twice", min(several), f"line {line} became jobs {sorted(several)}")


def _check_job(
    found: Findings,
    job: int,
    view: dict[str, Any],
    attempts: dict[int, Attempt],
    cancelled: bool,
    kills: Kills,
) -> None:
    state, result = view["state"], view.get("result")
    if state not in OVER:
        found.add("lost", job, f"it does not end: {state}, {view.get('reason')}")
        return
    excused = any(kills.excuse(attempt) for attempt in attempts.values())
    if not attempts:
        excused = kills.claims_deleted and bool(kills.daemons and kills.supervisors)
    last = max(attempts, default=0)
    for number, attempt in attempts.items():
        if attempt.code is not None and attempt.code not in AGAIN and number < last:
            if kills.excuse(attempt):
                found.unknown.append(f"{job}.{number} {attempt}")
            else:
                text = f"attempt {number} ended with {attempt.code}, and attempt {last} ran"
                found.add("run twice", job, text)
    if cancelled:
        return
    final = attempts.get(last, Attempt())
    if final.code is not None and result == final.code and state in {"COMPLETED", "FAILED"}:
        return
    text = f"{state} with {result} ({view.get('cause')}); "
    if not attempts:
        text += "it never ran"
    elif final.code is None:
        text += f"attempt {last} did not come to its end"
    else:
        text += f"attempt {last} ended with {final.code}"
    if excused and state == "NODE_FAIL":
        found.unknown.append(f"{job}.{last} {final}")
    else:
        found.add("lost", job, text)
