"""Jobs, GPUs and nodes as frozen, typed values: the views of `stoker.schema` with real times."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

import msgspec

from stoker import wire
from stoker.schema.gpu import GpuView
from stoker.schema.job import JobView, WhyView
from stoker.schema.node import DrainReply, NodeView


class Decoded:
    """Mixin: built from a reply, which stays available as `raw`."""

    __slots__ = ()

    @classmethod
    def of(cls, view: dict[str, Any]) -> Self:
        """Return the reply as a value of this type."""
        return msgspec.convert({**view, "raw": view}, cls)


class Value(msgspec.Struct, Decoded, frozen=True, kw_only=True):
    """A reply that only the Python API has a type for."""

    raw: dict[str, Any] = {}

    def __repr__(self) -> str:
        fields = [name for name in self.__struct_fields__ if name != "raw"]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        return f"{type(self).__name__}({shown})"


class Job(Decoded, JobView[datetime], frozen=True, kw_only=True):
    """A job at the time of the request."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<stoker.Job {self.label}, {self.name!r}, {self.state}>"

    @property
    def finished(self) -> bool:
        """Whether it has ended for good."""
        return self.state in wire.FINISHED

    @property
    def ok(self) -> bool:
        """Whether it completed without an error."""
        return self.state == "COMPLETED"

    @property
    def gpus(self) -> list[str]:
        """The GPUs that it has or had."""
        return self.devices.get("gpu", [])

    @property
    def array(self) -> int | None:
        """The id of its array."""
        return self.array_index.id if self.array_index is not None else None

    @property
    def index(self) -> int | None:
        """Its index in that array."""
        return self.array_index.index if self.array_index is not None else None

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics that its script reported last."""
        return self.training.metrics if self.training is not None else {}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the journal; `seq` is where to resume after it."""

    seq: int
    kind: str
    """`JobsSubmitted`, `ProcessStarted`, `ProcessExited`, `JobCancelled`, …"""
    at: datetime
    job: int | None = None
    """The id of its job, if it concerns one."""
    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class Why(Decoded, WhyView[datetime], frozen=True, kw_only=True):
    """Why a job is pending, and when it is expected to start."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was changed, or (`why`) was not."""

    id: int
    label: str
    state: str | None = None
    why: str | None = None


class Changed(Value, frozen=True, kw_only=True):
    """The jobs that an action was applied to, and those that it skipped, with the reason."""

    done: list[Done] = []
    skipped: list[Done] = []


class Gpu(Decoded, GpuView, frozen=True, kw_only=True):
    """A GPU and its use."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def jobs(self) -> list[str]:
        """The labels of the jobs on it."""
        return [job.label for job in self.gpu_jobs]


class Node(Decoded, NodeView, frozen=True, kw_only=True):
    """A node and its free resources."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class Drained(Decoded, DrainReply, frozen=True, kw_only=True):
    """Devices that were drained or undrained, and the jobs that run on them."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict)
