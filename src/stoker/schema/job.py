"""Jobs and the replies about them."""

from __future__ import annotations

from typing import Any, Generic

from msgspec import UNSET, Struct, UnsetType, field

from stoker.schema.alarm import AlarmView
from stoker.schema.estimate import EstimateView, Time
from stoker.schema.sweep import SweepView
from stoker.schema.training import ContainerView, TrainingView


class RequestView(Struct, kw_only=True):
    """Requested resources, as typed; memory in MiB."""

    gpus: str | None = None
    most_gpus: str | None = None
    """The maximum of an elastic job; its minimum is `gpus`."""
    model: str | None = None
    min_vram: int | None = None
    gpu_memory: int | None = None
    use_gpus: list[str] = []
    prefer_gpus: list[str] = []
    avoid_gpus: list[str] = []
    cpus: str | None = None
    memory: int | None = None
    resources: dict[str, str] = {}
    exclusive: bool = False
    machines: int | None = None
    """Number of nodes, if more than one."""
    nodelist: list[str] = []
    not_nodes: list[str] = []


class ArrayIndex(Struct, kw_only=True):
    """The array of a job, and its index there."""

    id: int
    index: int | None = None


class ObjectiveView(Struct, kw_only=True):
    """The value of a trial's metric."""

    value: float | None = None
    step: float | None = None
    stopped: bool = False


class PartView(Struct, kw_only=True):
    """What a multi-node job has on one node."""

    node: str
    devices: dict[str, list[str]] = {}
    gpu_uuids: list[str] = []
    log: str | None = None
    error_log: str | None = None


class AttemptView(Struct, Generic[Time], kw_only=True):
    """An ended attempt of a job."""

    attempt: int
    started_at: Time | None = None
    ended_at: Time | None = None
    cause: str | None = None
    exit_code: int | None = None


class UploadView(Struct, kw_only=True):
    """The upload of a job's files to one node."""

    node: str
    sent_bytes: int
    total_bytes: int | None = None
    """None while the files are read."""
    seconds_left: float | None = None
    text: str = ""


class MembersView(Struct, kw_only=True):
    """Members of an array that a listing shows as one row."""

    label: str
    count: int
    causes: dict[str, int] = {}


class HookView(Struct, kw_only=True):
    """The outcome of a job's on-end hook; `exit_code` is None until the hook has ended."""

    exit_code: int | None = None
    output: str = ""


class JobView(Struct, Generic[Time], frozen=True, kw_only=True, rename={"array_index": "array"}):
    """A job. Fields that are UNSET are not part of the reply."""

    id: int
    label: str = ""
    """What users see and type: `42`, or `42_3` for member 3 of array 42."""
    name: str = ""
    user: str = ""
    state: str
    state_code: str = ""
    reason: str | None = None
    reason_text: str | None = None
    queue: str = "default"
    group: str | None = None
    labels: list[str] = []
    comment: str | None = None
    account: str | None = None
    priority: int = 0
    command: str = ""
    directory: str = ""
    shell: str = ""
    request: RequestView = field(default_factory=RequestView)
    array_index: ArrayIndex | None = None
    sweep: int | None = None
    params: dict[str, Any] | None = None
    objective: ObjectiveView | None = None
    depends: str | None = None
    retry: str | None = None
    if_unreachable: str | None = None
    deadline_at: Time | None = None
    on_end: str | None = None
    warning_signal: str | None = None
    feed: str | None = None
    client: str | None = None
    """The command of another tool that submitted it."""
    container: ContainerView | None = None
    restartable: bool = False
    node: str | None = None
    nodes: list[str] = []
    unreachable: bool = False
    unreachable_since: Time | None = None
    devices: dict[str, list[str]] = {}
    """Of its first node, by type."""
    parts: list[PartView] = []
    gpu_uuids: list[str] = []
    attempt: int = 0
    pid: int | None = None
    submitted_at: Time | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    begin_at: Time | None = None
    expected_start: Time | None = None
    expected_end: Time | None = None
    elapsed: float | None = None
    time_limit: int | None = None
    time_left: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: str | None = None
    result: int | None = None
    """None until it has ended; then its exit code, 128+N after signal N, 124 after the time limit,
    143 if cancelled, 1 if lost."""
    termination_note: str | None = None
    """A note on its end, such as: killed after the grace time."""
    dismissed: bool = False
    attempts: list[AttemptView[Time]] = []
    """All ended attempts."""
    training: TrainingView | None = None
    external_id: str | UnsetType = UNSET
    """Of a job that was handed over to another scheduler: its id there."""
    hosts: list[str] | UnsetType = UNSET
    log: str | None = None
    error_log: str | None = None
    log_bytes: int = 0
    attach: str | UnsetType | None = UNSET
    """The socket of its terminal, while it runs with --pty."""
    tail: list[str] | UnsetType = UNSET
    uploads: list[UploadView] | UnsetType = UNSET
    foreseen: EstimateView[Time] | UnsetType = UNSET
    members: MembersView | UnsetType = UNSET
    hook: HookView | UnsetType | None = UNSET
    variables: list[str] | UnsetType = UNSET
    """Names of its environment variables."""
    dependents: list[str] | UnsetType = UNSET
    """Labels of jobs that depend on it."""
    alarms: list[AlarmView] | UnsetType = UNSET
    """What is probably wrong with it now."""
    advice: str | UnsetType = UNSET
    """What its last attempt asked for and did not use."""


