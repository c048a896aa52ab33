"""Alarms: what is probably wrong with running jobs and GPUs."""

from __future__ import annotations

from msgspec import Struct


class AlarmView(Struct, kw_only=True):
    """An active alarm."""

    kind: str
    """`gpu_idle`, `gpu_unused`, `hung`, `nan`, `log_silent`; of a trial: `loss_flat`, `diverged`;
    of a GPU: `hot`, `ecc`, `xid`."""
    job: int | None = None
    label: str | None = None
    node: str | None = None
    gpu: str | None = None
    since: str
    """When it began; it is raised when that has lasted for some time."""
    text: str
    """The evidence, in words."""
    action: str
    """A command to begin with."""
    response: str = "tell"
    """What follows from it: `tell`, `mark`, `cancel`, `retry` or `preempt_if_waiting`."""
    evidence: str = ""
    """What the processes of the job were doing, in several lines; empty: not known."""


class AlarmList(Struct, kw_only=True):
    """Reply of `GET /alarms`."""

    alarms: list[AlarmView]
