"""What is stored besides jobs and specs, and which rows the next commit writes.

The cluster record has nodes, queues, policies, usage and job profiles, and is one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from stoker.core.events import NodeAdded, QueueDefined
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.alarm import Alarm
from stoker.core.model.limits import Share, SubjectLimits, user_key
from stoker.core.model.notification import NotifyRule
from stoker.core.model.profile import JobProfiles
from stoker.core.model.resources import GPU, DeviceFacts, NodeFacts
from stoker.core.model.units import THOUSAND
from stoker.core.policies.fair_share import DecayedUsage

QueueDevices = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of devices by type; `node/name` is that device of that node, `name` one of any node."""


NOT_REACHED_YET = "it has not been reached yet"


class Unreachable(Struct, frozen=True, omit_defaults=True):
    """Since when a node does not answer, and why."""

    since: float
    boot_time: float | None = field(name="boot")
    """On the boot clock; None before the first attempt to connect."""
    reason: str = field(name="why")


class ClusterRecord(Struct, omit_defaults=True):
    """State besides jobs and specs: small, and written whole when it changed."""

    next_id: int = 1
    last_first: int = 0
    """First job of the newest submission, which users call `last`."""
    last_count: int = 0
    last_by_uid: dict[int, tuple[int, int]] = {}
    """The same, first job and number of jobs, of each user of a system daemon."""
    boot: str = ""
    term: int = 0
    nodes: dict[str, NodeFacts] = {}
    drained: dict[str, str] = {}
    """Reasons by `node/type:device`."""
    foreign_use: dict[str, tuple[str, int]] = field(default_factory=dict, name="strangers")
    queues: dict[str, QueueDefined] = {}
    history_cleared: dict[str, float] = field(default_factory=dict, name="cleared")
    """When the history of a compat command was last cleared."""
    remotes: dict[str, NodeAdded] = {}
    """Remote nodes by name."""
    unreachable: dict[str, Unreachable] = field(default_factory=dict, name="away")
    """Nodes that do not answer."""
    cordoned: dict[str, str] = field(default_factory=dict, name="closed")
    """Nodes that take no new jobs, and why."""
    foreign_load: dict[str, tuple[int, int]] = field(default_factory=dict, name="others")
    """Cores and memory used by foreign processes, by node."""
    abandoned_attempts: dict[str, tuple[tuple[int, int], ...]] = field(
        default_factory=dict, name="strays"
    )
    """Attempts that were given up and may still run, by node."""
    profiles: JobProfiles = field(default_factory=dict, name="families")
    """Job profiles, the one updated last at the end."""
    policies: dict[str, tuple[str, dict[str, float]]] = {}
    """Chosen policy and parameters by queue; `*`: all other queues."""
    policies_since: dict[str, float] = {}
    """When the policy of each queue was last chosen or reset to that of `*`."""
    usage: dict[str, DecayedUsage] = {}
    """Decayed usage by user, in queues with fair share."""
    missing_devices: dict[str, dict[str, float]] = field(default_factory=dict, name="lacking")
    """By image: nodes that could not run its container, and when that was found."""
    queues_with_progress: dict[str, None] = field(default_factory=dict, name="reporting")
    """Queues with a job that reported epochs."""
    alarms: dict[str, Alarm] = {}
    """Active alarms by their keys."""
    limits: dict[str, SubjectLimits] = {}
    """Limits of users, groups and queues by the keys of these."""
    reservations: dict[str, AdvanceReservation] = {}
    """Advance reservations by name."""
    groups: dict[str, tuple[int, ...]] = {}
    """Unix groups by the keys of users, as they were at the last submission."""
    uids: dict[str, int] = {}
    """Users of a system daemon by name, as at their last submission."""
    shares: dict[str, Share] = {}
    """Weights of users and groups in fair share by their keys; without: 1."""
    gpu_time: dict[str, dict[int, float]] = {}
    """GPU-seconds of ended attempts in each hour since 1970, by the keys of users, groups and
    queues with a limit of GPU-hours; a week of it."""
    notify_rules: dict[int, NotifyRule] = {}
    """Rules of notifications that users have added, by id."""
    last_notify_rule: int = 0
    """The id of the newest rule of notifications."""

    def weight_of(self, user: str) -> tuple[float, str]:
        """Return the weight of a user in fair share, and the key that it is from; empty: none.

        Its own, else the largest of its groups.
        """
        key = user_key(user, self.uids.get(user))
        if (own := self.shares.get(key)) is not None:
            return own.weight, key
        keys = (f"group:{gid}" for gid in self.groups.get(key, ()))
        weights = [(self.shares[each].weight, each) for each in keys if each in self.shares]
        return max(weights, default=(1.0, ""))

    def note_last(self, uid: int | None, first: int, count: int) -> None:
        """Note the newest submission, of all and of its user."""
        self.last_first, self.last_count = first, count
        if uid is not None:
            self.last_by_uid[uid] = first, count

    def last_of(self, uid: int | None) -> tuple[int, int]:
        """Return the newest submission of a user; None: of all."""
        if uid is None:
            return self.last_first, self.last_count
        return self.last_by_uid.get(uid, (0, 0))


