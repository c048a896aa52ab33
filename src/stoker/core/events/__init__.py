"""Events, in the past tense: the only way the state changes, and what the journal holds."""

from __future__ import annotations

from typing import Any, Union

from msgspec import Struct, field

from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.alarm import Alarm
from stoker.core.model.job import Job
from stoker.core.model.limits import Limits, Subject
from stoker.core.model.notification import NotifyRule
from stoker.core.model.profile import EpochTime
from stoker.core.model.resources import NodeFacts, Placement
from stoker.core.model.spec import JobCommand, Spec
from stoker.core.model.sweep import Sweep, Trial


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True):
    """Something that happened, at a wall-clock time; the order of events is their sequence."""

    at: float


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one job."""

    job: int


class AttemptEvent(JobEvent, frozen=True, kw_only=True):
    """Something that happened to one attempt of a job."""

    attempt: int


class CurrentAttemptEvent(AttemptEvent, frozen=True, kw_only=True):
    """Something that happened to an attempt, and changes nothing if the attempt is not current."""


class PartEvent(CurrentAttemptEvent, frozen=True, kw_only=True):
    """Something that happened to a current attempt, or to one part of it if it is a gang."""

    part: int | None = None
    """None: the whole attempt."""


class NodeEvent(Event, frozen=True, kw_only=True):
    """Something that happened to one node."""

    node: str


# ----------------------------------------------------------------------------------- the journal


class DaemonStarted(Event, frozen=True, kw_only=True):
    """A daemon took over the store."""

    term: int
    boot: str
    pid: int
    version: str
    clock: float = 0.0
    """Its boot clock, which is not comparable to that of an earlier boot."""


class IdsReserved(Event, frozen=True, kw_only=True):
    """Ids below this one may have been used by a journal that was lost."""

    next_id: int


# ----------------------------------------------- jobs: submission, user actions, timers, loading


class SpecRecorded(Event, frozen=True, kw_only=True):
    """The spec of a submission, before its first use."""

    hash: str
    spec: Spec


class JobsSubmitted(Event, frozen=True, kw_only=True):
    """One submission: a job, several jobs or an array, with consecutive ids from `first`."""

    first: int
    count: int
    spec: str
    key: str = ""
    lines: tuple[str, ...] | None = None
    argv: tuple[str, ...] | None = None
    indexes: tuple[int, ...] | None = None
    priority: int = 0
    held: bool = False
    begin_at: float | None = None
    sweep: int | None = None
    """The sweep to which these trials belong."""
    trials: tuple[tuple[str, JobCommand], ...] = ()
    """Parameters (canonical JSON) and command of each trial."""


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    """The user or an alarm cancelled a job."""

    at_once: bool = False
    needless: bool = False
    """Whether its sweep has reached the target, so that the trial is not needed."""
    why: str = ""
    """Why an alarm cancelled it; empty: a user did."""


class JobHeld(JobEvent, frozen=True, kw_only=True):
    """The user held a pending job."""


class JobReleased(JobEvent, frozen=True, kw_only=True):
    """The user released a held job."""


class JobPaused(JobEvent, frozen=True, kw_only=True):
    """The user paused a running job."""

    boot: float


class JobResumed(JobEvent, frozen=True, kw_only=True):
    """The user resumed a paused job."""

    boot: float


class JobSignalled(JobEvent, frozen=True, kw_only=True):
    """The user sent a signal to a running job."""

    signal: int
    to_script: bool = False
    """Whether only its first process gets it."""


class JobRetried(JobEvent, frozen=True, kw_only=True):
    """The user retried a finished job."""

    same_devices: bool = False


class JobEdited(JobEvent, frozen=True, kw_only=True):
    """The user edited a pending job, or the time limit or priority of a running one."""

    spec: str
    name: str
    priority: int
    begin_at: float | None = None


class JobMoved(JobEvent, frozen=True, kw_only=True):
    """The user changed the position of a pending job."""

    priority: int
    rank: int


class TimeLimitReached(CurrentAttemptEvent, frozen=True, kw_only=True):
    """A running attempt reached its time limit."""


class TimeLimitNear(CurrentAttemptEvent, frozen=True, kw_only=True):
    """The time for a job's early signal came."""


class BeginTimeReached(JobEvent, tag="WaitOver", frozen=True, kw_only=True):
    """A begin time, or the delay before a retry, has passed."""


class DeadlinePassed(JobEvent, frozen=True, kw_only=True):
    """The deadline of a job passed before its end."""


class EstimateExceeded(JobEvent, frozen=True, kw_only=True):
    """A job ran far longer than its declared duration."""


