"""RemoteNode: the state of one node's connection and the last measurement of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from msgspec import Struct

from stoker.core.cluster import NodeFacts
from stoker.core.events import NodeAdded
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector
from stoker.engine import Instant
from stoker.executors.port import AttemptId, Executor
from stoker.executors.rate_limit import RateLimit
from stoker.executors.reactor import TimerHandle
from stoker.probes.remote_facts import RemoteFacts

MAX_CHANGES_AT_ONCE, CHANGES_PER_SECOND = 2000, 2
"""Events that the measurements of a node may cause: one that reports something else every time
must not fill the journal."""


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

    added: NodeAdded
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
        added: NodeAdded,
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
        """Whether there is a measurement to report, and the node may be used."""
        return self.is_fresh and self.ended is not None

    def may_change(self, cost: int) -> bool:
        """Return whether changes are reported: False if the node changes too often."""
        return self.changes.try_spend(cost, self.clock().boot)

    def take_reading(self, facts: NodeFacts, reading: RemoteFacts | None) -> None:
        """Store a measurement."""
        self.facts, self.reading, self.is_fresh = facts, reading, True
        self.seen = self.clock().boot
        if self.state in (NodeState.CONNECTING, NodeState.UNREACHABLE):
            self.state = NodeState.RECONCILING

    def accounted(self, ended: Sequence[AttemptId]) -> None:
        """Note that all attempts on the node are accounted for."""
        self.ended = ended

    def set_up(self, now: float) -> None:
        """Note that the core knows that the node is up."""
        self.state, self.why, self.up_since = NodeState.UP, "", now
        self.ended = ()

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

    def rejoin(self, added: NodeAdded, detector: ForeignUsageDetector) -> None:
        """Use a node again that was removed a moment ago."""
        self.added, self.detector = added, detector
        if self.closing is not None:
            self.closing.cancel()
        self.state, self.joined = NodeState.RECONCILING, None
        self.is_fresh = self.facts is not None

    def is_reached_like(self, added: NodeAdded) -> bool:
        """Return whether another addition of the node means the same executor."""
        fields = ("executor", "address", "key", "shared", "options")
        return all(getattr(self.added, name) == getattr(added, name) for name in fields)
