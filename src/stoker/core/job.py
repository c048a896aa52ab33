"""The job: what was asked (its spec, shared by a whole bulk) and how it stands."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from stoker.core.cluster import Placement
from stoker.core.dependency import Dependency
from stoker.core.lifecycle import FINISHED, HOLDING, JobState
from stoker.core.request import Request

Command = str | tuple[str, ...] | None
"""A shell line, an argv, or nothing (the spec's script)."""

RANK_STEP = 1 << 40
"""Ranks lie this far apart, so that a job can be moved between any two others."""
NEEDLESS = "not needed: the sweep has reached its target"
"""Why a trial was cancelled that would have been one too many. Nothing has gone wrong."""
SKIPPED = 77
"""The exit code of a job that found nothing to do, as test programs say it."""


class AttemptId(NamedTuple):
    """One attempt of a job."""

    job: int
    attempt: int

    def __str__(self) -> str:
        """Return `job.attempt`, as files and the agent name it."""
        return f"{self.job}.{self.attempt}"


class Retry(Struct, frozen=True, omit_defaults=True):
    """When a failed attempt is followed by another one."""

    limit: int = 0
    on: tuple[str, ...] = ("any",)
    """`any`, `fail`, `oom`, `lost`, `timeout`, `signal`, `exit:3`."""


class EarlySignal(Struct, frozen=True, omit_defaults=True):
    """A signal to be sent some seconds before the time limit (`--signal=USR1@120`)."""

    signal: int
    seconds: int


class Carry(Struct, frozen=True, omit_defaults=True):
    """What travels with a job to a machine that does not have our files, and back."""

    send: tuple[str, ...] = (".",)
    """Paths in the job's directory; none: it starts in an empty one."""
    bring: tuple[str, ...] | None = None
    """Paths that come back whole; None: all that is new or changed."""
    into: str | None = None
    """Where they come back to; None: the job's directory."""
    exclude: tuple[str, ...] = ()
    """Patterns that go neither way, as in .gitignore."""


class Training(Struct, frozen=True, omit_defaults=True):
    """What a training job says about itself when it is submitted."""

    epochs: int | None = None
    batch_size: int | None = None
    set_size: int | None = None
    """Samples in an epoch, on all GPUs together."""
    expected: int | None = None
    """Seconds that its owner thinks it takes in all."""
    heartbeat: int = 100
    """Steps between two reports."""
    snapshots: str | None = None
    """Where its checkpoints go, in a directory of its own; None: beside our own state."""
    distributed: bool = False
    """Whether it gets the variables of torch.distributed and TF_CONFIG even on one machine."""


class Mount(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A directory of the machine, inside a container."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    """Left out where there is no such directory."""
    expected: bool = False
    """Whether it is there on the submit host, so that its absence elsewhere is said."""


class Container(Struct, frozen=True, omit_defaults=True):
    """The image a job runs in. A container is a way to start a process."""

    image: str
    mounts: tuple[Mount, ...] = ()
    ports: tuple[tuple[int, int], ...] = ()
    """Port of the machine, port in the container."""
    here: bool = True
    """Whether the job's directory is there under its own name, and it starts in it."""


class Source(Struct, frozen=True, omit_defaults=True):
    """Where a job's figures are found that does not report them itself."""

    kind: str
    """`log`: a pattern over its output; `file`: a JSON or CSV file that it writes."""
    text: str
    """The pattern, or the path in its directory."""
    name: str = ""
    """What the figure is called, where the pattern does not say."""


class Score(Struct, frozen=True, omit_defaults=True):
    """How good a trial of a sweep is, as far as that is known."""

    value: float | None = None
    step: float | None = None
    """Where it was measured."""
    rungs: tuple[float, ...] = ()
    """What it had at each of the moments at which trials are compared."""
    stopped: bool = False
    """It was ended early, since others do better."""
    final: bool = False
    """It has come to its end, and this is what it came to."""


class Stop(Struct, frozen=True, omit_defaults=True):
    """A running attempt has been asked to stop at its next safe point."""

    why: str
    boot: float
    """When, by the boot clock."""
    by: int | None = None
    """The job that waits for its devices."""
    gpus: int | None = None
    """How many GPUs it is to have when it goes on; None: whatever it asked for."""
    ignored: bool = False
    """It had time enough, and cannot be ended: nobody counts on it any more."""


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a training job is, and what its attempts have taught us."""

    epochs: int = 0
    """Epochs that count: the script's own saving code has run after each of them."""
    since: int = 0
    """How many of those there were when the current attempt began."""
    listening: bool = False
    """The library has spoken up in this attempt, so that it stops when it is asked to."""
    stop: Stop | None = None
    preemptions: int = 0
    peak: int | None = None
    """The most that this attempt was seen to use of one GPU's memory, in MiB."""
    reserve: int | None = None
    """MiB to set aside on each GPU, since it once ran out of what it had."""
    shortages: int = 0
    """How often that happened."""
    grew: bool = False
    """In this attempt it used more than was set aside for it."""
    shared: bool = False
    """In this attempt others were on its GPUs."""
    alone: bool = False
    """It shares no GPU any more: others have cost it an attempt."""
    gpus: int | None = None
    """How many GPUs the planner wants it to have."""
    overran: bool = field(default=False, name="demoted")
    """It took far longer than it said. (The name in the journal is that of an older rule.)"""
    ran: float = 0.0
    """Seconds that earlier attempts have run."""
    counted_at: float | None = None
    """When the last epoch began, for all we know."""
    pace: tuple[int, str, float] | None = None
    """Number and model of GPUs, and seconds per epoch, as it was measured last."""
    paces: tuple[tuple[int, int, float], ...] = ()
    """Of an elastic job, the stage of its training, the number of GPUs and the seconds per epoch,
    as it was measured lately; the last at the end."""
    metrics: dict[str, float] = {}
    """What the script has reported last."""
    total: int | None = None
    """How many epochs there are, by what the script says."""

    def later(self, seconds: float) -> Progress:
        """The same, had it been asked to stop so much later."""
        if self.stop is None:
            return self
        return replace(self, stop=replace(self.stop, boot=self.stop.boot + seconds))


class PartEnd(Struct, frozen=True, omit_defaults=True, array_like=True):
    """How one part of an attempt on several machines ended."""

    part: int
    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    lost: str | None = None
    """Why nobody knows how it ended."""
    failed: str | None = None
    """Why it could not be started; with a code, why its container could not be run there."""
    away: bool = False
    """It may still run, on a machine that does not answer."""
    note: str | None = None
    """What is to be known of its end."""
    stopped: bool = False
    """It ended at a safe point because it was asked to."""

    @property
    def well(self) -> bool:
        """Whether the others may go on."""
        return self.code in (0, SKIPPED)


class Tasks(Struct, frozen=True, omit_defaults=True):
    """How many tasks `srun` starts inside the job, as requested."""

    total: int
    per_node: int | None = None
    gpus: int | None = None
    """GPUs of each task."""


class Spec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was submitted, common to all jobs of one call. Interned by content."""

    kind: str
    """`line`, `argv` or `script`."""
    user: str
    directory: str
    shell: str
    environment: str
    """Hash of the environment; its values live in a table of their own."""
    request: Request
    name: str
    umask: int = 0o022
    script: str | None = None
    script_name: str | None = None
    args: tuple[str, ...] = ()
    queue: str = "default"
    limit: int | None = None
    retry: Retry = Retry()
    output: str | None = None
    error: str | None = None
    labels: tuple[str, ...] = ()
    group: str | None = None
    comment: str | None = None
    dependency: Dependency | None = None
    array_limit: int | None = None
    array_size: int = 0
    array_range: tuple[int, int, int] | None = None
    """First and last index, and the step between them."""
    deadline_at: float | None = None
    warning: EarlySignal | None = None
    threads: int | None = None
    slurm: bool = False
    """Whether it gets SLURM_* variables, `srun` and `scontrol`."""
    tasks: Tasks | None = None
    account: str | None = None
    pty: bool = False
    on_end: str | None = None
    feed: str | None = None
    """Set on the lines of one `feed`, which follows and cancels them together."""
    door: str | None = None
    """The front door it came through, whose commands touch only such jobs."""
    fill: bool = False
    """Whether its environment names devices in braces, to be filled in at the start."""
    verbatim: bool = False
    """Whether braces mean nothing in it: its command and environment stay as they are."""
    asked: tuple[str, ...] = ()
    """Variables named one by one: of the environment, only these go to another machine."""
    carry: Carry = Carry()
    if_unreachable: int | None = None
    """Seconds after which it is restarted elsewhere, though it may still run."""
    training: Training | None = None
    container: Container | None = None
    restartable: bool = False
    """It may be ended and begun anew to make room (`--requeue`)."""
    steady: bool = False
    """It is never asked to make room (`--no-requeue`)."""
    source: Source | None = None
    """Where its figures are found, if it does not report them."""


class Past(Struct, frozen=True, omit_defaults=True, array_like=True):
    """An attempt that is over."""

    attempt: int
    started_at: float | None
    ended_at: float
    cause: str
    code: int | None = None


class Job(Struct, omit_defaults=True, gc=False):
    """One job. Only events change it."""

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
    """Not before this wall-clock time (begin time, or back-off after a retry)."""
    attempt: int = 0
    """The number of the current attempt, or of the next one while the job waits."""
    placement: Placement | None = None
    pid: int | None = None
    started_at: float | None = None
    started_boot: float | None = None
    paused_boot: float | None = None
    slack: float = 0.0
    """Seconds spent suspended, which do not count against the time limit."""
    warned: bool = False
    ended_at: float | None = None
    code: int | None = None
    signal: int | None = None
    cause: str | None = None
    delay_over: bool = False
    """Its `after:ID+minutes` was met once: a clock that is set back does not undo that."""
    late: bool = False
    """Retried by its owner after its deadline, which no longer counts."""
    ending: str | None = None
    """Why it is ending: `cancel`, `time` or `deadline`."""
    ends: tuple[PartEnd, ...] = ()
    """The parts of the current attempt that are over, the first to end first."""
    retries: int = 0
    requeues: int = 0
    same_devices: bool = False
    last_devices: tuple[str, ...] = ()
    last_node: str | None = None
    ready_at: float | None = None
    """When nothing but others was in its way any more, if that was later than its submission."""
    last_others: tuple[str, ...] = ()
    """The machines of the other parts of its last attempt, by rank."""
    note: str | None = None
    seen: bool = False
    past: tuple[Past, ...] = ()
    progress: Progress | None = None
    params: str | None = None
    """What makes this trial of a sweep another one than the rest: canonical JSON."""
    score: Score | None = None
    external_id: str | None = None
    """What another cluster's scheduler calls the current attempt, or the last one."""
    hosts: tuple[str, ...] = ()
    """Where that scheduler runs it."""
    devices: tuple[str, ...] = ()
    """The GPUs that it got there."""

    @property
    def order(self) -> int:
        """The place in line among jobs of equal priority; smaller is earlier."""
        return self.id * RANK_STEP if self.rank is UNSET else self.rank

    @property
    def label(self) -> str:
        """What people see and type."""
        return str(self.id) if self.array is None else f"{self.array}_{self.index}"

    @property
    def finished(self) -> bool:
        """Whether it has reached an end."""
        return self.state in FINISHED

    @property
    def holding(self) -> bool:
        """Whether it holds devices."""
        return self.state in HOLDING

    @property
    def result(self) -> int | None:
        """Its end as an exit code, the way `wait` returns it."""
        state = self.state
        if state is JobState.COMPLETED:
            return 0
        if state not in FINISHED:
            return None
        if state is JobState.TIMEOUT:
            return 124
        if state is JobState.CANCELLED:
            return 0 if self.cause == NEEDLESS else 143
        if self.signal:
            return 128 + self.signal
        return self.code or 1