class FailuresDismissed(Event, tag="JobsSeen", frozen=True, kw_only=True):
    """The user dismissed the failures of these jobs."""

    jobs: tuple[int, ...]


class JobsUnloaded(Event, tag="JobsForgotten", frozen=True, kw_only=True):
    """Finished jobs were unloaded; the store has them."""

    jobs: tuple[int, ...]


class JobLoaded(Event, tag="JobRecalled", frozen=True, kw_only=True):
    """A finished job was loaded again, with its spec, because something refers to it."""

    job: Job
    spec: Spec


# ---------------------------------------------------- attempts: planning, start, end, preemption


class AttemptPlanned(AttemptEvent, frozen=True, kw_only=True):
    """The planner allocated devices to a job; journalled before the start."""

    placement: Placement
    boot: float


class AttemptQueued(CurrentAttemptEvent, frozen=True, kw_only=True):
    """Another cluster's scheduler accepted an attempt and will start it."""

    external_id: str
    """Its id in that scheduler; for users only, as such ids are reused."""
    reason: str = ""
    """Why it waits, in the words of that scheduler."""
    start: float | None = None
    """Wall time at which that scheduler expects to start it."""


class ProcessStarted(PartEvent, frozen=True, kw_only=True):
    """The process of an attempt was started."""

    pid: int | None = None
    """None if the executor cannot know it."""
    boot: float
    external_id: str | None = None
    hosts: tuple[str, ...] = ()
    """Hosts on which a delegated node runs it."""
    devices: tuple[str, ...] = ()
    """GPUs that it was given there."""


class ProcessExited(PartEvent, frozen=True, kw_only=True):
    """The process tree of an attempt has ended."""

    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    """`host` when the kernel killed it for memory, `cuda` when CUDA ran out."""
    note: str | None = None
    """How it had to be terminated, or what it left behind."""
    stopped: bool = False
    """Whether it stopped at a checkpoint because of a stop request, whatever its code."""
    uncaught: bool = False
    """Whether none of its processes caught the signal that requested a stop."""
    lacks: str | None = None
    """What the node lacks, so that its container could not run there."""
    cpu_seconds: float | None = None
    """Of all its processes that were waited for."""
    rss_peak: int | None = None
    """MiB of the largest of them."""


class AttemptLost(PartEvent, frozen=True, kw_only=True):
    """An attempt has ended in an unknown way."""

    why: str
    with_files: bool = False
    """Whether its node is gone with all files, including checkpoints."""
    preempted: bool = False
    """Whether another scheduler ended the allocation that was its node."""


class AttemptAbandoned(CurrentAttemptEvent, frozen=True, kw_only=True):
    """An attempt on an unreachable node was given up, to restart it on another node."""

    node: str


class StartFailed(PartEvent, frozen=True, kw_only=True):
    """An attempt could not be started at all (no such directory, program or shell)."""

    why: str


class StartCancelled(PartEvent, tag="StartCalledOff", frozen=True, kw_only=True):
    """A start was cancelled: the device was in use after all, or a resource ran short."""

    why: str
    delay: float = 0.0
    """Seconds to wait before the next try."""


class OrphanAttemptsFound(AttemptEvent, tag="AttemptsFound", frozen=True, kw_only=True):
    """Attempts were found that the journal does not have: their numbers must not be reused."""


class AttemptRecovered(AttemptEvent, frozen=True, kw_only=True):
    """An attempt runs, or has run, that a restored or damaged journal does not have."""

    placement: Placement
    boot: float


class PreemptionRequested(CurrentAttemptEvent, tag="StopAsked", frozen=True, kw_only=True):
    """A running attempt is requested to stop at its next checkpoint; it resumes later."""

    why: str
    boot: float
    by: int | None = None
    gpus: int | None = None
    at_once: bool = False
    """Whether it is terminated without waiting for a checkpoint."""
    delay: float = 0.0
    """Seconds for which it is not started again, so that others get its devices."""


class PreemptionCancelled(CurrentAttemptEvent, tag="StopWithdrawn", frozen=True, kw_only=True):
    """The preemption of an attempt is no longer needed."""


class PreemptionTimedOut(CurrentAttemptEvent, tag="StopOverdue", frozen=True, kw_only=True):
    """An attempt did not stop within its grace time, or left processes behind."""

    has_saved: bool = False
    """Whether it stopped at a checkpoint, so that terminating the rest loses nothing."""


# ------------------------------------------------- training jobs: progress, profiles, GPU memory


class TrainingBegan(CurrentAttemptEvent, frozen=True, kw_only=True):
    """The training library reported in an attempt: it accepts stop requests."""


