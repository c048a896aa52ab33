"""Sweeps, for the client."""

from __future__ import annotations

from stoker.api.link import Link


class Sweeps:
    """The verbs about sweeps."""

    link: Link
