"""Limits and advance reservations that hold in a what-if, as the daemon describes them."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.events import LimitsSet, ReservationMade
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.limits import Limits, Subject
from stoker.core.model.units import parse_amount
from stoker.simulate.traces import field_parsers
from stoker.simulate.whatif.api_views import WhatIfInput


def limits(whatif_input: WhatIfInput) -> Iterator[LimitsSet]:
    """Yield the limits of running jobs; users are known by name, members of groups are not."""
    for view in whatif_input.limits:
        subject = _subject(view.subject)
        given = Limits(
            max_gpus=parse_amount(view.max_gpus) if view.max_gpus else None,
            max_running=view.max_running, gpu_memory=view.gpu_memory,
        )  # fmt: skip
        if subject is not None and given != Limits():
            yield LimitsSet(at=0.0, subject=subject, limits=given)


def reservations(whatif_input: WhatIfInput) -> Iterator[ReservationMade]:
    """Yield the advance reservations, in seconds from now."""
    now = whatif_input.now
    for view in whatif_input.reservations:
        if view.begin is None or view.end is None:
            continue
        reservation = AdvanceReservation(
            view.name, field_parsers.moment(view.begin) - now,
            field_parsers.moment(view.end) - now, gpus=tuple(view.gpus), nodes=tuple(view.nodes),
            subjects=tuple(filter(None, map(_subject, view.subjects))),
        )  # fmt: skip
        yield ReservationMade(at=0.0, reservation=reservation)


def _subject(text: str) -> Subject | None:
    """Return a user or a queue; None: a group, whose members are not known here."""
    if text.startswith("queue:"):
        return Subject("queue", text.removeprefix("queue:"))
    return None if text.startswith("@") else Subject("user", text)