class EpochsCounted(CurrentAttemptEvent, frozen=True, kw_only=True):
    """Number of epochs done and saved, in all attempts of a job together."""

    done: int
    seconds: float | None = None
    """Recent seconds per epoch."""
    step: float | None = None
    """Recent seconds per step."""
    warmup: float | None = None
    """Seconds from the start of the attempt to its first epoch."""
    metrics: dict[str, float] | None = None
    """Metrics that the script reported last, if they changed."""
    total: int | None = None
    """Total number of epochs as reported by the script, if it changed."""


class ProfileImported(Event, tag="KindMeasured", frozen=True, kw_only=True):
    """A job profile that was measured elsewhere was imported."""

    profile: str = field(name="family")
    epoch_times: tuple[EpochTime, ...] = field(default=(), name="paces")
    interference: dict[str, float] = field(default_factory=dict, name="beside")
    """Relative speed when sharing a GPU, by model and profile of the other job."""
    warmup: float | None = None


class MemoryMeasured(CurrentAttemptEvent, frozen=True, kw_only=True):
    """An attempt reached a new peak of memory use on one GPU (MiB)."""

    memory: int


class UsageMeasured(CurrentAttemptEvent, frozen=True, kw_only=True):
    """What was measured of the GPUs of an attempt so far, in GPU-seconds and joules."""

    measured: float
    busy: float
    energy: float
    wasted: float = 0.0
    """While an alarm for an idle or unused GPU was active."""


# ---------------------------------------------------------------------------------------- alarms


class AlarmRaised(Event, frozen=True, kw_only=True):
    """Something is probably wrong with a running attempt or a GPU."""

    alarm: Alarm


class AlarmCleared(Event, frozen=True, kw_only=True):
    """An alarm is not true any more; the alarms of an attempt end with it without this event."""

    alarm: Alarm


class NotifyRuleAdded(Event, frozen=True, kw_only=True):
    """A user wants a target to be notified of something."""

    rule: NotifyRule


class NotifyRuleRemoved(Event, frozen=True, kw_only=True):
    """A rule of notifications was removed."""

    id: int


# ----------------------------------------------------------------------- sweeps and their trials


class SweepDefined(Event, frozen=True, kw_only=True):
    """A sweep was submitted: a new one, or an existing one again."""

    sweep: Sweep


class SweepChanged(Event, frozen=True, kw_only=True):
    """Settings of a sweep changed, by the user or by its results; None: unchanged."""

    sweep: int
    held: bool | None = None
    ended: bool | None = None
    max_running: int | None = None
    """0: no limit."""
    priority: int | None = None
    note: str | None = None
    """Why it cannot continue; empty: it can."""


class TrialMeasured(AttemptEvent, frozen=True, kw_only=True):
    """A trial reached a rung, or ended."""

    value: float | None
    """None: missing, or not a number."""
    step: float | None = None
    rung: int | None = None
    final: bool = False


class TrialStopped(CurrentAttemptEvent, frozen=True, kw_only=True):
    """A trial is stopped early because other trials are better."""


class TrialsUnloaded(Event, tag="TrialsForgotten", frozen=True, kw_only=True):
    """The trials of a finished sweep were unloaded; the store has them."""

    sweep: int


class TrialsLoaded(Event, tag="TrialsRecalled", frozen=True, kw_only=True):
    """The trials of a sweep were loaded again, because it was submitted again."""

    sweep: int
    trials: tuple[Trial, ...]


# ----------------------------------------------------------------------- nodes and their devices


class NodeJoined(Event, frozen=True, kw_only=True):
    """A node reported its devices."""

    facts: NodeFacts


class NodeAdded(Event, frozen=True, kw_only=True):
    """A remote node was added, whether or not it can be reached."""

    name: str
    address: str = ""
    key: str | None = None
    shared: bool = False
    """Whether it shares the file system, so that nothing is copied."""
    configured: bool = False
    """Whether it comes from the configuration file, so that deleting it there removes it."""
    executor: str = "ssh"
    """The kind of executor that runs attempts there."""
    options: dict[str, str] = {}
    """Options of that executor; `ssh` has the fields above instead."""

    @property
    def cluster(self) -> str | None:
        """The cluster that it belongs to."""
        return self.options.get("cluster")

    @property
    def is_allocation(self) -> bool:
        """Whether it is an allocation of its cluster."""
        return self.cluster is not None and "job" in self.options


class NodeRemoved(Event, frozen=True, kw_only=True):
    """A remote node was removed."""

    name: str
    why: str = ""
    """Why it is gone, if no user removed it."""


