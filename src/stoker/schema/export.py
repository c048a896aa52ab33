"""Jobs that wait, as submissions to another daemon."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ExportedClause(Struct, kw_only=True):
    """An open condition of a dependency, on jobs of the exporting daemon."""

    kind: str
    jobs: list[int]
    delay: int = 0


class ExportedJobs(Struct, kw_only=True):
    """Jobs, or a sweep, that one submission makes again, in its order; it holds them."""

    ids: list[int]
    unheld: list[int]
    """Those of them that are not held."""
    label: str
    submission: dict[str, Any]
    clauses: list[ExportedClause] = []
    sweep: bool = False
    """Whether it is a sweep, for `POST /sweeps`: then `ids` has its id only."""
    any: bool = False
    """Whether one of the clauses is enough."""


class KeptJob(Struct, kw_only=True):
    """An unfinished job or sweep that must end where it is."""

    id: int
    label: str
    why: str
    is_running: bool = False


class ExportReply(Struct, kw_only=True):
    """Reply of `GET /export`."""

    jobs: list[ExportedJobs]
    kept: list[KeptJob]
