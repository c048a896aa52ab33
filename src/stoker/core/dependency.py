"""Waiting for other jobs: parsing, and whether the wait is over."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from stoker.core.units import BadValue

KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")


class Clause(Struct, frozen=True, omit_defaults=True):
    """One condition on some jobs."""

    kind: str
    jobs: tuple[int, ...]
    delay: int = 0
    """Seconds after the other job started (`after:5+10`)."""


class Dependency(Struct, frozen=True, omit_defaults=True):
    """All of the clauses, or any one of them."""

    clauses: tuple[Clause, ...]
    any: bool = False

    @property
    def by_member(self) -> bool:
        """Whether each member of an array waits for another job (`aftercorr`)."""
        return any(clause.kind == "aftercorr" for clause in self.clauses)

    @property
    def delayed(self) -> bool:
        """Whether it is about time as well (`after:ID+minutes`)."""
        return any(clause.delay for clause in self.clauses)

    def jobs(self) -> set[int]:
        """Every job that is waited for."""
        return {job for clause in self.clauses for job in clause.jobs}


class Standing(Enum):
    """How a dependency stands."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


class Other(Struct, frozen=True):
    """What a dependency needs to know of another job."""

    finished: bool
    ok: bool
    started_at: float | None
    doomed: bool = False
    """It can never start, for the same reason."""


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
            others = singleton()
            if others:
                clauses.append(Clause("afterany", tuple(others)))
            continue
        if kind not in KINDS:
            if re.fullmatch(r"[\d_,:-]+", part.strip()):  # pueue's habit: bare ids mean success
                kind, rest = "afterok", part.strip()
            else:
                raise BadValue(
                    f"--dependency '{part.strip()}' is not known; "
                    f"write one of {', '.join(KINDS)} with ids (afterok:5:6), or singleton."
                )
        clauses += _clauses(kind, rest, resolve)
    return Dependency(tuple(clauses), any=joiner == "?") if clauses else None


def _clauses(kind: str, rest: str, resolve: Callable[[str], list[int]]) -> list[Clause]:
    found: list[Clause] = []
    plain: list[int] = []
    for word in re.split(r"[:,]", rest):
        ids, plus, minutes = word.strip().partition("+")
        delayed = kind == "after" and minutes.isdecimal() and len(minutes) <= 7
        if not ids or (plus and not delayed):
            raise BadValue(f"--dependency '{kind}:{rest}' has no job id; write {kind}:ID[:ID].")
        jobs = resolve(ids)
        if plus:
            found.append(Clause(kind, tuple(jobs), int(minutes) * 60))
        else:
            plain += jobs
    if plain:
        found.append(Clause(kind, tuple(plain)))
    return found


def standing(
    dependency: Dependency, look: Callable[[int], Other | None], now: float
) -> tuple[Standing, list[int], float | None]:
    """How it stands, the jobs it is still about, and when a delay ends."""
    results = [_clause_standing(clause, look, now) for clause in dependency.clauses]
    states = [result[0] for result in results]
    open_jobs = [job for state, jobs, _ in results if state is not Standing.MET for job in jobs]
    wake = min((moment for _, _, moment in results if moment is not None), default=None)
    if dependency.any:
        if Standing.MET in states:
            return Standing.MET, [], None
        never = all(state is Standing.NEVER for state in states)
    else:
        if all(state is Standing.MET for state in states):
            return Standing.MET, [], None
        never = Standing.NEVER in states
    return (Standing.NEVER if never else Standing.OPEN), open_jobs, wake


def stuck(dependency: Dependency, still: set[int]) -> bool:
    """Whether it stays open for as long as these jobs stand still."""
    each = [not still.isdisjoint(clause.jobs) for clause in dependency.clauses]
    return all(each) if dependency.any else any(each)


def _clause_standing(
    clause: Clause, look: Callable[[int], Other | None], now: float
) -> tuple[Standing, list[int], float | None]:
    waiting: list[int] = []
    dead: list[int] = []
    wake: float | None = None
    for job in clause.jobs:
        other = look(job)
        if other is None:
            continue  # no longer known, so long over
        if other.doomed:
            dead.append(job)
        elif clause.kind == "after":
            if other.started_at is None and not other.finished:
                waiting.append(job)
            elif other.started_at is not None and now < other.started_at + clause.delay:
                waiting.append(job)
                moment = other.started_at + clause.delay
                wake = moment if wake is None else max(wake, moment)
        elif not other.finished:
            waiting.append(job)
        elif (clause.kind in ("afterok", "aftercorr") and not other.ok) or (
            clause.kind == "afternotok" and other.ok
        ):
            dead.append(job)
    if dead:
        return Standing.NEVER, dead, None
    return (Standing.OPEN, waiting, wake) if waiting else (Standing.MET, [], None)
