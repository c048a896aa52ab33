"""Events of nodes and their devices."""

from __future__ import annotations

from stoker.core.events.base import Event
from stoker.core.model.hardware import NodeFacts


class NodeJoined(Event, frozen=True, kw_only=True):
    """A node reported its devices."""

    facts: NodeFacts


class NodeAdded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A remote node was added, whether or not it can be reached."""

    name: str
    address: str = ""
    key: str | None = None
    shared: bool = False
    """Whether it shares the file system, so that nothing is copied."""
    configured: bool = False
    """Whether it comes from the configuration file, so that deleting it there removes it."""
    executor: str = "ssh"
    """The kind of executor that runs attempts there."""
    options: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Options of that executor; `ssh` has the fields above instead."""

    @property
    def cluster(self) -> str | None:
        """The cluster of which it is an allocation."""
        return self.options.get("cluster")


class NodeRemoved(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A remote node was removed."""

    name: str
    why: str = ""
    """Why it is gone, if no user removed it."""


class NodeReached(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A remote node can be reached, and abandoned attempts on it have ended."""

    node: str
    ended: tuple[tuple[int, int], ...] = ()
    """Jobs and attempts that were restarted on other nodes and have ended on this one."""


class NodeUnreachable(Event, frozen=True, kw_only=True):
    """A remote node cannot be reached; its attempts are assumed to run."""

    node: str
    why: str
    boot: float


class NodeCordoned(Event, tag="NodeClosed", frozen=True, kw_only=True, omit_defaults=True):
    """A remote node accepts no new jobs, or (no reason) accepts them again."""

    node: str
    why: str | None = None


class NodeLoadMeasured(Event, tag="NodeMeasured", frozen=True, kw_only=True, omit_defaults=True):
    """Foreign use of a node's cores (thousandths) and memory (MiB) changed."""

    node: str
    cpus: int = 0
    memory: int = 0


class DevicesDrained(Event, frozen=True, kw_only=True):
    """Devices were drained: they accept no new jobs."""

    devices: tuple[tuple[str, str, str], ...]
    reason: str


class DevicesUndrained(Event, frozen=True, kw_only=True):
    """Devices accept jobs again."""

    devices: tuple[tuple[str, str, str], ...]


class ForeignUseChanged(Event, frozen=True, kw_only=True, rename={"foreign_user": "stranger"}):
    """Foreign processes began or stopped using a GPU."""

    node: str
    device: str
    foreign_user: str | None
    memory: int = 0
