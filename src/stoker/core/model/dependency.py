"""Dependencies between jobs: parsing, and whether one is met."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from stoker.core.model.units import BadValue

KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")


class Clause(Struct, frozen=True, omit_defaults=True):
    """One condition on one or more jobs."""

    kind: str
    jobs: tuple[int, ...]
    delay: int = 0
    """Seconds after the other job started (`after:5+10`)."""


class Dependency(Struct, frozen=True, omit_defaults=True):
    """Clauses of which all must be met, or (`any`) one of them."""

    clauses: tuple[Clause, ...]
    any: bool = False

    @property
    def is_by_member(self) -> bool:
        """Whether each member of an array depends on another job (`aftercorr`)."""
        return any(clause.kind == "aftercorr" for clause in self.clauses)

    @property
    def has_delay(self) -> bool:
        """Whether a clause has a delay (`after:ID+minutes`)."""
        return any(clause.delay for clause in self.clauses)

    def jobs(self) -> set[int]:
        """Return the ids of all jobs that it depends on."""
        return {job for clause in self.clauses for job in clause.jobs}

    def status(
        self, lookup: Callable[[int], DependencyTarget | None], now: float
    ) -> tuple[DependencyStatus, list[int], float | None]:
        """Return the status, the jobs that keep it from being met, and when a delay ends."""
        results = [_clause_status(clause, lookup, now) for clause in self.clauses]
        decides = any if self.any else all
        if decides(state is DependencyStatus.MET for state, _, _ in results):
            return DependencyStatus.MET, [], None
        may_be_met = decides(state is not DependencyStatus.NEVER for state, _, _ in results)
        open_jobs = [
            job for state, jobs, _ in results if state is not DependencyStatus.MET for job in jobs
        ]
        wake = min((time for _, _, time in results if time is not None), default=None)
        return DependencyStatus.OPEN if may_be_met else DependencyStatus.NEVER, open_jobs, wake

    def stays_open(self, halted: set[int]) -> bool:
        """Whether it stays open as long as these jobs neither start nor end."""
        is_open = [not halted.isdisjoint(clause.jobs) for clause in self.clauses]
        return all(is_open) if self.any else any(is_open)


class DependencyStatus(Enum):
    """Whether a dependency is met, may still be met, or can never be met."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


class DependencyTarget(Struct, frozen=True):
    """What the status of a dependency needs to know about another job."""

    finished: bool
    ok: bool
    started_at: float | None
    never_eligible: bool = False
    """Whether its own dependency can never be met."""


def parse_dependency(
    text: str, resolve: Callable[[str], list[int]], singleton: Callable[[], list[int]]
) -> Dependency | None:
    """Read Slurm's `afterok:5:6,afterany:7` (`?` instead of `,` means or) or bare ids."""
    joiner = "?" if "?" in text else ","
    if joiner == "?" and re.search(r",\s*[a-z]", text):
        raise BadValue(f"--dependency '{text}' mixes ',' and '?'; use one of them.")
    clauses: list[Clause] = []
    for part in re.split(r"\?|,(?=\s*[a-z])", text):
        kind, _, rest = part.strip().partition(":")
        if kind == "singleton" and not rest:
            if others := singleton():
                clauses.append(Clause("afterany", tuple(others)))
            continue
        if re.fullmatch(r"[\d_,:-]+", part.strip()):  # as in pueue, bare ids mean success
            kind, rest = "afterok", part.strip()
        elif kind not in KINDS:
            raise BadValue(
                f"--dependency '{part.strip()}' is not known; "
                f"write one of {', '.join(KINDS)} with ids (afterok:5:6), or singleton."
            )
        clauses += _clauses(kind, rest, resolve)
    return Dependency(tuple(clauses), any=joiner == "?") if clauses else None


def _clauses(kind: str, rest: str, resolve: Callable[[str], list[int]]) -> list[Clause]:
    clauses: list[Clause] = []
    without_delay: list[int] = []
    for word in re.split(r"[:,]", rest):
        ids, plus, minutes = word.strip().partition("+")
        delayed = kind == "after" and minutes.isdecimal() and len(minutes) <= 7
        if not ids or (plus and not delayed):
            raise BadValue(f"--dependency '{kind}:{rest}' has no job id; write {kind}:ID[:ID].")
        jobs = resolve(ids)
        if plus:
            clauses.append(Clause(kind, tuple(jobs), int(minutes) * 60))
        else:
            without_delay += jobs
    if without_delay:
        clauses.append(Clause(kind, tuple(without_delay)))
    return clauses


def _clause_status(
    clause: Clause, lookup: Callable[[int], DependencyTarget | None], now: float
) -> tuple[DependencyStatus, list[int], float | None]:
    unmet: list[int] = []
    failed: list[int] = []
    wake: float | None = None
    for job in clause.jobs:
        other = lookup(job)
        if other is None:
            continue  # deleted from the store, so it ended long ago
        if other.never_eligible:
            failed.append(job)
        elif clause.kind == "after":
            if other.started_at is None and not other.finished:
                unmet.append(job)
            elif other.started_at is not None and now < other.started_at + clause.delay:
                unmet.append(job)
                time = other.started_at + clause.delay
                wake = time if wake is None else max(wake, time)
        elif not other.finished:
            unmet.append(job)
        elif clause.kind != "afterany" and other.ok == (clause.kind == "afternotok"):
            failed.append(job)
    if failed:
        return DependencyStatus.NEVER, failed, None
    return (DependencyStatus.OPEN, unmet, wake) if unmet else (DependencyStatus.MET, [], None)
