"""The fields of sacct, with the names and widths of Slurm 22.05."""

from __future__ import annotations

from stoker.compat.slurm.columns.job_fields import (
    CLUSTER,
    SlurmJobView,
    format_time,
    full_duration,
    group_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Step:
    """A job, or one of the steps that Slurm lists for it: `batch`, `extern`."""

    def __init__(self, job: SlurmJobView, name: str = "") -> None:
        self.job, self.name = job, name
        self.suffix = f".{name}" if name else ""

    @property
    def state(self) -> str:
        """The state; a cancelled job names the user."""
        state = self.job.accounted_state
        if state == "CANCELLED" and not self.name:
            return f"CANCELLED by {self.job.user_id}"
        return state

    @property
    def start(self) -> float | None:
        """When it started."""
        return None if self.job.is_pending else self.job.start

    @property
    def end(self) -> float | None:
        """When it ended."""
        return self.job.end if self.job.has_ended else None

    @property
    def tres(self) -> str:
        """Allocated resources."""
        return "" if self.job.is_pending else self.job.tres


class Field:
    """A field: its name, its width (negative: aligned left), its value."""

    __slots__ = ("name", "value", "width")

    def __init__(self, name: str, width: int, value: Callable[[Step], str]) -> None:
        self.name, self.width, self.value = name, width, value


def _of_job(value: Callable[[SlurmJobView], str]) -> Callable[[Step], str]:
    """Return the value of the job, and nothing for its steps."""
    return lambda row: "" if row.name else value(row.job)


def _empty(_: Step) -> str:
    """Return nothing: stoker does not measure it."""
    return ""


def _minutes(seconds: float | None) -> str:
    return "UNLIMITED" if seconds is None else str(-(-int(seconds) // 60))


def _planned(job: SlurmJobView) -> float:
    return max((job.start or 0.0) - (job.submitted or 0.0), 0.0)


def _cpu_seconds(row: Step) -> float:
    return int(row.job.elapsed) * row.job.cores


_FIELDS = (
    Field("Account", 10, lambda row: str(row.job.job.get("account") or "")),
    Field("AdminComment", 15, _empty),
    Field("AllocCPUS", 10, lambda row: "0" if row.job.is_pending else str(row.job.cores)),
    Field("AllocNodes", 10, lambda row: "0" if row.job.is_pending else str(row.job.node_count)),
    Field("AllocTRES", 10, lambda row: row.tres),
    Field("AssocID", 7, _of_job(lambda job: "0")),
    Field("AveCPU", 10, _empty),
    Field("AveCPUFreq", 10, _empty),
    Field("AveDiskRead", 14, _empty),
    Field("AveDiskWrite", 14, _empty),
    Field("AvePages", 10, _empty),
    Field("AveRSS", 10, _empty),
    Field("AveVMSize", 10, _empty),
    Field("BlockID", 16, _empty),
    Field("Cluster", 10, lambda _: CLUSTER),
    Field("Comment", 14, _of_job(lambda job: str(job.job.get("comment") or ""))),
    Field("Constraints", 19, _empty),
    Field("ConsumedEnergy", 14, _empty),
    Field("ConsumedEnergyRaw", 17, _empty),
    Field("Container", 19, _empty),
    Field("CPUTime", 10, lambda row: full_duration(_cpu_seconds(row))),
    Field("CPUTimeRAW", 10, lambda row: str(int(_cpu_seconds(row)))),
    Field("DBIndex", -10, lambda row: row.job.raw_id),
    Field("DerivedExitCode", 15, _of_job(lambda job: job.exit_code)),
    Field("Elapsed", 10, lambda row: full_duration(row.job.elapsed)),
    Field("ElapsedRaw", 10, lambda row: str(int(row.job.elapsed))),
    Field("Eligible", 19, lambda row: format_time(row.job.submitted, "Unknown")),
    Field("End", 19, lambda row: format_time(row.end, "Unknown")),
    Field("ExitCode", 8, lambda row: row.job.exit_code),
    Field("Flags", 19, _empty),
    Field("GID", 6, _of_job(lambda job: str(job.group_id))),
    Field("Group", 9, _of_job(lambda job: group_name(job.group_id))),
    Field("JobID", -12, lambda row: row.job.id + row.suffix),
    Field("JobIDRaw", -12, lambda row: row.job.raw_id + row.suffix),
    Field("JobName", 10, lambda row: row.name or str(row.job.job.get("name") or "")),
    Field("Layout", 9, _empty),
    Field("MaxDiskRead", 12, _empty),
    Field("MaxDiskReadNode", 15, _empty),
    Field("MaxDiskReadTask", 15, _empty),
    Field("MaxDiskWrite", 12, _empty),
    Field("MaxDiskWriteNode", 16, _empty),
    Field("MaxDiskWriteTask", 16, _empty),
    Field("MaxPages", 8, _empty),
    Field("MaxPagesNode", 12, _empty),
    Field("MaxPagesTask", 14, _empty),
    Field("MaxRSS", 10, _empty),
    Field("MaxRSSNode", 10, _empty),
    Field("MaxRSSTask", 10, _empty),
    Field("MaxVMSize", 10, _empty),
    Field("MaxVMSizeNode", 14, _empty),
    Field("MaxVMSizeTask", 14, _empty),
    Field("McsLabel", 12, _empty),
    Field("MinCPU", 10, _empty),
    Field("MinCPUNode", 10, _empty),
    Field("MinCPUTask", 10, _empty),
    Field("NCPUS", 10, lambda row: str(row.job.cores)),
    Field("NNodes", 8, lambda row: str(row.job.node_count)),
    Field("NodeList", 15, lambda row: row.job.nodes or "None assigned"),
    Field("NTasks", 8, lambda row: "1" if row.name else ""),
    Field("Partition", 10, _of_job(lambda job: str(job.job.get("queue") or ""))),
    Field("Priority", 10, _of_job(lambda job: str(job.priority))),
    Field("QOS", 10, _empty),
    Field("QOSRAW", 6, _empty),
    Field("Reason", 22, _of_job(lambda job: job.reason)),
    Field("ReqCPUFreq", 10, _of_job(lambda job: "Unknown")),
    Field("ReqCPUFreqGov", 13, _of_job(lambda job: "Unknown")),
    Field("ReqCPUFreqMax", 13, _of_job(lambda job: "Unknown")),
    Field("ReqCPUFreqMin", 13, _of_job(lambda job: "Unknown")),
    Field("ReqCPUS", 8, lambda row: str(row.job.cores)),
    Field("ReqMem", 10, _of_job(lambda job: job.memory)),
    Field("ReqNodes", 8, lambda row: str(row.job.node_count)),
    Field("ReqTRES", 10, _of_job(lambda job: job.tres)),
    Field("Reservation", 20, _empty),
    Field("ReservationId", 8, _empty),
    Field("Reserved", 10, _of_job(lambda job: full_duration(_planned(job)))),
    Field("ResvCPU", 10, _of_job(lambda job: full_duration(_planned(job) * job.cores))),
    Field("ResvCPURAW", 10, _of_job(lambda job: str(int(_planned(job) * job.cores)))),
    Field("Start", 19, lambda row: format_time(row.start, "Unknown")),
    Field("State", 10, lambda row: row.state),
    Field("Submit", 19, lambda row: format_time(row.job.submitted, "Unknown")),
    Field("SubmitLine", 20, _empty),
    Field("Suspended", 10, lambda _: "00:00:00"),
    Field("SystemComment", 15, _empty),
    Field("SystemCPU", 10, lambda _: "00:00:00"),
    Field("Timelimit", 10, _of_job(lambda job: full_duration(job.time_limit))),
    Field("TimelimitRaw", 10, _of_job(lambda job: _minutes(job.time_limit))),
    Field("TotalCPU", 10, lambda _: "00:00:00"),
    Field("TRESUsageInAve", 14, _empty),
    Field("TRESUsageInMax", 14, _empty),
    Field("TRESUsageInMaxNode", 18, _empty),
    Field("TRESUsageInMaxTask", 18, _empty),
    Field("TRESUsageInMin", 14, _empty),
    Field("TRESUsageInMinNode", 18, _empty),
    Field("TRESUsageInMinTask", 18, _empty),
    Field("TRESUsageInTot", 14, _empty),
    Field("TRESUsageOutAve", 15, _empty),
    Field("TRESUsageOutMax", 15, _empty),
    Field("TRESUsageOutMaxNode", 19, _empty),
    Field("TRESUsageOutMaxTask", 19, _empty),
    Field("TRESUsageOutMin", 15, _empty),
    Field("TRESUsageOutMinNode", 19, _empty),
    Field("TRESUsageOutMinTask", 19, _empty),
    Field("TRESUsageOutTot", 15, _empty),
    Field("UID", 6, _of_job(lambda job: str(job.user_id))),
    Field("User", 9, _of_job(lambda job: str(job.job.get("user") or ""))),
    Field("UserCPU", 10, lambda _: "00:00:00"),
    Field("WCKey", 10, _empty),
    Field("WCKeyID", 10, _empty),
    Field("WorkDir", 20, _of_job(lambda job: str(job.job.get("directory") or ""))),
)
FIELDS = {field.name.lower(): field for field in _FIELDS}
"""All fields, by name in lower case."""
