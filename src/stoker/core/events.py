"""Facts, in the past tense: the only way state changes, and what the journal holds."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.cluster import NodeFacts, Placement
from stoker.core.estimate import Pace
from stoker.core.job import Command, Job, Spec
from stoker.core.sweep import Sweep, Trial


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True):
    """Something that happened, at this wall-clock time (for people; order is the sequence)."""

    at: float


class DaemonStarted(Event, frozen=True, kw_only=True):
    """A driver took this state over."""

    term: int
    boot: str
    pid: int
    version: str
    clock: float = 0.0
    """Its boot clock; that of an earlier boot said something else."""


class NodeJoined(Event, frozen=True, kw_only=True):
    """A machine said what it has."""

    facts: NodeFacts


class NodeAdded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A node that is not this machine belongs to us from now on, whether or not it answers."""

    name: str
    address: str = ""
    key: str | None = None
    shared: bool = False
    """It has our files under the same names, so that nothing need travel."""
    configured: bool = False
    """The configuration names it, and taking it out there removes it."""
    executor: str = "ssh"
    """The kind of executor that runs attempts there."""
    options: dict[str, str] = {}
    """What that executor needs to know; of `ssh`, the fields above say it."""


class NodeRemoved(Event, frozen=True, kw_only=True):
    """A machine over SSH is ours no longer."""

    name: str


