"""Options of a Slurm cluster: how it is reached, and what its pilots are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import Struct

from stoker.core.events import NodeAdded
from stoker.core.model.units import BadValue, approximate_duration
from stoker.executors.pilot_shape import (
    COMMON_WORDS,
    MAX_AHEAD,
    MIN_AHEAD,
    PilotShape,
    check_time_limit,
    parse_ahead,
    parse_priorities,
    parse_words,
)
from stoker.executors.ssh.address import parse_address

SCHEME = "slurm://"
OWN_OPTIONS = (
    "-J", "--job-name", "-a", "--array", "-d", "--dependency", "-o", "--output", "-e", "--error",
    "-N", "--nodes", "-n", "--ntasks", "--requeue", "--wrap", "-W", "--wait", "--parsable",
)  # fmt: skip
"""Options of sbatch that stoker sets itself."""


class SlurmPilotShape(PilotShape, frozen=True):
    """One allocation that joins as a node, and how many of them there may be."""

    def sbatch_options(self) -> list[str]:
        """Return the options of sbatch for such an allocation."""
        words = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={self.cores}"]
        if self.gpus:
            model = f"{self.model}:" if self.model else ""
            words.append(f"--gres=gpu:{model}{self.gpus}")
        if self.memory:
            words.append(f"--mem={self.memory}M")
        return [*words, f"--time={-(-self.seconds // 60)}"]


class SlurmOptions(Struct, frozen=True):
    """What a user says of a Slurm cluster."""

    pilot: SlurmPilotShape
    login: str = ""
    """The login node over SSH; empty: Slurm's commands run on this host."""
    sbatch: tuple[str, ...] = ()
    """Options that every sbatch gets."""
    ahead: int | None = None
    """Attempts that may wait in Slurm's queue; None: about twice as many as run there."""
    priority_options: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Further options of sbatch for attempts of at least a priority, in ascending order."""

    def given_options(self, priority: int) -> tuple[str, ...]:
        """Return what users gave for the Slurm job of an attempt; of two, the last counts."""
        fitting = [words for least, words in self.priority_options if least <= priority]
        return (*self.sbatch, *(fitting[-1] if fitting else ()))

    @property
    def has_pilots(self) -> bool:
        """Whether allocations are requested that join as nodes."""
        return self.pilot.max_pilots > 0

    @property
    def hands_over(self) -> bool:
        """Whether attempts become Slurm jobs: all, or those that no pilot can run."""
        return not self.has_pilots or self.ahead is not None


def parse_options(options: Mapping[str, str]) -> SlurmOptions:
    """Parse the options of a node of the kind `slurm`; raise BadValue."""
    unknown = sorted(set(options) - {"pilot", "ahead", "ssh", "sbatch", "priority_options"})
    if unknown:
        known = "pilot, ahead, ssh, sbatch or priority_options"
        raise BadValue(f"A Slurm cluster has no option '{unknown[0]}': {known}.")
    words = _sbatch_words(options.get("sbatch", ""))
    pilot = parse_pilot(options["pilot"]) if "pilot" in options else SlurmPilotShape(max_pilots=0)
    ahead = parse_ahead(options["ahead"]) if "ahead" in options else None
    by_priority = parse_priorities(options.get("priority_options", "{}"), "priority_options")
    priority_options = tuple((least, _sbatch_words(text)) for least, text in by_priority)
    return SlurmOptions(pilot, options.get("ssh", ""), words, ahead, priority_options)


def _sbatch_words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        raise BadValue("The options of sbatch have an unclosed quote.") from None
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]  # -N2
        if name in OWN_OPTIONS:
            raise BadValue(f"stoker sets {name} itself; leave it out of the options of sbatch.")
    return words


def cluster_addition(
    name: str, options: Mapping[str, str], shared: bool, at: float, configured: bool = False
) -> NodeAdded:
    """Return the event that adds a cluster; raise BadValue.

    Without a login node, its commands are here, and so are its files.
    """
    parsed = parse_options(options)
    check_time_limit(parsed.pilot, is_required=parsed.has_pilots)
    if parsed.login:
        parse_address(parsed.login)
    return NodeAdded(
        at=at, name=name, address=SCHEME, executor="slurm", options=dict(options),
        shared=shared or not parsed.login, configured=configured,
    )  # fmt: skip


def parse_pilot(text: str) -> SlurmPilotShape:
    """Parse `gpus=2 time=8h max=4 idle=5m cores=8 mem=32G vram=40G`; raise BadValue."""
    shape = SlurmPilotShape(**parse_words(text, COMMON_WORDS))
    if "time=" not in text:
        raise BadValue("--pilot needs time=, the time limit of an allocation, such as time=8h.")
    return shape


def describe(options: SlurmOptions) -> str:
    """Return what a cluster provides as a phrase."""
    waiting = options.ahead or f"{MIN_AHEAD} to {MAX_AHEAD}"
    if not options.has_pilots:
        return f"one Slurm job per attempt, at most {waiting} of them waiting"
    shape = options.pilot
    idle = approximate_duration(shape.idle_seconds)
    count = f"{shape.max_pilots} allocation{'s' * (shape.max_pilots != 1)}"
    text = f"up to {count} of {shape.describe()}, released after {idle} without jobs"
    if options.hands_over:
        text += f"; a Slurm job for each attempt that these cannot run, at most {waiting} waiting"
    return text
