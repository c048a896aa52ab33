"""PilotScaler: asks clusters for allocations while jobs need them, and releases idle ones.

The rules are those of HyperQueue's automatic allocation: one allocation waits in a cluster's queue
at a time, or as many as the nodes of one job; after failures the next request waits longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.cluster.cluster import Cluster
from stoker.core.explain.forecast import ExpectedNode
from stoker.core.model.resources import NodeFacts
from stoker.core.model.units import BadValue, approximate_duration, format_duration
from stoker.core.placement.horizon import usable_until
from stoker.core.placement.placer import find_placement
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State
from stoker.daemon.nodes.configured import is_same_node, jobs_on_node, pilots_of
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.engine import Command, CommandResult, Instant
from stoker.executors.clusters import ClusterOptions, clusters, kind_of
from stoker.executors.pilot_shape import PilotShape
from stoker.executors.port import Allocation
from stoker.executors.reactor import Reactor, Timer

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
    """Adds and removes pilots of all clusters."""

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
        if not any(clusters(state.record.remotes)):
            return
        for event in events:
            if isinstance(event, e.NodeAdded) and event.is_allocation:
                self._waiting[event.name] = event.cluster or ""
            elif isinstance(event, e.NodeJoined) and event.facts.name in self._waiting:
                history = self._history(self._waiting.pop(event.facts.name))
                history.failures, history.facts, history.problem = 0, event.facts, None
            elif isinstance(event, e.NodeRemoved) and event.name in self._waiting:
                self._on_failure(self._history(self._waiting.pop(event.name)), event.why)
            elif isinstance(event, e.NodeAdded) and kind_of(event) is not None:
                self.clusters.pop(event.name, None)  # perhaps with other options
        self.timer.request(0.0)

    def _on_failure(self, history: ClusterHistory, why: str) -> None:
        """Delay the next request after an allocation that ended before it joined."""
        history.failures += 1
        delay = BACKOFF_SECONDS[min(history.failures, len(BACKOFF_SECONDS)) - 1]
        history.retry_at = self.clock().boot + delay
        if delay:
            history.problem = f"{why}; the next request follows {approximate_duration(delay)} later"

    def _history(self, cluster: str) -> ClusterHistory:
        return self.clusters.setdefault(cluster, ClusterHistory())

    def _check(self) -> float | None:
        """Submit a command if a pilot is to be added or removed; return when to check again."""
        state, now = self.state(), self.clock()
        found = list(clusters_with_pilots(state))
        for name, options in found:
            if any(self.changes(state, name, options, now)):
                self.submit(QueuedCommand(self._handle, lambda _, __: None))
                return None
        return self._seconds_until_check(found, now.boot)

    def _seconds_until_check(
        self, clusters: Sequence[tuple[str, ClusterOptions]], boot: float
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
        for name, options in clusters_with_pilots(state):
            events += self.changes(state, name, options, now)
        return CommandResult(events=events, reply=lambda _: None)

    def changes(
        self, state: State, cluster: str, options: ClusterOptions, now: Instant
    ) -> list[e.Event]:
        """Return the events that bring the pilots of a cluster in line with its pending jobs."""
        shape, history = options.pilot, self._history(cluster)
        if cluster in state.record.unreachable:
            return []
        pilots = pilots_of(state, cluster)
        needed, seconds = pilots_needed(state, shape, history.facts)
        history.idle_since = {
            name: history.idle_since.get(name, now.boot)
            for name in pilots
            if not jobs_on_node(state, name)
            # While jobs wait, one that exists for long enough may be part of what they need.
            if not needed or not usable_until(state.cluster, name, now.wall + seconds)
        }
        events: list[e.Event] = [*self._jobs_node(state, cluster, options, now.wall)]
        if state.record.cordoned.get(cluster) != history.problem:
            events.append(e.NodeCordoned(at=now.wall, node=cluster, why=history.problem))
        for name, since in history.idle_since.items():
            waits = name not in state.record.nodes  # a new daemon reaches the others again
            ends = not usable_until(state.cluster, name, now.wall)
            if now.boot - since >= (0 if waits or ends else shape.idle_seconds):
                self._waiting.pop(name, None)  # released, not failed
                why = f"it had no jobs for {format_duration(now.boot - since)}"
                events.append(e.NodeRemoved(at=now.wall, name=name, why=why))
        waiting = [name for name in pilots if name in state.record.unreachable]
        missing = min(needed - len(waiting), shape.max_pilots - len(pilots))
        if missing > 0 and now.boot >= history.retry_at:
            events += self._new_pilots(state, cluster, missing, now.wall)
        return events

    @staticmethod
    def _jobs_node(
        state: State, cluster: str, options: ClusterOptions, at: float
    ) -> Iterator[e.NodeAdded | e.NodeRemoved]:
        """Yield what adds or removes the node to which jobs are handed over."""
        name, added = f"{cluster}-jobs", state.record.remotes[cluster]
        before = state.record.remotes.get(name)
        wanted = e.NodeAdded(
            at=at, name=name, address=added.address, shared=added.shared,
            executor=f"{added.executor}-jobs", options={**added.options, "cluster": cluster},
        )  # fmt: skip
        is_own = before is not None and before.cluster == cluster
        if options.hands_over and (before is None or (is_own and not is_same_node(before, wanted))):
            yield wanted
        elif is_own and not options.hands_over and not jobs_on_node(state, name):
            yield e.NodeRemoved(at=at, name=name)

    def expected_nodes(
        self, allocation_of: Callable[[str], Allocation | None]
    ) -> list[ExpectedNode]:
        """Return the pilots that have not joined yet, if their start is known."""
        state, now, expected = self.state(), self.clock().wall, []
        for cluster, options in clusters_with_pilots(state):
            shape = options.pilot
            declared = self._history(cluster).facts or shape.node_facts(cluster)
            for name in pilots_of(state, cluster):
                allocation = allocation_of(name)
                if allocation is None or name in state.record.nodes:
                    continue
                start = allocation.start if allocation.is_queued else now
                if start is None or start < now:
                    continue
                end = start + shape.seconds if shape.seconds else None
                facts = replace(declared, name=name, on_demand=0, max_seconds=0, ends_at=end)
                expected.append(ExpectedNode(start, facts))
        return expected

    def _new_pilots(
        self, state: State, cluster: str, count: int, at: float
    ) -> Iterator[e.NodeAdded]:
        taken = {*state.record.remotes, *state.cluster.nodes}
        added, number = state.record.remotes[cluster], 0
        kind = kind_of(added)
        assert kind is not None
        for _ in range(count):
            number += 1
            while f"{cluster}-{number}" in taken:
                number += 1
            yield kind.pilot(added, f"{cluster}-{number}", self.install, at)


def clusters_with_pilots(state: State) -> Iterator[tuple[str, ClusterOptions]]:
    """Yield the clusters with pilots, and their options."""
    for name, kind in clusters(state.record.remotes):
        try:
            options = kind.parse(state.record.remotes[name].options)
        except BadValue as error:  # of a later version
            logger.warning("%s: %s", name, error)
            continue
        if options.has_pilots:
            yield name, options


def pilots_needed(state: State, shape: PilotShape, facts: NodeFacts | None) -> tuple[int, int]:
    """Return how many further pilots the first pending job needs that they could run.

    Also the seconds for which it needs them.
    """
    trial = Cluster()
    declared = facts or shape.node_facts("pilot")
    for index in range(shape.max_pilots):
        pilot = replace(declared, name=f"pilot-{index}", on_demand=0, ends_at=None)
        trial.add_node(pilot, ())
    for job in first_jobs(state.pending, state.jobs, MAX_EXAMINED_JOBS):
        if state.quota_reason(state.pending.class_of[job.id]):
            continue
        if state.spec(job).time_needed > shape.usable_seconds:
            continue
        placement = find_placement(trial, state.effective_request(job, state.spec(job)))
        if placement is not None:
            return len(placement.parts), state.spec(job).time_needed
    return 0, 0
