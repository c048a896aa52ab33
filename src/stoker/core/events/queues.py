"""Events of queues and policies."""

from __future__ import annotations

from msgspec import field

from stoker.core.events.base import Event


class QueueDefined(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A queue was defined or changed; the event is kept as the configuration of the queue."""

    name: str
    max_running: int | None = None
    max_gpus: int | None = None
    priority: int = 0
    strict: bool = False
    devices: tuple[str, ...] = ()
    """GPUs that its jobs may use, as typed; empty: all."""
    resources: tuple[tuple[str, str, int], ...] = ()
    """Type, name and capacity of the devices that its jobs may use; empty: all devices."""
    max_waiting: int | None = None
    max_job_gpus: int | None = None


class QueueDeleted(Event, frozen=True, kw_only=True):
    """A queue was deleted."""

    name: str


class PolicyChosen(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of a queue was chosen; `*`: of every queue without its own policy."""

    queue: str
    name: str = ""
    """Empty: the policy of `*`."""
    parameters: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it


class HistoryCleared(Event, tag="RecordsCleared", frozen=True, kw_only=True):
    """The history of a compat command was cleared: it no longer lists jobs that ended before."""

    client: str = field(name="door")
