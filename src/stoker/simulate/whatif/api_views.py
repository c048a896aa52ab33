"""The replies of the daemon that a what-if replay starts from."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stoker.core.model.units import BadValue
from stoker.schema.gpu import GpuView
from stoker.schema.job import JobView
from stoker.schema.limits import LimitsView
from stoker.schema.node import NodeView
from stoker.schema.queue import QueuePolicy, QueueView
from stoker.schema.reservations import ReservationView


class WhatIfInput(Struct):
    """The views that the client fetched from the daemon."""

    now: float
    days: float
    history: list[JobView[str]]
    queue: list[JobView[str]]
    nodes: list[NodeView]
    gpus: list[GpuView]
    queues: list[QueueView]
    policies: list[QueuePolicy]
    limits: list[LimitsView] = []
    reservations: list[ReservationView] = []
    meant: dict[str, list[int]] = {}
    """The jobs that each selector on the command line names."""


def read(text: bytes) -> WhatIfInput:
    """Decode what the client sends."""
    try:
        return msgspec.json.decode(text, type=WhatIfInput)
    except msgspec.MsgspecError as error:
        raise BadValue(
            f"Cannot read the data of the daemon ({error}); restart it: stoker daemon restart"
        ) from error
