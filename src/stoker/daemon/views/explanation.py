"""An explanation as fields of `WhyView`: the JSON keys of `/v1` are older than the names here."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from stoker.core.explain.position import QueuePosition
from stoker.core.explain.why import Explanation


def explanation_fields(explanation: Explanation) -> dict[str, Any]:
    """Return the fields of the view that an explanation fills."""
    position = explanation.queue_position
    return {
        "reason": explanation.reason,
        "text": explanation.text,
        "position": position.position if position is not None else None,
        "ahead": explanation.ahead_labels,
        "nodes": explanation.nodes,
        "coming": explanation.pending_preemptions,
        "standing": _position_fields(position) if position is not None else None,
        "before": explanation.ahead,
        "unblocks": explanation.unblocks,
        "room": explanation.preemption_risk,
    }


def _position_fields(position: QueuePosition) -> dict[str, Any]:
    fields = asdict(position)
    fields["figure"] = fields.pop("rank")
    return fields
