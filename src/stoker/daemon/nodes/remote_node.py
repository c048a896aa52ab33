"""RemoteNode: the state of one node's connection and the last measurement of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.resources import NodeFacts
from stoker.core.state.state import State
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector
from stoker.daemon.gpus.memory import sessions_on
from stoker.daemon.nodes import host_load
from stoker.daemon.nodes.configured import is_same_node
from stoker.engine import Instant
from stoker.executors.port import SHORTAGE_SECONDS, AttemptId, Executor, NodeReading
from stoker.executors.rate_limit import RateLimit
from stoker.executors.reactor import TimerHandle
from stoker.probes.remote_facts import RemoteFacts

MAX_CHANGES_AT_ONCE, CHANGES_PER_SECOND = 2000, 2
"""Events that the measurements of a node may cause: one that reports something else every time
must not fill the journal."""
JOIN_COST = 200
"""Cost of reporting other devices, in such events."""
CLOSED_SECONDS = 15.0
"""Time during which a node that had no space for a job gets no other."""


class NodeState(Enum):
    """What is known of a node's connection."""

    CONNECTING = auto()
    """The node has not answered yet."""
    RECONCILING = auto()
    """It answers; its attempts are not accounted for, or the core does not know that yet."""
    UP = auto()
    """The core may place jobs on it."""
    UNREACHABLE = auto()
    """It does not answer."""
    LEAVING = auto()
    """It was removed; its connection is kept for a moment."""


