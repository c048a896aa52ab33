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
USUAL = {"one": 4, "bulk": 3, "array": 2, "retry": 3, "requeue": 2, "leaves": 1, "flees": 1}


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
        Scenario(
            "gpus", "two users' daemons on the same GPUs, whose lock directory fills up",
            {"one": 4, "bulk": 1, "requeue": 2, "leaves": 1},
            {**DAEMON, "fill lock directory": 2, "free lock directory": 3}, needs_root=True,
            jobs=80, options=("--gpus", "1"),
        ),
        Scenario(
            "disk", "a home on a disk that fills up", USUAL,
            {**DAEMON, "fill disk": 3, "free disk": 4}, needs_root=True,
        ),
        Scenario(
            "repair", "a damaged journal, and a daemon that dies in its repair", USUAL,
            {"daemon": 2, "client": 1, "damage": 3}, jobs=120,
        ),
        Scenario(
            "ssh", "machines over SSH, whose connections break while files travel",
            {"one": 4, "bulk": 1, "array": 1, "retry": 2, "leaves": 1},
            {"daemon": 4, "daemon starting": 1, "client": 1, "restart": 1, "ssh connection": 4,
             "ssh agent": 3}, needs_root=True, jobs=60, pause=1.0, options=("-w", "a,b"),
        ),
    )
}  # fmt: skip


def why_not(scenario: Scenario) -> str | None:
    """Return what keeps a scenario from being run on this machine, if anything does."""
    if scenario.needs_root and os.getuid() != 0:
        return "only root can mount a file system"
    return None
