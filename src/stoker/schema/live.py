"""Jobs as columns, and the frames of the live stream."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from stoker.schema.alarm import AlarmView


class JobRow(Struct, frozen=True, kw_only=True):
    """A job in a list; its fields but the label are the columns of `JobColumns`."""

    id: int
    label: str
    array: int | None = None
    """The id of its array or sweep, which is that of the first member."""
    first: int | None = None
    """The index of the array's first member, if indexes are as far apart as ids."""
    labels: str | None = None
    """Separated by commas."""
    name: str = ""
    user: str = ""
    queue: str = "default"
    state: str
    node: str | None = None
    """The first node on which it runs or ran."""
    cause: str | None = None
    gpus: float | None = None
    """The number of requested GPUs, of an elastic job the least."""
    devices: list[str] | None = None
    """GPUs on its first node while it holds them."""
    priority: int = 0
    held: bool = False
    submitted: int = 0
    """Unix times, in seconds."""
    started: int | None = None
    ended: int | None = None
    begin: int | None = None
    limit: int | None = None
    expected: int | None = None
    """Predicted start of a pending or end of a running job."""
    sweep: int | None = None
    epochs: int | None = None
    total_epochs: int | None = None
    attempt: int = 0


class Hello(Struct, kw_only=True):
    """The first frame of a live stream."""

    version: str
    api: str
    boot: str
    """A random name of this run of the daemon; after another one everything is loaded again."""
    seq: int
    now: float
    user: str
    rights: list[str]
    read_only: bool
    topics: list[str]


class JobsFrame(Struct, omit_defaults=True, kw_only=True):
    """Jobs that changed since the last frame: `changed` replaces rows, then `gone` removes some."""

    seq: int
    changed: list[JobRow] | UnsetType = UNSET
    gone: list[int] | UnsetType = UNSET
    reorder: bool | UnsetType = UNSET
    """Whether the order of pending jobs changed otherwise than by new ones at the end."""
    reset: bool = False
    """Too much has changed: load the columns again."""


class CountsFrame(Struct, kw_only=True):
    """Number of jobs by state."""

    seq: int
    counts: dict[str, int]


class AlarmsFrame(Struct, kw_only=True):
    """All active alarms, first and whenever they change."""

    seq: int
    alarms: list[AlarmView]


class GpusFrame(Struct, kw_only=True):
    """The use of every GPU."""

    t: float
    g: list[list[Any]]
    """NODE/ID, percent, MiB, degrees Celsius, watts, state, and `[job, share, MiB]` per job."""


class JobColumns(Struct, kw_only=True):
    """Reply of `GET /jobs/columns`."""

    seq: int
    """All changes up to this number of the journal are in it."""
    boot: str
    """A random name of this run of the daemon."""
    now: float
    total: int
    """How many jobs match."""
    offset: int
    counts: dict[str, int]
    columns: dict[str, list[Any]]
    dictionary: dict[str, list[str]]
    """Values of the columns that hold indexes."""
