"""Jobs, GPUs and machines as frozen, typed values; `raw` has all that the API said."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

import msgspec

from stoker import wire


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the daemon said, read into fields."""

    raw: dict[str, Any] = {}

    @classmethod
    def of(cls, view: dict[str, Any]) -> Self:
        """Read it."""
        return msgspec.convert({**view, "raw": view}, cls)

    def __repr__(self) -> str:
        fields = [name for name in self.__struct_fields__ if name != "raw"]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        return f"{type(self).__name__}({shown})"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier attempt of a job."""

    attempt: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cause: str | None = None
    exit_code: int | None = None


class Job(Value, frozen=True, kw_only=True):
    """A job as it stood when it was asked about."""

    id: int
    label: str
    """What a person types: `42`, or `42_3` for member 3 of array 42."""
    name: str
    state: str
    reason: str | None = None
    reason_text: str | None = None
    user: str = ""
    queue: str = "default"
    group: str | None = None
    labels: list[str] = []
    priority: int = 0
    command: str = ""
    directory: str = ""
    node: str | None = None
    nodes: list[str] = []
    devices: dict[str, list[str]] = {}
    attempt: int = 0
    attempts: list[Attempt] = []
    pid: int | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None
    elapsed: float | None = None
    time_limit: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: str | None = None
    result: int | None = None
    """How it ended as one number: its code, 128+N for signal N, 124 time limit, 143 cancelled."""
    log: str | None = None
    error_log: str | None = None
    comment: str | None = None
    sweep: int | None = None
    params: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<stoker.Job {self.label}, {self.name!r}, {self.state}>"

    @property
    def finished(self) -> bool:
        """Whether its story is over."""
        return self.state in wire.FINISHED

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.state == "COMPLETED"

    @property
    def gpus(self) -> list[str]:
        """The GPUs it has, or had."""
        return self.devices.get("gpu", [])

    @property
    def array(self) -> int | None:
        """The array it is a member of."""
        return (self.raw.get("array") or {}).get("id")

    @property
    def index(self) -> int | None:
        """Its number in that array."""
        return (self.raw.get("array") or {}).get("index")

    @property
    def metrics(self) -> dict[str, Any]:
        """What its script reported last."""
        return (self.raw.get("training") or {}).get("metrics") or {}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened; `seq` is where to go on after it."""

    seq: int
    kind: str
    """`JobsSubmitted`, `ProcessStarted`, `ProcessExited`, `JobCancelled`, …"""
    at: datetime
    job: int | None = None
    """The id of the job that it is about, if it is about one."""
    raw: dict[str, Any] = {}


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine lacks for a job."""

    name: str
    text: str
    needs: str | None = None
    free: str | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """How a machine stands to a job that waits."""

    node: str
    fits_empty: bool = True
    constraints: list[Constraint] = []


class Why(Value, frozen=True, kw_only=True):
    """Why a job waits, and when it should start."""

    id: int
    label: str
    state: str
    reason: str | None = None
    text: str | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None
    position: int | None = None
    ahead: list[int] = []
    coming: list[str] = []
    nodes: list[Reason] = []


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A job to which something was done, or (`why`) was not."""

    id: int
    label: str
    state: str | None = None
    why: str | None = None


class Changed(Value, frozen=True, kw_only=True):
    """To which jobs a verb was done, and which it passed over, with the reason."""

    done: list[Done] = []
    skipped: list[Done] = []


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU: what it is, how it is used."""

    node: str
    id: str
    state: str
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    memory: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    free: str = "0"

    @property
    def jobs(self) -> list[str]:
        """The labels of the jobs on it."""
        return [str(job["label"]) for job in self.raw.get("jobs") or ()]


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """How much a machine has of something."""

    total: str
    free: str
    held: str = "0"


class Node(Value, frozen=True, kw_only=True):
    """A machine and what is free on it."""

    name: str
    state: str
    address: str | None = None
    """None is this machine."""
    why: str | None = None
    notes: list[str] = []
    resources: dict[str, Resource] = {}
    jobs: int = 0


class Drained(Value, frozen=True, kw_only=True):
    """Devices that were closed or opened, and the jobs that run on them."""

    devices: list[str] = []
    machines: list[str] = []
    running: list[int] = []
    labels: list[str] = []
