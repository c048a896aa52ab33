"""Jobs: their states and the transitions between them, progress, past attempts and usage."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from stoker.core.model.resources import Placement

RANK_STEP = 1 << 40
"""Distance between the orders of consecutive jobs, so that one can be moved between others."""
NOT_NEEDED_CAUSE = "not needed: the sweep has reached its target"
"""Cause of a cancelled trial that its sweep no longer needs; it counts as success."""
SKIPPED_EXIT_CODE = 77
"""Exit code of a part that had nothing to do, as in automake's test protocol."""


class JobState(Enum):
    """State of a job, with Slurm's names."""

    PENDING = "PENDING"
    """Waits for devices, for jobs ahead of it, for a dependency or begin time, or is held."""
    CONFIGURING = "CONFIGURING"
    """Devices are allocated and the start is journalled; its process is being started."""
    QUEUED = "QUEUED"
    """Handed over to another cluster's scheduler; it waits in the queue there."""
    RUNNING = "RUNNING"
    """Its process exists."""
    SUSPENDED = "SUSPENDED"
    """Paused by the user; it keeps its devices."""
    COMPLETING = "COMPLETING"
    """Being ended; its devices are released when the last process is gone."""
    COMPLETED = "COMPLETED"
    """Ended with code 0."""
    FAILED = "FAILED"
    """Ended with another code or by a signal, or could not be started."""
    CANCELLED = "CANCELLED"
    """Cancelled by the user."""
    TIMEOUT = "TIMEOUT"
    """Ended because its time limit was reached."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """Killed by the kernel for memory, or stopped by CUDA running out of it."""
    NODE_FAIL = "NODE_FAIL"
    """Lost: the node restarted, or the process vanished without an exit record."""
    DEADLINE = "DEADLINE"
    """Its deadline passed before it could start or end."""

    # By identity: Enum would hash the name, and members are hashed often.
    __hash__ = object.__hash__

    def check_transition(self, new: JobState) -> None:
        """Raise AssertionError if the table of transitions does not have this one."""
        if new not in TRANSITIONS[self]:
            raise AssertionError(f"illegal transition from {self.value} to {new.value}")


S = JobState

HOLDING = frozenset({S.CONFIGURING, S.QUEUED, S.RUNNING, S.SUSPENDED, S.COMPLETING})
"""States in which a job holds devices."""
FAILED_STATES = frozenset({S.FAILED, S.TIMEOUT, S.OUT_OF_MEMORY, S.NODE_FAIL, S.DEADLINE})
"""Ends that need attention; such jobs are listed until the user dismisses them."""
FINISHED = FAILED_STATES | {S.COMPLETED, S.CANCELLED}

_ATTEMPT_ENDS = frozenset(
    {
        S.COMPLETED,  # code 0; also of a suspended job that was continued from elsewhere
        S.FAILED,  # it could not be started, or ended with another code or by a signal
        S.OUT_OF_MEMORY,  # ended because memory ran out
        S.NODE_FAIL,  # lost with its node, or given up while that did not answer
        S.PENDING,  # the start was cancelled, it was preempted, or its retry rule requeues it
    }
)
"""From every state that holds devices, since an end may be seen before the start."""
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    # Devices were allocated; or it was cancelled or its deadline passed before that.
    S.PENDING: frozenset({S.CONFIGURING, S.CANCELLED, S.DEADLINE}),
    # Its process exists; another cluster's scheduler accepted it; it is being ended.
    S.CONFIGURING: _ATTEMPT_ENDS | {S.RUNNING, S.QUEUED, S.COMPLETING},
    S.QUEUED: _ATTEMPT_ENDS | {S.RUNNING, S.COMPLETING},
    S.RUNNING: _ATTEMPT_ENDS | {S.SUSPENDED, S.COMPLETING},
    S.SUSPENDED: _ATTEMPT_ENDS | {S.RUNNING, S.COMPLETING},
    # The last process of a job that was being ended is gone.
    S.COMPLETING: _ATTEMPT_ENDS | {S.CANCELLED, S.TIMEOUT, S.DEADLINE},
    # A finished job changes only if the user retries it.
    **{state: frozenset({S.PENDING}) for state in FINISHED},
}


class AttemptId(NamedTuple):
    """One attempt of a job."""

    job: int
    attempt: int

    def __str__(self) -> str:
        """Return `job.attempt`, as files and the agent name it."""
        return f"{self.job}.{self.attempt}"


class GpuUsage(Struct, frozen=True, array_like=True, omit_defaults=True):
    """GPU time that was held and what was measured of it, in GPU-seconds; CPU time and memory."""

    held: float = 0.0
    """From the allocation of GPUs to their release, by the share of each GPU."""
    wasted: float = 0.0
    """The part of `held` in attempts that failed before any of their work counted, and while an
    alarm for an idle or unused GPU was active."""
    measured: float = 0.0
    """The part of `held` in which the GPUs were read."""
    busy: float = 0.0
    """The sum of utilisation over `measured`."""
    energy: float = 0.0
    """Joules, over `measured`."""
    cpu: float = 0.0
    """CPU seconds of attempts that have ended."""
    rss: int = 0
    """MiB of the largest process of these attempts."""

    def __add__(self, other: GpuUsage) -> GpuUsage:
        return GpuUsage(
            self.held + other.held,
            self.wasted + other.wasted,
            self.measured + other.measured,
            self.busy + other.busy,
            self.energy + other.energy,
            self.cpu + other.cpu,
            max(self.rss, other.rss),
        )

    def __sub__(self, other: GpuUsage) -> GpuUsage:
        return GpuUsage(
            self.held - other.held,
            self.wasted - other.wasted,
            self.measured - other.measured,
            self.busy - other.busy,
            self.energy - other.energy,
            self.cpu - other.cpu,
            self.rss,
        )


NO_USAGE = GpuUsage()
"""Usage of a job that has not run."""


class Score(Struct, frozen=True, omit_defaults=True):
    """Objective value of a trial, as far as it is known."""

    value: float | None = None
    step: float | None = None
    """The step at which it was measured."""
    rungs: tuple[float, ...] = ()
    """Its value at each rung that it has reached."""
    stopped: bool = False
    """Whether it was stopped early because other trials are better."""
    final: bool = False
    """Whether the trial has ended, so that the value does not change."""


class StopRequest(Struct, frozen=True, omit_defaults=True):
    """A request to a running attempt to stop at its next checkpoint."""

    reason: str = field(name="why")
    requested_boot: float = field(name="boot")
    """When it was requested, on the boot clock."""
    preemptor: int | None = field(default=None, name="by")
    """The job for which it is preempted."""
    resize_to: int | None = field(default=None, name="gpus")
    """Number of GPUs when it resumes; None: as requested by the job."""
    timed_out: bool = field(default=False, name="ignored")
    """Whether it did not stop in time and cannot be ended: its devices are no longer expected."""
    delay: float = 0.0
    """Seconds for which it is not started again."""


class Progress(Struct, frozen=True, omit_defaults=True):
    """Progress of a training job, and what was measured in its attempts."""

    epochs: int = 0
    """Epochs done and saved in a checkpoint, in all attempts together."""
    epochs_at_start: int = field(default=0, name="since")
    """Value of `epochs` when the current attempt began."""
    started_unmeasured: bool = field(default=False, name="guessed")
    """Whether the first estimate of its remaining time was measured in this attempt."""
    accepts_stop: bool = field(default=False, name="listening")
    """Whether the training library has reported in this attempt, so that it obeys stop requests."""
    stop: StopRequest | None = None
    preemptions: int = 0
    peak: int | None = None
    """Peak memory use of this attempt on one GPU, in MiB."""
    reserve: int | None = None
    """MiB to reserve on each GPU, after it ran out of memory."""
    oom_count: int = field(default=0, name="shortages")
    """How often it ran out of GPU memory."""
    exceeded_reservation: bool = field(default=False, name="grew")
    """Whether this attempt used more memory than was reserved for it."""
    shared_gpu: bool = field(default=False, name="shared")
    """Whether other jobs were on its GPUs during this attempt."""
    exclusive_only: bool = field(default=False, name="alone")
    """Whether it does not share GPUs any more, because an attempt failed while sharing."""
    gpus: int | None = None
    """Number of GPUs that the planner has chosen for it."""
    overran: bool = field(default=False, name="demoted")
    """Whether it ran far longer than declared. (The stored name is that of an older rule.)"""
    previous_runtime: float = field(default=0.0, name="ran")
    """Seconds that earlier attempts ran."""
    epoch_started_at: float | None = field(default=None, name="counted_at")
    """When the current epoch began, as far as known."""
    epoch_time: tuple[int, str, float] | None = field(default=None, name="pace")
    """Number and model of GPUs and seconds per epoch of the last measurement."""
    epoch_times: tuple[tuple[int, int, float], ...] = field(default=(), name="paces")
    """Elastic job: training stage, number of GPUs and seconds per epoch of recent measurements,
    the newest last."""
    metrics: dict[str, float] = {}
    """Metrics that the script reported last."""
    total: int | None = None
    """Total number of epochs, as reported by the script."""

    @property
    def has_finished_epoch(self) -> bool:
        """Whether the current attempt has finished an epoch."""
        return self.epochs > self.epochs_at_start

    def with_stop_postponed(self, seconds: float) -> Progress:
        """Return a copy with the time of the stop request moved by a number of seconds."""
        if self.stop is None:
            return self
        stop = replace(self.stop, requested_boot=self.stop.requested_boot + seconds)
        return replace(self, stop=stop)


NO_PROGRESS = Progress()
"""Progress of a job of which nothing was reported; compared by identity."""


class PartEnd(Struct, frozen=True, omit_defaults=True, array_like=True):
    """How one part of a gang ended."""

    part: int
    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    lost: str | None = None
    """Why its end is unknown."""
    failed: str | None = None
    """Why it could not be started; with a code, why its container could not run on the node."""
    away: bool = False
    """Whether it may still run on an unreachable node."""
    note: str | None = None
    """A note about its end, for users."""
    stopped: bool = False
    """Whether it stopped at a checkpoint because of a stop request."""
    preempted: bool = False
    """Whether it was lost because another scheduler ended the allocation that was its node."""
    uncaught: bool = False
    """Whether none of its processes caught the signal that requested a stop."""

    @property
    def is_success(self) -> bool:
        """Whether it succeeded, so that the other parts may continue."""
        return self.code in (0, SKIPPED_EXIT_CODE)


class PastAttempt(Struct, frozen=True, omit_defaults=True, array_like=True):
    """An attempt that has ended."""

    attempt: int
    started_at: float | None
    ended_at: float
    cause: str
    code: int | None = None
    usage: GpuUsage | None = None
    """None: it held no GPU, and nothing was measured."""


class Job(Struct, omit_defaults=True, gc=False):
    """One job; changed by events only."""

    id: int
    spec: str
    name: str
    user: str
    submitted_at: float
    command: str | tuple[str, ...] | None = None
    array: int | None = None
    index: int | None = None
    state: JobState = JobState.PENDING
    priority: int = 0
    rank: int | UnsetType = UNSET
    held: bool = False
    begin_at: float | None = None
    """Earliest start on the wall clock (begin time, or delay before a retry)."""
    attempt: int = 0
    """Number of the current attempt, or of the next one while the job is pending."""
    placement: Placement | None = None
    pid: int | None = None
    started_at: float | None = None
    started_boot: float | None = None
    paused_boot: float | None = None
    slack: float = 0.0
    """Seconds spent suspended, which do not count towards the time limit."""
    warned: bool = False
    ended_at: float | None = None
    code: int | None = None
    signal: int | None = None
    cause: str | None = None
    delay_over: bool = False
    """Whether its `after:ID+minutes` was met once; setting the clock back does not undo it."""
    late: bool = False
    """Whether the user retried it after its deadline, which no longer applies."""
    ending: str | None = None
    """Why it is ending: `cancel`, `time` or `deadline`."""
    ending_cause: str | None = None
    """Why it is cancelled, in words, if no user did it."""
    ends: tuple[PartEnd, ...] = ()
    """Parts of the current attempt that have ended, in the order of their ends."""
    retries: int = 0
    requeues: int = 0
    same_devices: bool = False
    last_devices: tuple[str, ...] = ()
    last_node: str | None = None
    ready_at: float | None = None
    """When it became eligible, if later than its submission."""
    last_others: tuple[str, ...] = ()
    """Nodes of the other parts of its last attempt, by rank."""
    note: str | None = None
    seen: bool = False
    past: tuple[PastAttempt, ...] = ()
    progress: Progress = NO_PROGRESS
    params: str | None = None
    """Parameters of a trial, as canonical JSON."""
    score: Score | None = None
    external_id: str | None = None
    """Id of the current or last attempt in another cluster's scheduler."""
    hosts: tuple[str, ...] = ()
    """Hosts on which that scheduler runs it."""
    devices: tuple[str, ...] = ()
    """GPUs that it was given there."""
    queue_start: float | None = None
    """Wall time at which that scheduler expects to start it."""
    allocated_at: float | None = None
    """When devices were allocated to the current attempt."""
    measured: GpuUsage = NO_USAGE
    """What was measured of the current attempt; `held` is not known before its end."""
    usage: GpuUsage = NO_USAGE
    """Of all ended attempts together."""
    advice: str | None = None
    """What its last attempt asked for and did not use."""

    @property
    def order(self) -> int:
        """Order among jobs of equal priority and rank; smaller is earlier."""
        return self.id * RANK_STEP if self.rank is UNSET else self.rank

    @property
    def label(self) -> str:
        """Id that users see and type: `7`, or `7_3` for a member of an array."""
        return str(self.id) if self.array is None else f"{self.array}_{self.index}"

    @property
    def parts(self) -> tuple[Placement, ...]:
        """Parts of the current attempt by rank; empty while it holds no devices."""
        return self.placement.parts if self.placement is not None else ()

    @property
    def finished(self) -> bool:
        """Whether it is in a final state."""
        return self.state in FINISHED

    @property
    def holding(self) -> bool:
        """Whether it holds devices."""
        return self.state in HOLDING

    @property
    def result(self) -> int | None:
        """Exit code that `wait` returns for it."""
        state = self.state
        if state is JobState.COMPLETED:
            return 0
        if state not in FINISHED:
            return None
        if state is JobState.TIMEOUT:
            return 124
        if state is JobState.CANCELLED:
            return 0 if self.cause == NOT_NEEDED_CAUSE else 143
        if self.signal:
            return 128 + self.signal
        return self.code or 1
