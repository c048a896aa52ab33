"""What Slurm's commands print about a job, from stoker's view of it.

Values have Slurm's spelling: times are local, durations are D-HH:MM:SS, unknown values are what
Slurm 22.05 prints for them.
"""

from __future__ import annotations

import os
import time

from stoker.cli.output import times
from stoker.client.errors import StokerError
from stoker.compat.slurm.columns.formats import fold_hosts
from stoker.wire import JsonObject

VERSION = "22.05.8"
"""The version of Slurm whose output is printed; tools parse it."""
CLUSTER = "stoker"
ENDED_SECONDS = 300.0
"""squeue lists ended jobs for this long, like Slurm with MinJobAge=300."""
MAX_JOBS = 1_000_000
NULL = "(null)"
STATES = {"QUEUED": "PENDING"}
"""States that Slurm does not have."""
REASONS = {"NodeUnreachable": "ReqNodeNotAvail", "QOSMaxJobsLimit": "QOSGrpJobsLimit"}
"""Reasons that Slurm does not have; the others have its names."""
END_REASONS = {
    "FAILED": "NonZeroExitCode", "TIMEOUT": "TimeLimit", "OUT_OF_MEMORY": "OutOfMemory",
    "NODE_FAIL": "NodeDown", "DEADLINE": "DeadLine",
}  # fmt: skip
COMPACT_STATES = {
    "PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETED": "CD", "CANCELLED": "CA",
    "FAILED": "F", "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR", "BOOT_FAIL": "BF",
    "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM", "COMPLETING": "CG", "CONFIGURING": "CF",
    "RESIZING": "RS", "RESV_DEL_HOLD": "RD", "REQUEUED": "RQ", "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH", "REVOKED": "RV", "SIGNALING": "SI", "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO", "STOPPED": "ST",
}  # fmt: skip
"""Slurm's states in the order of its messages, with their short forms."""
_FULL_STATES = {code: name for name, code in COMPACT_STATES.items()}
CURRENT_STATES = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING"})
SHOWN_WITH_REASON = frozenset({"PENDING", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "FAILED"})
"""In these states NODELIST(REASON) is the reason."""


class SlurmError(StokerError):
    """An error in Slurm's words, which is printed as it is."""


def full_state(word: str) -> str:
    """Return the name of a state that is given by its name or short form, in capitals."""
    return _FULL_STATES.get(word.upper(), word.upper())


def user_name() -> str:
    """Return the name of the user."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def group_name(id: int) -> str:
    """Return the name of a group."""
    import grp

    try:
        return grp.getgrgid(id).gr_name
    except KeyError:
        return str(id)


def format_time(seconds: float | None, unknown: str) -> str:
    """Return seconds since 1970 as Slurm prints a time."""
    if seconds is None:
        return unknown
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def local_time(text: str | None, unknown: str) -> str:
    """Return a time of stoker's replies as Slurm prints it."""
    return format_time(times.epoch(text), unknown)


def duration(seconds: float | None, unknown: str = "UNLIMITED") -> str:
    """Return `1-02:03:04`, `1:02:03`, `2:03`."""
    return unknown if seconds is None else times.duration(seconds)


def full_duration(seconds: float | None, unknown: str = "UNLIMITED") -> str:
    """Return `1-02:03:04`, `01:02:03`, `00:02:03`."""
    if seconds is None:
        return unknown
    days, left = divmod(int(seconds), 86400)
    text = f"{left // 3600:02}:{left // 60 % 60:02}:{left % 60:02}"
    return f"{days}-{text}" if days else text


def format_memory(mebibytes: int) -> str:
    """Return `200M`, `1G`: the largest unit that needs no fraction."""
    units = "MGTP"
    while mebibytes and mebibytes % 1024 == 0 and len(units) > 1:
        mebibytes, units = mebibytes // 1024, units[1:]
    return f"{mebibytes}{units[0]}"