class NodeReached(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A machine over SSH answers, and what was given up on it is over."""

    node: str
    ended: tuple[tuple[int, int], ...] = ()
    """Jobs and attempts that were restarted elsewhere, and now run there only."""


class NodeUnreachable(Event, frozen=True, kw_only=True):
    """A machine over SSH does not answer. What runs there goes on, for all we know."""

    node: str
    why: str
    boot: float


class NodeClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A machine over SSH answers but can take nothing new, or (no reason) can again."""

    node: str
    why: str | None = None


class NodeMeasured(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What others use of a machine's cores (thousandths) and memory (MiB) has changed."""

    node: str
    cpus: int = 0
    memory: int = 0


class SpecRecorded(Event, frozen=True, kw_only=True):
    """A submission's common part, before its first use."""

    hash: str
    spec: Spec


class JobsSubmitted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """One submission: one job, a bulk or an array. Ids run from `first` without a gap."""

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
    """The sweep whose trials these are."""
    trials: tuple[tuple[str, Command], ...] = ()
    """Of each its parameters, as canonical JSON, and its command."""


class SweepDefined(Event, frozen=True, kw_only=True):
    """A sweep was asked for: a new one, or more of one that is known."""

    sweep: Sweep


class SweepChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The owner, or what has come of it, changed how a sweep goes on; None: as it was."""

    sweep: int
    held: bool | None = None
    ended: bool | None = None
    max_running: int | None = None
    """0: any number of them."""
    priority: int | None = None
    note: str | None = None
    """Empty: nothing is in its way any more."""


class TrialMeasured(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A trial has got so far, where it is compared with others, or has come to its end."""

    job: int
    attempt: int
    value: float | None
    """None: it is no number, or there is none."""
    step: float | None = None
    rung: int | None = None
    final: bool = False


class TrialStopped(Event, frozen=True, kw_only=True):
    """A trial is ended early, since others do better."""

    job: int
    attempt: int


class TrialsForgotten(Event, frozen=True, kw_only=True):
    """The board of a sweep that is over left memory; the store still has its trials."""

    sweep: int


class TrialsRecalled(Event, frozen=True, kw_only=True):
    """The board of a sweep came back to memory, because more is wanted of it."""

    sweep: int
    trials: tuple[Trial, ...]


class IdsReserved(Event, frozen=True, kw_only=True):
    """Ids below this one may have been given out by a journal that was lost."""

    next_id: int


class AttemptPlanned(Event, frozen=True, kw_only=True):
    """The planner gave a job devices. The intent to start it, on record before the act."""

    job: int
    attempt: int
    placement: Placement
    boot: float


class AttemptQueued(Event, frozen=True, kw_only=True):
    """Another cluster's scheduler has accepted an attempt, and starts it when it sees fit."""

    job: int
    attempt: int
    external_id: str
    """What it is called there: a hint for people, since such numbers are given out again."""


class ProcessStarted(Event, frozen=True, kw_only=True):
    """An attempt's process exists."""

    job: int
    attempt: int
    pid: int | None = None
    """None where processes are not ours to see."""
    boot: float
    part: int | None = None
    """Which part of an attempt on several machines; None: the whole of it. So below."""
    external_id: str | None = None
    hosts: tuple[str, ...] = ()
    """Where a delegated node runs it."""
    devices: tuple[str, ...] = ()
    """The GPUs that it got there."""


class ProcessExited(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt's process tree is over, and how."""

    job: int
    attempt: int
    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    """`host` when the kernel killed it for memory, `cuda` when CUDA ran out."""
    note: str | None = None
    """What had to be done to end it, or what it left behind."""
    part: int | None = None
    stopped: bool = False
    """It ended at a safe point because it was asked to, whatever its code."""
    uncaught: bool = False
    """The signal by which it was asked to make room was caught by none of its processes."""
    lacks: str | None = None
    """What its node lacks, so that its container could not be run there."""


class TrainingBegan(Event, frozen=True, kw_only=True):
    """The training library spoke up in an attempt: it will hear a wish to stop."""

    job: int
    attempt: int


class EpochsCounted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """So many epochs of a job are done and saved, in all its attempts together."""

    job: int
    attempt: int
    done: int
    seconds: float | None = None
    """How long an epoch took lately."""
    step: float | None = None
    """How long a step took lately, in seconds."""
    warmup: float | None = None
    """Seconds from the start of the attempt to its first epoch."""
    metrics: dict[str, float] | None = None
    """What the script has reported last, if that is news."""
    total: int | None = None
    """How many epochs there are, by what the script says, if that is news."""


class KindMeasured(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured elsewhere of a kind of job, and may be relied upon here."""

    family: str
    paces: tuple[Pace, ...] = ()
    beside: dict[str, float] = {}
    """What is left of its speed when it shares a GPU, by model and kind of the other."""
    warmup: float | None = None


class MemoryMeasured(Event, frozen=True, kw_only=True):
    """An attempt was seen to use so much of one GPU's memory (MiB): the most so far."""

    job: int
    attempt: int
    memory: int


class StopAsked(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The planner wants a running attempt to stop at its next safe point, and go on later."""

    job: int
    attempt: int
    why: str
    boot: float
    by: int | None = None
    gpus: int | None = None


class StopWithdrawn(Event, frozen=True, kw_only=True):
    """Nobody needs the room any more that an attempt was to make."""

    job: int
    attempt: int


class StopOverdue(Event, frozen=True, kw_only=True):
    """An attempt has not stopped within its grace, or has, and something of it lives on."""

    job: int
    attempt: int
    has_saved: bool = False
    """It has stopped at a checkpoint: whatever lives on, nothing can be lost any more."""


class EstimateExceeded(Event, frozen=True, kw_only=True):
    """A job has taken far longer than it said."""

    job: int


class AttemptLost(Event, frozen=True, kw_only=True):
    """An attempt is over and nobody knows how."""

    job: int
    attempt: int
    why: str
    part: int | None = None
    with_files: bool = False
    """Its machine is gone, and all that it has saved there with it."""


class AttemptAbandoned(Event, frozen=True, kw_only=True):
    """Its machine was unreachable for so long that its owner's rule restarts it elsewhere."""

    job: int
    attempt: int
    node: str


class StartFailed(Event, frozen=True, kw_only=True):
    """An attempt could not be started at all (no such directory, program or shell)."""

    job: int
    attempt: int
    why: str
    part: int | None = None


class StartCalledOff(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt was not started: its device was taken after all, or something ran short."""

    job: int
    attempt: int
    why: str
    delay: float = 0.0
    """Seconds to wait before the next try."""


class AttemptsFound(Event, frozen=True, kw_only=True):
    """Attempts came to light that the journal had lost: their numbers are used up."""

    job: int
    attempt: int


class AttemptRecovered(Event, frozen=True, kw_only=True):
    """An attempt runs, or has run, that the journal did not know: it was restored or damaged."""

    job: int
    attempt: int
    placement: Placement
    boot: float


class JobCancelled(Event, frozen=True, kw_only=True):
    """The owner gave a job up."""

    job: int
    at_once: bool = False
    needless: bool = False
    """Its sweep has found what it was looking for."""


class JobHeld(Event, frozen=True, kw_only=True):
    """The owner keeps a waiting job from starting."""

    job: int


class JobReleased(Event, frozen=True, kw_only=True):
    """The owner lets a held job go."""

    job: int


class JobPaused(Event, frozen=True, kw_only=True):
    """The owner stopped a running job in place."""

    job: int
    boot: float


class JobResumed(Event, frozen=True, kw_only=True):
    """The owner let a paused job go on."""

    job: int
    boot: float


class JobSignalled(Event, frozen=True, kw_only=True):
    """The owner sent a running job a signal."""

    job: int
    signal: int


class JobRetried(Event, frozen=True, kw_only=True):
    """The owner wants another attempt of a finished job."""

    job: int
    same_devices: bool = False


class JobEdited(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The owner changed a pending job, or the time limit or priority of a running one."""

    job: int
    spec: str
    name: str
    priority: int
    begin_at: float | None = None


class JobMoved(Event, frozen=True, kw_only=True):
    """The owner changed a waiting job's place in line."""

    job: int
    priority: int
    rank: int


class TimeLimitReached(Event, frozen=True, kw_only=True):
    """A running attempt has used its time."""

    job: int
    attempt: int


class TimeLimitNear(Event, frozen=True, kw_only=True):
    """The moment came for the signal that a job asked for before its limit."""

    job: int
    attempt: int


class WaitOver(Event, frozen=True, kw_only=True):
    """A begin time or back-off is over."""

    job: int


class DeadlinePassed(Event, frozen=True, kw_only=True):
    """A job's deadline came before its end."""

    job: int


class DevicesDrained(Event, frozen=True, kw_only=True):
    """Devices take no new jobs."""

    devices: tuple[tuple[str, str, str], ...]
    reason: str


class DevicesUndrained(Event, frozen=True, kw_only=True):
    """Devices take jobs again."""

    devices: tuple[tuple[str, str, str], ...]


class ForeignUseChanged(Event, frozen=True, kw_only=True):
    """Somebody outside stoker began or stopped using a GPU."""

    node: str
    device: str
    stranger: str | None
    memory: int = 0


class QueueDefined(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A named queue and its limits over the shared devices."""

    name: str
    max_running: int | None = None
    max_gpus: int | None = None
    priority: int = 0
    strict: bool = False
    devices: tuple[str, ...] = ()
    """The GPUs that its jobs may use, as typed; none: all."""
    resources: tuple[tuple[str, str, int], ...] = ()
    """Type, device and capacity of all that its jobs may use; none: everything there is."""
    max_waiting: int | None = None
    max_job_gpus: int | None = None


class QueueDeleted(Event, frozen=True, kw_only=True):
    """A named queue is gone."""

    name: str


class PolicyChosen(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue goes by from now on; `*`: every queue for which nothing else is said."""

    queue: str
    name: str = ""
    """Empty: whatever is said for all others."""
    parameters: dict[str, float] = {}


class RecordsCleared(Event, frozen=True, kw_only=True):
    """The history of a front door was wiped: what ended before is not shown there any more."""

    door: str


class JobsSeen(Event, frozen=True, kw_only=True):
    """Somebody looked at these ends."""

    jobs: tuple[int, ...]


class JobsForgotten(Event, frozen=True, kw_only=True):
    """Finished jobs left memory; the store still has them."""

    jobs: tuple[int, ...]


class JobRecalled(Event, frozen=True, kw_only=True):
    """A finished job came back to memory, with its spec, because something refers to it."""

    job: Job
    spec: Spec


AnyEvent = (
    DaemonStarted | NodeJoined | NodeAdded | NodeRemoved | NodeReached | NodeUnreachable
    | NodeClosed | NodeMeasured | AttemptAbandoned | SpecRecorded | JobsSubmitted | IdsReserved
    | AttemptPlanned | AttemptQueued | ProcessStarted | ProcessExited | AttemptLost | StartFailed
    | StartCalledOff | AttemptsFound | AttemptRecovered
    | JobCancelled | JobHeld | JobReleased | JobPaused
    | JobResumed | JobSignalled | JobRetried | JobEdited | JobMoved | TimeLimitReached
    | TimeLimitNear | WaitOver | DeadlinePassed | DevicesDrained | DevicesUndrained
    | TrainingBegan | EpochsCounted | KindMeasured | MemoryMeasured
    | StopAsked | StopWithdrawn | StopOverdue
    | EstimateExceeded | SweepDefined | SweepChanged | TrialMeasured | TrialStopped
    | TrialsForgotten | TrialsRecalled
    | ForeignUseChanged | QueueDefined | QueueDeleted | PolicyChosen
    | RecordsCleared | JobsSeen | JobsForgotten
    | JobRecalled
)  # fmt: skip
