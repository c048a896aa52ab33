"""Pod: what stoker reads of a pod, and of the events of a watch."""

from __future__ import annotations

from msgspec import Raw, Struct, field
from msgspec.json import decode

CONTAINER = "main"
"""The container that runs the attempt."""
HARMLESS = frozenset({"MissingClusterDNS", "DNSConfigForming"})
"""Warnings after which a container is created all the same."""
GONE = 410
"""The status of a watch that must begin again with a list."""


class ApiStruct(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of the API; fields that stoker does not read are skipped."""


class Metadata(ApiStruct, frozen=True):
    """Identity of an object."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class PodSpec(ApiStruct, frozen=True):
    """Where a pod was placed."""

    node_name: str = ""


class Condition(ApiStruct, frozen=True):
    """A condition of a pod."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class Waiting(ApiStruct, frozen=True):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class Running(ApiStruct, frozen=True):
    """A container that runs."""

    started_at: str = ""


class Terminated(ApiStruct, frozen=True):
    """A container that has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """One of three states; none of them: not known yet."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """The state of one container."""

    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(ApiStruct, frozen=True):
    """What is known of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def container(self) -> ContainerState:
        """The state of the container of the attempt; others may have been injected."""
        statuses = self.status.container_statuses
        found = (each.state for each in statuses if each.name == CONTAINER)
        return next(found, ContainerState())

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion was requested; finalizers may hold it."""
        return self.metadata.deletion_timestamp is not None

    def condition(self, type: str) -> Condition | None:
        """Return a condition."""
        return next((each for each in self.status.conditions if each.type == type), None)


class ListMetadata(ApiStruct, frozen=True):
    """The version of a list, and the token of its next page."""

    resource_version: str = ""
    next_page: str = field(default="", name="continue")


class PodList(ApiStruct, frozen=True):
    """A page of a list."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] = ()


class PodEvent(ApiStruct, frozen=True):
    """What happened to a pod."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> str:
        """When it happened last, as text that sorts by time to the second."""
        return (self.last_timestamp or self.event_time or "")[:19]


class EventList(ApiStruct, frozen=True):
    """The events of a pod."""

    items: tuple[PodEvent, ...] = ()

    def trouble(self) -> str:
        """Return the last warning that nothing but warnings followed; empty if there is none."""
        ordered = sorted(self.items, key=lambda event: event.at)
        known = [event for event in ordered if event.reason not in HARMLESS]
        last = known[-1] if known else PodEvent()
        is_trouble = last.type == "Warning" and last.reason.startswith("Failed")
        return f"{last.reason}: {last.message}" if is_trouble else ""


class WatchEvent(ApiStruct, frozen=True):
    """A line of a watch."""

    type: str
    object: Raw


class Status(ApiStruct, frozen=True):
    """The reason of a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: Metadata = Metadata()


class NodeList(ApiStruct, frozen=True):
    """All nodes with a label."""

    items: tuple[Node, ...] = ()

    @staticmethod
    def products(body: Raw, label: str) -> tuple[str, ...]:
        """Return the values of a label in a list of nodes."""
        nodes = decode(body, type=NodeList).items
        values = (node.metadata.labels.get(label, "") for node in nodes)
        return tuple(sorted(set(filter(None, values))))
