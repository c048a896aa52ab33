"""PilotScaler: asks Slurm clusters for allocations while jobs need them, and releases idle ones.

The rules are those of HyperQueue's automatic allocation: one allocation waits in a cluster's queue
at a time, or as many as the nodes of one job; after failures the next request waits longer.
"""

from __future__ import annotations

import logging
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.cluster.cluster import Cluster
from stoker.core.model.hardware import NodeFacts
from stoker.core.model.job import Job
from stoker.core.model.units import BadValue, format_duration
from stoker.core.placement.placer import find_placement
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State
from stoker.daemon.nodes.configured import jobs_on_node, pilots_of
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.engine import Command, CommandResult, Instant
from stoker.executors.reactor import Reactor, Timer
from stoker.executors.slurm.factory import CLUSTER, PILOT, job_prefix
from stoker.executors.slurm.options import PilotShape, SlurmOptions, parse_options

logger = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.0, 60.0, 900.0, 1800.0, 3600.0)
"""Delay of the next request after one, two, ... failures in a row; then always the last."""
MAX_EXAMINED_JOBS = 200
"""Pending jobs, in queue order, of which one may cause a request."""


class ClusterHistory(Struct):
    """What the scaler remembers of one cluster; empty after a restart."""

    failures: int = 0
    """Allocations in a row that ended before they joined."""
    retry_at: float = 0.0
    """Boot time of the next request."""
    idle_since: dict[str, float] = field(default_factory=dict)
    """Boot time since when a pilot has no jobs."""
    facts: NodeFacts | None = None
    """Resources of the last pilot that joined."""
    problem: str | None = None
    """Why the last allocations ended before they joined."""