class RemoteNode(Struct):
    """A node that is not this machine."""

    added: e.NodeAdded
    executor: Executor
    detector: ForeignUsageDetector
    changes: RateLimit
    clock: Callable[[], Instant]
    state: NodeState = NodeState.CONNECTING
    facts: NodeFacts | None = None
    """Its resources by the last measurement."""
    reading: RemoteFacts | None = None
    """The last measurement, if it has an agent."""
    seen: float = 0.0
    """Boot time of the last measurement."""
    is_fresh: bool = False
    """The last measurement has not been reported to the core."""
    joined: NodeFacts | None = None
    """The resources that were reported to the core last."""
    ended: Sequence[AttemptId] | None = None
    """Abandoned attempts that were terminated; None until all attempts are accounted for."""
    why: str = ""
    """Why it is unreachable."""
    error: str | None = None
    """The message of its GPU driver."""
    up_since: float = 0.0
    """Wall time at which it was last up."""
    failed_at: float = 0.0
    """Boot time at which it was last found unreachable."""
    closed_until: float | None = None
    """Boot time until which it gets no job, since it had no space for one."""
    free_cores: float = 0.0
    """Cores that no process uses."""
    closing: TimerHandle | None = None
    """Closes its connection after its removal."""

    @classmethod
    def create(
        cls,
        added: e.NodeAdded,
        executor: Executor,
        detector: ForeignUsageDetector,
        clock: Callable[[], Instant],
    ) -> RemoteNode:
        """Return a node that was never connected."""
        changes = RateLimit(MAX_CHANGES_AT_ONCE, CHANGES_PER_SECOND, clock().boot)
        return cls(added, executor, detector, changes, clock)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.added.name

    @property
    def is_up(self) -> bool:
        """Whether the core may place jobs on it."""
        return self.state is NodeState.UP

    @property
    def has_news(self) -> bool:
        """Whether there is a measurement or an end to report, and the node may be used."""
        return self.ended is not None and (self.is_fresh or self._is_end_new)

    @property
    def _is_end_new(self) -> bool:
        """Whether another scheduler has moved the end of the node."""
        return self.facts is not None and self.facts.ends_at != self._ends_at

    @property
    def _ends_at(self) -> float | None:
        allocation = self.executor.allocation
        return allocation.end if allocation is not None else None

    def may_change(self, cost: int) -> bool:
        """Return whether changes are reported: False if the node changes too often."""
        return self.changes.try_spend(cost, self.clock().boot)

    def take_reading(self, state: State, reading: NodeReading) -> list[e.Event]:
        """Store a measurement; return what others use there."""
        events: list[e.Event] = []
        measured = reading if isinstance(reading, RemoteFacts) else None
        if measured is not None:
            self.error = measured.reading.error
            self.free_cores = host_load.free_cores(self.reading, measured)
            load = host_load.load_change(state, self.name, self.reading, measured)
            events += [load] if load is not None else []
        facts = reading.node_facts(self.name)
        self.facts = replace(facts, ends_at=self._ends_at)
        self.reading, self.is_fresh = measured, True
        now = self.clock()
        self.seen = now.boot
        if self.state in (NodeState.CONNECTING, NodeState.UNREACHABLE):
            self.state = NodeState.RECONCILING
        if self.closed_until is not None and now.boot >= self.closed_until:
            self.closed_until = None
            events.append(e.NodeCordoned(at=now.wall, node=self.name))
        return events

    def reading_failed(self, error: str | None) -> None:
        """Note that the GPU driver did not answer; earlier measurements stay valid."""
        self.error, self.seen = error, self.clock().boot

    def close_if_full(self, event: e.Event) -> list[e.Event]:
        """Give a node that had no space for a job no other for a while."""
        is_shortage = isinstance(event, e.StartCancelled) and event.delay >= SHORTAGE_SECONDS
        if not isinstance(event, e.StartCancelled) or not is_shortage or not self.is_up:
            return []
        is_closed = self.closed_until is not None
        self.closed_until = self.clock().boot + CLOSED_SECONDS
        return [] if is_closed else [e.NodeCordoned(at=event.at, node=self.name, why=event.why)]

    def take_events(self, state: State, install: str) -> list[e.Event]:
        """Return first the resources of the node, then their use, then that it may be used."""
        if self.facts is None or self.ended is None:
            return []
        now = self.clock().wall
        if self._is_end_new:
            self.facts, self.is_fresh = replace(self.facts, ends_at=self._ends_at), True
        if state.record.nodes.get(self.name) != self.facts:
            # Once per measurement: it would not end while the journal cannot be written.
            self.is_fresh = self.joined is not self.facts and self.may_change(JOIN_COST)
            self.joined = self.facts
            return [e.NodeJoined(at=now, facts=self.facts)] if self.is_fresh else []
        if not self.is_fresh:
            return []
        self.is_fresh = False
        events = self._foreign_use(state, install)
        if not self.may_change(len(events)):
            events = []
        if not self.is_up:
            events.append(e.NodeReached(at=now, node=self.name, ended=tuple(self.ended)))
            self.state, self.why, self.up_since, self.ended = NodeState.UP, "", now, ()
        return events

    def _foreign_use(self, state: State, install: str) -> list[e.Event]:
        reading = self.reading
        if reading is None:
            return []
        owner = reading.owner_lookup(install, sessions_on(state, self.name))
        running = {(job.id, job.attempt) for job in state.running.values()}

        def owner_in_journal(pid: int) -> AttemptId | None:
            # An attempt that the journal does not know uses its GPU like any foreign process.
            attempt = owner(pid)
            return attempt if attempt in running else None

        return self.detector.update(state, reading.reading, owner_in_journal, reading.identify)

    def accounted(self, ended: Sequence[AttemptId]) -> None:
        """Note that all attempts on the node are accounted for."""
        self.ended = ended

    def set_unreachable(self, why: str) -> bool:
        """Note that the node does not answer; return whether that is new to the core."""
        is_new = self.is_up or self.why != why
        self.state, self.why, self.failed_at = NodeState.UNREACHABLE, why, self.clock().boot
        self.facts = self.reading = self.ended = None
        self.is_fresh = False
        return is_new

    def leave(self, closing: TimerHandle) -> None:
        """Note that it was removed, and what closes its connection."""
        self.state, self.closing = NodeState.LEAVING, closing

    def rejoin(self, added: e.NodeAdded, detector: ForeignUsageDetector) -> None:
        """Use a node again that was removed a moment ago."""
        self.added, self.detector = added, detector
        if self.closing is not None:
            self.closing.cancel()
        self.state, self.joined = NodeState.RECONCILING, None
        self.is_fresh = self.facts is not None

    def is_reached_like(self, added: e.NodeAdded) -> bool:
        """Return whether another addition of the node means the same executor."""
        return is_same_node(self.added, added)
