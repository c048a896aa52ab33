"""An attempt on this node, as the local executor and its recovery know it."""

from __future__ import annotations

import signal

from msgspec import Struct

from stoker.core.model.job import AttemptId
from stoker.executors.linux import cgroup, oom


class LocalAttempt(Struct):
    """An attempt that the local executor looks after."""

    id: AttemptId
    token: str
    pid: int | None = None
    """Its main process, once it was started."""
    ticks: int = 0
    """Start time of the main process, in clock ticks since boot."""
    has_started: bool = False
    """The journal knows that its process was started."""
    supervisor: int | None = None
    """Pid of the supervisor that has it; None if that belongs to an earlier daemon."""
    out: str | None = None
    err: str | None = None
    pidfd: int = -1
    """Watched if the process is not a child of a supervisor of this daemon."""
    cgroup: str | None = None
    oom_kills_before: int = 0
    status: int | None = None
    """Wait status of the main process, once it is known."""
    ended_at: float = 0.0
    cpu_seconds: float | None = None
    """Of its main process and all descendants that were waited for."""
    rss_peak: int | None = None
    """MiB of the largest of them."""
    is_lost: bool = False
    """The main process has ended, and no record of its exit can come any more."""
    record_deadline: float | None = None
    """The main process has ended; boot time by which its exit record must exist."""
    terminating_since: float | None = None
    term_pending: bool | None = None
    """Its processes are to be asked to end with the next step; True: at once."""
    kill_at: float | None = None
    was_killed: bool = False
    leftovers_uncounted: bool = False
    """The main process has ended, and processes that it left behind are not counted yet."""
    left_behind: int = 0
    """Processes that outlived the main process."""
    signal_uncaught: bool = False
    """No process handled the signal that asked the attempt to stop."""

    def memory_shortage(self, code: int) -> str | None:
        """Return the memory that it ran out of: of the host, of a GPU, or none."""
        if self.terminating_since is not None and not self.left_behind:
            return None
        if self.cgroup is not None and cgroup.killed_for_memory(self.cgroup):
            return "host"
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed and oom.oom_kills() > self.oom_kills_before:
            return "host"
        return "cuda" if oom.cuda_out_of_memory(self.out, self.err) else None

    @property
    def exit_note(self) -> str | None:
        """What is remarkable about its end."""
        if self.left_behind:
            how = "killed" if self.was_killed else "ended"
            left = "1 process" if self.left_behind == 1 else f"{self.left_behind} processes"
            return f"left {left} behind, {how} with the job"
        return "killed after the grace period" if self.was_killed else None
