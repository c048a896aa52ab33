"""What an episode is made of: which devices, which submissions, which faults, how often."""

import os
from dataclasses import dataclass, field

DAEMON = {"daemon": 6, "daemon starting": 3, "daemon and client": 2, "client": 2, "restart": 1,
          "pause daemon": 1}  # fmt: skip
"""Faults after which no exit may be unknown: the supervisors live."""
SUPERVISOR = {"supervisor": 6, "client": 2, "pause daemon": 1, "pause supervisor": 1}
"""Faults after which no exit may be unknown: the daemon lives."""
PROCESSES = {**DAEMON, "supervisor": 4, "daemon and supervisor": 1, "pause supervisor": 1}
"""All of them; where daemon and supervisor of an attempt are killed, its exit may be unknown."""
USUAL = {"one": 4, "bulk": 3, "array": 2, "retry": 3, "requeue": 2, "leaves": 1}


@dataclass(frozen=True)
class Scenario:
    """One kind of episode."""

    name: str
    about: str
    submissions: dict[str, int]
    faults: dict[str, int]
    pause: float = 0.7
    """The longest time between two faults, in seconds."""
    jobs: int = 260
    """After about this many jobs, no more are submitted."""
    needs_root: bool = False
    options: tuple[str, ...] = field(default=())


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("daemon", "bulk, array and retried jobs; only the daemon dies", USUAL, DAEMON),
        Scenario("supervisor", "the same; only supervisors die", USUAL, SUPERVISOR),
        Scenario("both", "the same; everything dies", USUAL, PROCESSES),
        Scenario(
            "preemption", "training jobs that are stopped at checkpoints",
            {"train": 4, "saves": 3, "urgent": 4, "one": 2, "requeue": 2}, PROCESSES, jobs=60,
        ),
        Scenario(
            "deletions", "socket, run directory and logs deleted", USUAL,
            {**PROCESSES, "delete socket": 3, "delete run directory": 3, "delete logs": 3},
        ),
    )
}  # fmt: skip


def why_not(scenario: Scenario) -> str | None:
    """Return what keeps a scenario from being run on this machine, if anything does."""
    if scenario.needs_root and os.getuid() != 0:
        return "only root can mount a file system"
    return None