class SlurmJobView:
    """One job, or the pending members of an array, with Slurm's names."""

    def __init__(self, job: JsonObject) -> None:
        self.job = job
        self.request: JsonObject = job["request"]
        array = job.get("array")
        self.array_id: int | None = array["id"] if array else None
        self.is_folded = bool(array and job.get("members"))
        """Whether this is several members of an array."""
        self.index: str | None = None
        if self.is_folded:
            self.index = str(job["members"]["label"]).partition("_")[2].strip("[]")
        elif array and array.get("index") is not None:
            self.index = str(array["index"])

    @property
    def id(self) -> str:
        """`42`, `42_3`, or `42_[3-9%2]` for pending members."""
        return str((self.job.get("members") or self.job)["label"])

    @property
    def raw_id(self) -> str:
        """The number of the job itself; for several members that of the array."""
        return str(self.array_id if self.is_folded else self.job["id"])

    @property
    def ids(self) -> set[str]:
        """All ids that name it: its own two and that of its array."""
        return {self.id, self.raw_id, str(self.array_id)}

    @property
    def order(self) -> tuple[int, int]:
        """What jobs are sorted by: their array, then their own number."""
        return self.array_id or self.job["id"], self.job["id"]

    @property
    def state(self) -> str:
        """The state."""
        state = str(self.job["state"])
        return STATES.get(state, state)

    @property
    def accounted_state(self) -> str:
        """The state in the accounting: a job that starts or ends is running there."""
        return "RUNNING" if self.state in ("CONFIGURING", "COMPLETING") else self.state

    @property
    def compact_state(self) -> str:
        """The state in one or two letters."""
        return COMPACT_STATES.get(self.state, self.state[:2])

    @property
    def is_pending(self) -> bool:
        """Whether it waits to start."""
        return self.state == "PENDING"

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again by itself."""
        return self.state not in CURRENT_STATES

    @property
    def reason(self) -> str:
        """Why it is pending or has failed, in Slurm's words."""
        if not self.is_pending:
            return END_REASONS.get(self.state, "None")
        reason = str(self.job.get("reason") or "Priority")
        return REASONS.get(reason, reason)

    @property
    def nodes(self) -> str:
        """The nodes that it has or had."""
        return "" if self.is_pending else fold_hosts(self.job.get("nodes") or [])

    @property
    def batch_host(self) -> str | None:
        """The node of its script."""
        nodes = self.job.get("nodes")
        return nodes[0] if nodes and not self.is_pending else None

    @property
    def nodes_or_reason(self) -> str:
        """The nodes, or why there are none."""
        return f"({self.reason})" if self.state in SHOWN_WITH_REASON else self.nodes

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return int(self.request.get("machines") or 1)

    @property
    def node_cores(self) -> int:
        """Number of cores on each node."""
        return max(int(float(self.request.get("cpus") or 1)), 1)

    @property
    def cores(self) -> int:
        """Number of cores on all nodes."""
        return self.node_cores * self.node_count

    @property
    def memory(self) -> str:
        """Requested memory on each node."""
        memory = self.request.get("memory")
        return format_memory(memory) if memory else "0"

    @property
    def gpus(self) -> str | None:
        """Requested GPUs of each node, as `gres:gpu:2`."""
        gpus, model = self.request.get("gpus"), self.request.get("model")
        return f"gres:gpu:{f'{model}:' if model else ''}{gpus}" if gpus else None

    @property
    def tres(self) -> str:
        """All resources, as `cpu=1,mem=200M,node=1,billing=1`."""
        memory, gpus = self.request.get("memory"), self.request.get("gpus")
        parts = [f"cpu={self.cores}"]
        if memory:
            parts.append(f"mem={format_memory(memory * self.node_count)}")
        parts += [f"node={self.node_count}", f"billing={self.cores}"]
        if gpus:
            parts.append(f"gres/gpu={float(gpus) * self.node_count:g}")
        return ",".join(parts)

    @property
    def exit_code(self) -> str:
        """`CODE:SIGNAL`."""
        return f"{self.job.get('exit_code') or 0}:{self.job.get('signal') or 0}"

    @property
    def elapsed(self) -> float:
        """Seconds that it has run."""
        return float(self.job.get("elapsed") or 0.0)

    @property
    def time_limit(self) -> int | None:
        """Its time limit in seconds."""
        limit: int | None = self.job.get("time_limit")
        return limit

    @property
    def time_left(self) -> float | None:
        """Seconds until its time limit."""
        return None if self.time_limit is None else max(self.time_limit - self.elapsed, 0.0)

    @property
    def submitted(self) -> float | None:
        """When it was submitted, in seconds since 1970."""
        return times.epoch(self.job.get("submitted_at"))

    @property
    def start(self) -> float | None:
        """When it started, or is expected to."""
        if self.is_pending:
            return times.epoch(self.job.get("expected_start") or self.job.get("begin_at"))
        return times.epoch(self.job.get("started_at"))

    @property
    def end(self) -> float | None:
        """When it ended, or reaches its time limit."""
        ended = times.epoch(self.job.get("ended_at"))
        if ended is not None or self.is_pending or self.start is None or self.time_limit is None:
            return ended
        return self.start + self.time_limit

    @property
    def dependency(self) -> str:
        """What it still waits for, as `afterok:17(unfulfilled)`."""
        depends = self.job.get("depends")
        if not depends or not self.reason.startswith("Dependency"):
            return NULL
        mark = "failed" if self.reason == "DependencyNeverSatisfied" else "unfulfilled"
        separator = "?" if "?" in depends else ","
        return separator.join(f"{part}({mark})" for part in str(depends).split(separator))

    @property
    def priority(self) -> int:
        """Its priority; 0 if it is held."""
        return int(self.job.get("priority") or 0)

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return int(self.job.get("attempt") or 0)

    @property
    def requeue(self) -> int:
        """1 if it is requeued after a node failure."""
        return int(bool(self.job.get("restartable")))

    @property
    def output(self) -> str:
        """The file of its output."""
        return self.text("log")

    @property
    def error(self) -> str:
        """The file of its errors."""
        return self.text("error_log") if self.job.get("error_log") else self.output

    @property
    def user_id(self) -> int:
        """The numeric id of its user."""
        return self._ids()[0]

    @property
    def group_id(self) -> int:
        """The numeric id of the group of its user."""
        return self._ids()[1]

    def _ids(self) -> tuple[int, int]:
        import pwd

        try:
            entry = pwd.getpwnam(str(self.job.get("user") or ""))
        except KeyError:
            return os.getuid(), os.getgid()
        return entry.pw_uid, entry.pw_gid

    def text(self, key: str) -> str:
        """Return a field of the job as text; `(null)` if there is none."""
        value = self.job.get(key)
        return NULL if value in (None, "") else str(value)


def signal_number(text: str) -> int:
    """Return the number of `USR2`, `SIGUSR2` or `12`; raise KeyError."""
    if text.isdecimal():
        return int(text)
    import signal

    name = text.upper()
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
