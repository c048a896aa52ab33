"""PodAttempt: an attempt that was handed over, as far as its executor knows it."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.executors.kubernetes.api.pods import Pod
from stoker.executors.kubernetes.handover.logs.log_copy import LogCopy
from stoker.executors.kubernetes.handover.pod_spec import REVOKED, PodIdentity
from stoker.executors.kubernetes.handover.verdict import Kind, Verdict


class Creation(Enum):
    """Whether the API server has the pod."""

    REQUESTED = auto()
    UNKNOWN = auto()
    """An earlier daemon may have created it."""
    CREATED = auto()


class LogState(Enum):
    """Whether the log of the pod is being read."""

    IDLE = auto()
    FOLLOWING = auto()
    COMPLETE = auto()
    """It was read to its end."""


class EndRequest(Struct):
    """A request to end the attempt."""

    kill_at: float
    """Time on the reactor's clock."""
    is_term_sent: bool = False
    was_killed: bool = False
    next_try: float = 0.0
    failures: int = 0
    """Signals that could not be sent."""


class PodAttempt(Struct):
    """An attempt that an executor looks after."""

    id: AttemptId
    identity: PodIdentity
    copy: LogCopy
    launch: Launch | None = None
    """What is to be started; None for an attempt of an earlier daemon."""
    creation: Creation = Creation.REQUESTED
    has_run: bool = False
    """Whether its start was reported."""
    is_training: bool = False
    """Whether it may stop at a checkpoint."""
    ports: tuple[tuple[int, int], ...] = ()
    """Ports to publish: that of the nodes, that of the container."""
    pod: Pod | None = None
    verdict: Verdict = Verdict(Kind.WAITING)
    end: EndRequest | None = None
    failure: str | None = None
    """Why it was given up before it began."""
    log: LogState = LogState.IDLE
    log_deadline: float | None = None
    """Time on the reactor's clock at which its end is reported without the rest of its log."""
    next_log_try: float = 0.0
    log_failures: int = 0
    """Requests for the log in a row that brought nothing."""
    trouble: str = ""
    """Why its container cannot be created at present, by the events of the pod."""
    note: str = ""
    """Why that is not known."""
    next_events: float | None = None
    """Time on the reactor's clock at which these are read again."""
    stuck_since: float | None = None
    reported: str | None = None
    """The reason to wait that was reported last."""
    control_files: dict[str, str] = {}
    """Those that were not confirmed yet, by name."""
    is_sending_control: bool = False
    http_control: dict[str, str] = {}
    """Control files in the last reply to a report over HTTP."""
    http_until: float = 0.0
    """Time on the reactor's clock until which the next report over HTTP is expected."""
    is_ready_reported: bool = False
    is_barrier_cancelled: bool = False
    """Whether it was requested not to pass its barrier."""
    is_gang_stopping: bool = False
    """Whether its gang was asked to stop because the cluster ends this pod."""
    barrier_seconds: int = 0
    """0: it is no part of a gang, or one that an earlier daemon has started."""

    def update(self, pod: Pod, verdict: Verdict) -> None:
        """Note the state of the pod; at its end, the rest of the log may be read at once."""
        self.pod, self.verdict = pod, verdict
        if self.is_over:
            self.next_log_try, self.log_failures = 0.0, 0

    @property
    def why_it_waits(self) -> str:
        """Why it does not run yet, in the words of the cluster."""
        return self.trouble or "; ".join(filter(None, (self.verdict.why, self.note)))

    @property
    def part(self) -> int | None:
        """Its rank in a gang."""
        return self.identity.rank

    @property
    def waits_for_others(self) -> bool:
        """Whether it is a part of a gang and is not known to have passed its barrier."""
        return self.part is not None and not self.copy.reader.is_past_barrier

    @property
    def is_revoked(self) -> bool:
        """Whether its name is occupied so that it cannot be created."""
        return self.pod is not None and REVOKED in self.pod.metadata.labels

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended; its log may be missing."""
        return self.verdict.kind not in (Kind.WAITING, Kind.STUCK, Kind.RUNNING)

    @property
    def is_running(self) -> bool:
        """Whether its container runs."""
        return self.verdict.kind is Kind.RUNNING