class PilotScaler:
    """Adds and removes pilots of all Slurm clusters."""

    def __init__(
        self,
        state: Callable[[], State],
        submit: Callable[[Command], None],
        reactor: Reactor,
        install: str,
        clock: Callable[[], Instant],
    ) -> None:
        self.state, self.submit, self.install, self.clock = state, submit, install, clock
        self.timer = Timer(reactor, self._check)
        self.clusters: dict[str, ClusterHistory] = {}
        self._waiting: dict[str, str] = {}
        """Pilots that were added and have not joined, and their clusters."""

    def on_events(self, events: Sequence[e.Event]) -> None:
        """Note pilots that joined or ended, and check again."""
        state = self.state()
        if not any(added.executor == CLUSTER for added in state.record.remotes.values()):
            return
        for event in events:
            if isinstance(event, e.NodeAdded) and event.executor == PILOT:
                self._waiting[event.name] = event.options["cluster"]
            elif isinstance(event, e.NodeJoined) and event.facts.name in self._waiting:
                history = self._history(self._waiting.pop(event.facts.name))
                history.failures, history.facts, history.problem = 0, event.facts, None
            elif isinstance(event, e.NodeRemoved) and event.name in self._waiting:
                self._on_failure(self._history(self._waiting.pop(event.name)), event.why)
            elif isinstance(event, e.NodeAdded) and event.executor == CLUSTER:
                self.clusters.pop(event.name, None)  # perhaps with other options
        self.timer.request(0.0)

    def _on_failure(self, history: ClusterHistory, why: str) -> None:
        """Delay the next request after an allocation that ended before it joined."""
        history.failures += 1
        delay = BACKOFF_SECONDS[min(history.failures, len(BACKOFF_SECONDS)) - 1]
        history.retry_at = self.clock().boot + delay
        if delay:
            history.problem = f"{why}; the next request follows {format_duration(delay)} later"

    def _history(self, cluster: str) -> ClusterHistory:
        return self.clusters.setdefault(cluster, ClusterHistory())

    def _check(self) -> float | None:
        """Submit a command if a pilot is to be added or removed; return when to check again."""
        state, now = self.state(), self.clock()
        clusters = list(slurm_clusters(state))
        for name, options in clusters:
            if any(self.changes(state, name, options, now)):
                self.submit(QueuedCommand(self._handle, lambda _, __: None))
                return None
        return self._seconds_until_check(clusters, now.boot)

    def _seconds_until_check(
        self, clusters: Sequence[tuple[str, SlurmOptions]], boot: float
    ) -> float | None:
        waits = []
        for name, options in clusters:
            history = self._history(name)
            idle = options.pilot.idle_seconds
            waits += [since + idle - boot for since in history.idle_since.values()]
            waits += [history.retry_at - boot] if history.retry_at > boot else []
        return max(min(waits) + 0.1, 1.0) if waits else None

    def _handle(self, state: State, now: Instant) -> CommandResult:
        """Return the events that add and remove pilots."""
        events: list[e.Event] = []
        for name, options in slurm_clusters(state):
            events += self.changes(state, name, options, now)
        return CommandResult(events=events, reply=lambda _: None)

    def changes(
        self, state: State, cluster: str, options: SlurmOptions, now: Instant
    ) -> list[e.Event]:
        """Return the events that bring the pilots of a cluster in line with its pending jobs."""
        shape, history = options.pilot, self._history(cluster)
        if cluster in state.record.unreachable:
            return []
        pilots = pilots_of(state, cluster)
        needed = pilots_needed(state, shape, history.facts)
        idle = [name for name in pilots if not jobs_on_node(state, name)]
        history.idle_since = {
            name: history.idle_since.get(name, now.boot) for name in idle if not needed
        }
        events: list[e.Event] = []
        if state.record.cordoned.get(cluster) != history.problem:
            events.append(e.NodeCordoned(at=now.wall, node=cluster, why=history.problem))
        for name, since in history.idle_since.items():
            waits = name in state.record.unreachable
            if now.boot - since >= (0 if waits else shape.idle_seconds):
                self._waiting.pop(name, None)  # released, not failed
                why = f"it had no jobs for {format_duration(now.boot - since)}"
                events.append(e.NodeRemoved(at=now.wall, name=name, why=why))
        waiting = [name for name in pilots if name in state.record.unreachable]
        missing = min(needed - len(waiting), shape.max_pilots - len(pilots))
        if missing > 0 and now.boot >= history.retry_at:
            events += self._new_pilots(state, cluster, options, shape, missing, now.wall)
        return events

    def _new_pilots(
        self, state: State, cluster: str, options: SlurmOptions, shape: PilotShape, count: int,
        at: float,
    ) -> Iterator[e.NodeAdded]:  # fmt: skip
        taken = {*state.record.remotes, *state.cluster.nodes}
        number = 0
        for _ in range(count):
            number += 1
            while f"{cluster}-{number}" in taken:
                number += 1
            job = f"{job_prefix(self.install, cluster)}-{secrets.token_hex(4)}"
            words = [*shape.sbatch_options(), *options.sbatch]
            yield e.NodeAdded(
                at=at, name=f"{cluster}-{number}", address=f"slurm://{cluster}",
                shared=state.record.remotes[cluster].shared, executor=PILOT,
                options={
                    "cluster": cluster, "job": job, "sbatch": shlex.join(words),
                    **({"ssh": options.login} if options.login else {}),
                },
            )  # fmt: skip


def slurm_clusters(state: State) -> Iterator[tuple[str, SlurmOptions]]:
    """Yield the Slurm clusters and their options."""
    for name, added in state.record.remotes.items():
        if added.executor == CLUSTER:
            try:
                yield name, parse_options(added.options)
            except BadValue as error:  # of a later version
                logger.warning("%s: %s", name, error)


def pilots_needed(state: State, shape: PilotShape, facts: NodeFacts | None) -> int:
    """Return how many further pilots the first pending job needs that they could run."""
    trial = Cluster()
    declared = facts or shape.node_facts("pilot")
    for index in range(shape.max_pilots):
        trial.add_node(replace(declared, name=f"pilot-{index}", on_demand=0), ())
    for job in first_jobs(state.pending, state.jobs, MAX_EXAMINED_JOBS):
        if state.quota_reason(state.pending.class_of[job.id]):
            continue
        if not _ends_in_time(state, job, shape):
            continue
        placement = find_placement(trial, state.effective_request(job, state.spec(job)))
        if placement is not None:
            return len(placement.parts)
    return 0


def _ends_in_time(state: State, job: Job, shape: PilotShape) -> bool:
    """Whether a job fits into an allocation, or can continue in the next one."""
    spec = state.spec(job)
    return spec.limit is None or spec.limit <= shape.seconds or spec.training is not None
