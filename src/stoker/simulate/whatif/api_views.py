"""What the API says of machines, queues and jobs, as far as a replay needs it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stoker.core.units import BadValue
from stoker.simulate.traces.formats import stoker_history as history


class Asked(history.Asked):
    """All that a job asks for, as it was typed."""

    min_vram: int | None = None
    use_gpus: tuple[str, ...] = ()
    avoid_gpus: tuple[str, ...] = ()
    resources: dict[str, str] = msgspec.field(default_factory=dict)
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()


class Part(Struct):
    """What a job on several machines holds of one of them."""

    node: str
    devices: dict[str, list[str]] = {}


class View(history.View):
    """A job as it is listed."""

    label: str = ""
    request: Asked = msgspec.field(default_factory=Asked)
    reason: str | None = None
    depends: str | None = None
    node: str | None = None
    parts: list[Part] = msgspec.field(default_factory=list)
    started_at: str | None = None
    begin_at: str | None = None


class Held(Struct):
    """How much of something a machine has."""

    total: str
    devices: list[str]


class Machine(Struct):
    """A machine as it is listed."""

    name: str
    state: str
    resources: dict[str, Held] = {}


class Card(Struct):
    """A GPU as it is listed."""

    node: str
    id: str
    index: int | None = None
    model: str | None = None
    memory: int | None = None
    drained: str | None = None


class Queue(Struct):
    """A named queue as it is listed."""

    name: str
    max_running: int | None = None
    max_gpus: str | None = None
    priority: int = 0
    strict: bool = False
    devices: tuple[str, ...] = ()


class Rule(Struct):
    """What a queue goes by."""

    queue: str
    chosen: str
    own: bool = False
    changed: dict[str, float] = {}


class Facts(Struct):
    """What the client has gathered."""

    now: float
    days: float
    history: list[View]
    queue: list[View]
    nodes: list[Machine]
    gpus: list[Card]
    queues: list[Queue]
    policies: list[Rule]
    meant: dict[str, list[int]] = {}
    """Jobs by what they were called on the command line."""


def read(text: bytes) -> Facts:
    """Read what the client sends."""
    try:
        return msgspec.json.decode(text, type=Facts)
    except msgspec.MsgspecError as error:
        raise BadValue(
            f"Cannot read the data of the daemon ({error}); restart it: stoker daemon restart"
        ) from error
