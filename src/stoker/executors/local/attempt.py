"""An attempt on this node, as the local executor and its recovery know it."""

from __future__ import annotations

from msgspec import Struct

Key = tuple[int, int]


class LocalAttempt(Struct):
    """An attempt that this executor looks after."""

    key: Key
    token: str
    pid: int | None = None
    ticks: int = 0
    """The kernel's start time of that process."""
    began: bool = False
    """The journal says that its process was started."""
    keeper: int | None = None
    """The keeper that has it; None when an earlier daemon's had."""
    out: str | None = None
    err: str | None = None
    pidfd: int = -1
    group: str | None = None
    oom_before: int = 0
    status: int | None = None
    ended_at: float = 0.0
    lost: bool = False
    """Its process has ended, and there is no record of how."""
    record_by: float | None = None
    """Its process is gone; its end must be on record by then."""
    ending_since: float | None = None
    terminate: bool | None = None
    """That it should end is yet to be said to its processes; True: at once."""
    kill_at: float | None = None
    killed: bool = False
    main_ended: bool = False
    """Its main process has ended, and what that left behind is yet to be counted."""
    left_behind: int = 0
    unheard: bool = False
    """Nobody there would have caught the signal that was to make it stop."""