class NodeReached(NodeEvent, frozen=True, kw_only=True):
    """A remote node can be reached, and abandoned attempts on it have ended."""

    ended: tuple[tuple[int, int], ...] = ()
    """Jobs and attempts that were restarted on other nodes and have ended on this one."""


class NodeUnreachable(NodeEvent, frozen=True, kw_only=True):
    """A remote node cannot be reached; its attempts are assumed to run."""

    why: str
    boot: float
    queued: bool = False
    """Whether it does not exist yet: its allocation waits in the queue of another scheduler."""


class NodeCordoned(NodeEvent, tag="NodeClosed", frozen=True, kw_only=True):
    """A remote node accepts no new jobs, or (no reason) accepts them again."""

    why: str | None = None


class NodeLoadMeasured(NodeEvent, tag="NodeMeasured", frozen=True, kw_only=True):
    """Foreign use of a node's cores (thousandths) and memory (MiB) changed."""

    cpus: int = 0
    memory: int = 0


class DevicesDrained(Event, frozen=True, kw_only=True):
    """Devices were drained: they accept no new jobs."""

    devices: tuple[tuple[str, str, str], ...]
    reason: str


class DevicesUndrained(Event, frozen=True, kw_only=True):
    """Devices accept jobs again."""

    devices: tuple[tuple[str, str, str], ...]


class ForeignUseChanged(NodeEvent, frozen=True, kw_only=True):
    """Foreign processes began or stopped using a GPU."""

    device: str
    foreign_user: str | None = field(name="stranger")
    memory: int = 0


# --------------------------------------------------------------------------- queues and policies


class QueueDefined(Event, frozen=True, kw_only=True):
    """A queue was defined or changed; the event is kept as the configuration of the queue."""

    name: str
    max_running: int | None = None
    max_gpus: int | None = None
    priority: int = 0
    strict: bool = False
    devices: tuple[str, ...] = ()
    """GPUs that its jobs may use, as typed; empty: all."""
    resources: tuple[tuple[str, str, int], ...] = ()
    """Type, name and capacity of the devices that its jobs may use; empty: all devices."""
    max_waiting: int | None = None
    max_job_gpus: int | None = None


class QueueDeleted(Event, frozen=True, kw_only=True):
    """A queue was deleted."""

    name: str


class PolicyChosen(Event, frozen=True, kw_only=True):
    """The policy of a queue was chosen; `*`: of every queue without its own policy."""

    queue: str
    name: str = ""
    """Empty: the policy of `*`."""
    parameters: dict[str, float] = {}


class LimitsSet(Event, frozen=True, kw_only=True):
    """The limits of a user, a group or a queue were set; without any, removed."""

    subject: Subject
    limits: Limits = Limits()
    gpu_time: dict[str, dict[int, float]] = {}
    """GPU-seconds by user, group or queue and hour, as far as they were not counted before."""


class ReservationMade(Event, frozen=True, kw_only=True):
    """Devices were reserved for a time to come."""

    reservation: AdvanceReservation


class ReservationEnded(Event, frozen=True, kw_only=True):
    """The time of an advance reservation has passed, or it was cancelled."""

    name: str
    cancelled: bool = False


class ShareSet(Event, frozen=True, kw_only=True):
    """The weight of a user or a group in fair share was set, or (None) removed."""

    subject: Subject
    weight: float | None = None


class GroupsRecorded(Event, frozen=True, kw_only=True):
    """The unix groups of a user of a system daemon, as they are now."""

    uid: int
    groups: tuple[int, ...]
    user: str = ""
    """Its name; empty in journals of earlier versions."""


class HistoryCleared(Event, tag="RecordsCleared", frozen=True, kw_only=True):
    """The history of a compat command was cleared: it no longer lists jobs that ended before."""

    client: str = field(name="door")
    uid: int | None = None
    """The user of a system daemon whose history it is."""


class Acted(Event, frozen=True, kw_only=True):
    """A user of a system daemon changed something; the other events of the commit say how."""

    uid: int
    user: str
    verb: str
    """Method and path of the request, such as `POST /cancel`."""
    jobs: tuple[tuple[int, int], ...] = ()
    """Ranges of the ids of the jobs that it changed, if any."""
    what: str = ""
    """What an administrator requested, as JSON."""


_BASES = (Event, JobEvent, AttemptEvent, CurrentAttemptEvent, PartEvent, NodeEvent)
AnyEvent: Any = Union[  # noqa: UP007 - of a tuple
    tuple(kind for base in _BASES for kind in base.__subclasses__() if kind not in _BASES)
]
"""Every event; the stored tag selects the class."""