def history_key(client: str, uid: int | None) -> str:
    """Return the key in `history_cleared` of a compat command and a user."""
    return client if uid is None else f"{client}:{uid}"


def queue_devices(queue: QueueDefined, nodes: Mapping[str, NodeFacts]) -> QueueDevices:
    """Return the devices of a queue by type."""
    sizes: dict[str, dict[str, int]] = {}
    for type, name, capacity in queue.resources:
        sizes.setdefault(type, {})[name] = capacity
    return tuple(
        (type, (counted_gpus(names, nodes) if type == GPU else ()) or tuple(names))
        for type, names in sizes.items()
    )


def counted_gpus(sizes: Mapping[str, int], nodes: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return the GPUs of a queue defined by number (`0` to `3` of capacity 1) on several nodes.

    In the order of nodes. Empty if the names are those of devices, or no node has a GPU.
    """
    names = map(str, range(len(sizes)))
    if len(nodes) < 2 or list(sizes) != list(names) or set(sizes.values()) != {THOUSAND}:
        return ()
    gpus = [
        f"{facts.name}/{device.name}"
        for facts in nodes.values()
        for device in facts.types.get(GPU, ())
        if device.capacity == THOUSAND
    ]
    return tuple(gpus[: len(sizes)])


def queue_defined_devices(
    queues: Iterable[QueueDefined], facts: NodeFacts, nodes: Mapping[str, NodeFacts]
) -> dict[str, tuple[DeviceFacts, ...]]:
    """Return devices of types that the node itself does not have. Equal names are one device.

    GPUs only if no node has any: a queue's jobs run where the GPUs are.
    """
    has_gpus = any(node.types.get(GPU) for node in nodes.values())
    capacities: dict[str, dict[str, int]] = {}
    for queue in queues:
        for type, name, capacity in queue.resources:
            if type not in facts.types and not (type == GPU and (has_gpus or "/" in name)):
                capacities.setdefault(type, {}).setdefault(name, capacity)
    return {
        type: tuple(DeviceFacts(name, capacity=capacity) for name, capacity in devices.items())
        for type, devices in capacities.items()
    }


class ChangeSet:
    """Ids of changed jobs and sweeps, of unloaded jobs, and whether the cluster record changed."""

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.sweeps: set[int] = set()
        self.unloaded: list[int] = []
        self.has_record = False

    def job(self, id: int) -> None:
        """Note that a job changed."""
        self.jobs.add(id)

    def sweep(self, id: int) -> None:
        """Note that a sweep changed."""
        self.sweeps.add(id)

    def unload(self, id: int) -> None:
        """Note that a finished job left memory."""
        self.jobs.discard(id)
        self.unloaded.append(id)

    def add(self, later: ChangeSet) -> None:
        """Add what a later commit changed."""
        self.jobs |= later.jobs
        self.sweeps |= later.sweeps
        self.unloaded += later.unloaded
        self.has_record = self.has_record or later.has_record

    def record(self) -> None:
        """Note that the cluster record changed."""
        self.has_record = True