class JobList(Struct, kw_only=True):
    """Reply of `GET /jobs`."""

    jobs: list[JobView[str]]
    more: int
    """How many jobs are not listed."""
    counts: dict[str, int]
    now: str | None
    sweeps: list[SweepView[str]]
    seq: int
    """Sequence number of the last event."""
    warnings: list[str]


class History(Struct, kw_only=True):
    """Reply of `GET /history`."""

    jobs: list[JobView[str]]
    more: int = 0


class SubmitReply(Struct, kw_only=True):
    """Reply of `POST /jobs`."""

    first: int | None
    last: int | None
    count: int
    label: str | None
    warnings: list[str]
    expected_start: str | None = None
    nodes: list[str] | UnsetType = UNSET
    """With `dry_run`: the nodes on which it would start now."""


class StuckJob(Struct, kw_only=True):
    """A job with a dependency that can never be satisfied."""

    id: int
    text: str


class WaitReply(Struct, kw_only=True):
    """Reply of `POST /wait`."""

    finished: bool
    count: int
    jobs: list[JobView[str]]
    stuck: list[StuckJob]
    notes: list[str]


class ActionView(Struct, kw_only=True):
    """A job that an action was applied to, or (`why`) was not."""

    id: int
    label: str
    state: str | UnsetType = UNSET
    why: str | UnsetType = UNSET
    unreachable: list[str] | UnsetType = UNSET
    """Nodes that have yet to learn of it."""


class ActionReply(Struct, kw_only=True):
    """Reply of the routes that change jobs."""

    done: list[ActionView] | UnsetType = UNSET
    skipped: list[ActionView] | UnsetType = UNSET
    sweeps: list[int] | UnsetType = UNSET
    """The sweeps that it was applied to as a whole."""
    count: int | UnsetType = UNSET
    """Of a dry run of `retry`: the number of jobs."""
    overdue: list[str] | UnsetType = UNSET
    """Of a dry run of `edit`: running jobs that the new time limit would end."""


class ConstraintView(Struct, kw_only=True):
    """What a node lacks for a job."""

    name: str
    needs: str | None = None
    free: str | None = None
    text: str
    details: list[str] = []


class NodeFit(Struct, kw_only=True):
    """Whether a node can run a pending job."""

    node: str
    fits_empty: bool = True
    constraints: list[ConstraintView] = []


class FigureView(Struct, kw_only=True):
    """The value by which a policy orders a job."""

    text: str
    seconds: float | None = None
    gpus: float | None = None
    basis: str | None = None


class RankView(Struct, kw_only=True):
    """Position of a job in its queue."""

    policy: str
    by: str
    position: int | None
    of: int
    figure: FigureView
    overdue_in: float | None = None


class AheadView(Struct, kw_only=True):
    """A job that starts earlier, and why."""

    label: str
    why: str


class WhyView(Struct, Generic[Time], frozen=True, kw_only=True):
    """Reply of `GET /jobs/{selector}/why`."""

    id: int
    label: str
    state: str
    name: str = ""
    reason: str | None = None
    text: str | None = None
    position: int | None = None
    ahead: list[str] = []
    """Labels of the jobs that start earlier."""
    coming: list[str] = []
    """The jobs that stop for it, in words."""
    standing: RankView | None = None
    before: list[AheadView] = []
    unblocks: list[str] = []
    """What would let it start."""
    room: list[str] = []
    """Of a running job: the pending jobs for which it may be preempted."""
    expected_start: Time | None = None
    expected_end: Time | None = None
    foreseen: EstimateView[Time] | UnsetType = UNSET
    nodes: list[NodeFit] = []
    alarms: list[AlarmView] | UnsetType = UNSET


class SeriesSummary(Struct, kw_only=True):
    """Statistics of one metric."""

    count: int
    last: list[float | None]
    """Step, value and time of a point, as in the series."""
    min: list[float | None]
    max: list[float | None]


class MetricsReply(Struct, kw_only=True):
    """Reply of `GET /jobs/{selector}/metrics`."""

    job: int
    label: str
    names: list[str]
    series: dict[str, list[list[float | None]]]
    """Step, value and time of each point."""
    summary: dict[str, SeriesSummary]
    count: int
