"""Seeded schedules of faults, run by the tests and by `python -m benchmarks.faults --schedules`."""

import contextlib
import io
import logging
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import seed as with_seed
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from simulation.modelled_host import host
from simulation.test_random_commands import SMALL, AnyCourse
from simulation.test_random_nodes import AnyFleet

HOST = "host"
COURSES = {"course": AnyCourse, "fleet": AnyFleet}


@dataclass
class Result:
    """Counts of some schedules, and a sentence for each violation."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Add the result of other schedules."""
        self.counts += other.counts
        self.faults += other.faults
        self.texts += other.texts

    def violation(self, where: str, kind: str, text: str) -> None:
        """Count a violation."""
        self.counts[kind] += 1
        self.texts.append(f"{where}: {kind}: {text}")


def play(kind: str, seed: int, count: int, place: str | None = None) -> Result:
    """Run schedules of one kind, the first of them with this seed."""
    result = Result(Counter(schedules=count))
    if kind in COURSES:
        _play_courses(result, kind, seed, count)
    else:
        for number in range(seed, seed + count):
            _play_host(result, number, place)
    return result


def _play_host(result: Result, seed: int, place: str | None) -> None:
    """One machine: real engine, executor, supervisors, locks, recovery and journal repair."""
    logging.disable(logging.CRITICAL)  # the daemon logs every fault
    try:
        with host(seed, place) as played:
            played.play()
            for kind, text in played.violations():
                result.violation(f"host {seed}", kind, text)
    finally:
        logging.disable(logging.NOTSET)
    result.counts["jobs"] += len(played.acknowledged)
    result.counts["attempts"] += len(played.kernel.started)
    result.counts["unknown exit"] += len(played.kernel.unseen)
    result.faults += played.faults


def _play_courses(result: Result, kind: str, seed: int, count: int) -> None:
    """Modelled nodes, local and over SSH: restarts, cut links, lost and repeated reports."""
    rules = settings(SMALL, max_examples=count, derandomize=False, database=None)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_state_machine_as_test(with_seed(seed)(COURSES[kind]), settings=rules)
    except AssertionError as error:
        result.violation(f"{kind} {seed}", _kind_of(str(error)), str(error))


def _kind_of(text: str) -> str:
    """Return the kind of violation that a message of the simulation's checks reports."""
    for words, kind in (
        ("over-committed", "over-committed"), ("ledger", "over-committed"),
        ("was started", "doubled"), ("still runs", "doubled"), ("holds nothing", "orphaned"),
        ("within reach", "orphaned"),
    ):  # fmt: skip
        if words in text:
            return kind
    return "lost"
