"""The executor port: what the daemon needs of a place where attempts run, and what that reports.

An executor makes the output of an attempt appear in `Launch.out` and `Launch.err` on this node,
whether it writes, copies or streams it; everything else reads those files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Flag, auto
from typing import Protocol

from msgspec import Struct

from stoker.core.events import Event
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import NodeFacts, PlacementMode
from stoker.core.model.spec import Spec

__all__ = [
    "AttemptId", "AttemptRecords", "Barrier", "Capability", "Executor", "ExecutorSink",
    "NodeReading", "PartHost", "PlacementMode", "RecoverableAttempt", "Upload",
]  # fmt: skip

SHORTAGE_SECONDS = 10.0
"""Delay of the next try after a start failed for want of memory, processes or disk."""


class Capability(Flag):
    """What an executor can do beyond starting and terminating attempts."""

    BIND_DEVICES = auto()
    """CUDA_VISIBLE_DEVICES is set by stoker."""
    SUSPEND = auto()
    SIGNAL = auto()
    CONTROL_FILES = auto()
    """The files `stop` and `stop_at` reach the training library."""
    REPORTS = auto()
    """Training reports arrive while an attempt runs."""
    MULTI_NODE = auto()
    """One start may span several hosts; no barrier is needed."""
    BARRIER = auto()
    """A part of a gang waits until it is released."""
    SHARED_FILES = auto()
    """Attempts see the file system of this node; nothing is uploaded."""


class Barrier(Struct, frozen=True):
    """Makes one part of a gang wait until all parts are ready."""

    rank: int
    timeout: int
    """Seconds that the part waits before it gives up."""


class RecoverableAttempt(Struct, frozen=True):
    """An attempt that the journal says is under way, started by an earlier daemon."""

    job: Job
    spec: Spec
    out: str
    err: str | None = None
    rank: int | None = None
    """The rank of its part here if it is a gang."""
    checkpoints: str = ""
    """The directory of its checkpoints on this node."""
    node_restarted: bool = False
    """The node has restarted since, so no process of the attempt can be left."""

    @property
    def id(self) -> AttemptId:
        """The job and the number of its attempt."""
        return AttemptId(self.job.id, self.job.attempt)


class Upload(Protocol):
    """Progress of an upload of an attempt's files."""

    sent: int
    total: int | None

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated remaining time; None while it is unknown."""

    def text(self, node: str, now: float) -> str:
        """Return the progress as a phrase."""


class NodeReading(Protocol):
    """One measurement of a node: its resources and their use."""

    @property
    def cores(self) -> int:
        """Number of cores."""

    @property
    def memory_total(self) -> int:
        """MiB of memory."""

    @property
    def memory_available(self) -> int:
        """MiB of memory that are not in use."""

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources of the node for the core."""


class Allocation(Struct, frozen=True):
    """What another scheduler says of a node that it provides for a time."""

    id: str
    is_queued: bool
    """Whether it waits for resources."""
    reason: str
    """Why it waits."""
    start: float | None
    """Wall time at which it started, or is expected to."""
    end: float | None
    """Wall time of its end at the latest."""


class PartHost(Struct, frozen=True):
    """Where a part of a gang runs, if a delegated node has chosen that."""

    name: str = ""
    address: str = ""
    """By which the other parts reach it."""


NODE = PartHost()
"""It runs on the host that is its node."""


class ExecutorSink(Protocol):
    """Receives what one executor reports about its node; called in the daemon's thread only.

    Reports may be late or repeated: the core sorts that out.
    """

    def event(self, event: Event) -> None:
        """Report what became of an attempt."""

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        """Report bytes that were appended to a training report."""

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        """Report that the node answers and all its attempts are accounted for.

        `ended` are attempts that had been abandoned and were terminated now.
        """

    def node_down(self, why: str) -> None:
        """Report that the node does not answer."""

    def node_gone(self, why: str) -> None:
        """Report that the node has ended for good, with all attempts on it."""

    def node_reading(self, reading: NodeReading) -> None:
        """Report a measurement of the node."""

    def reading_failed(self, error: str | None) -> None:
        """Report that the GPU driver did not answer; earlier readings stay valid."""

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        """Report that a part waits at its barrier; `port` is free on its host."""

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        """Report that checkpoints could not be copied: the job can resume on this node only."""


class AttemptRecords(Protocol):
    """What the core knows of attempts: read by executors that reconcile after a disconnect."""

    def abandoned_attempts(self, node: str) -> list[AttemptId]:
        """Return the attempts that were given up while the node was unreachable."""

    def is_expected(self, attempt: AttemptId) -> bool:
        """Return whether the core waits for the end of this attempt."""

    def is_superseded(self, attempt: AttemptId) -> bool:
        """Return whether its job has finished or is at a later attempt."""

    def next_job_id(self) -> int:
        """Return the id of the next job; the journal knows no job from it on."""

    def has_work(self) -> bool:
        """Return whether jobs are pending or running, so that fresh readings are needed."""


class Executor(Protocol):
    """Runs attempts on one node and reports what becomes of them. It never decides.

    Calls about an attempt that it does not have are ignored.
    """

    @property
    def capabilities(self) -> Capability:
        """What it can do."""

    @property
    def address(self) -> str | None:
        """The host name by which other nodes reach this one, if it is known."""

    @property
    def allocation(self) -> Allocation | None:
        """The allocation that is the node; None if it is a host of its own."""
        return None

    @property
    def notes(self) -> list[str]:
        """What administrators should know about the node."""
        return []

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""

    def open(self, sink: ExecutorSink) -> None:
        """Begin; everything is reported to this sink. Called once, before anything else."""

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Find out what became of attempts that an earlier daemon started."""

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Start an attempt, at most once per attempt ever."""

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run with these variables; None: give it up.

        A part that has not reached its barrier yet can be given up, too.
        """

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate the whole process tree: TERM, KILL after `grace` seconds; 0: KILL at once."""

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal to the processes; optionally only to those that handle it.

        With `to_script` at most to those that handle it, and to the first process alone if the
        executor knows it.
        """

    def suspend(self, attempt: AttemptId) -> None:
        """Stop all processes in place."""

    def resume(self, attempt: AttemptId) -> None:
        """Let suspended processes continue."""

    def abandon(self, attempt: AttemptId) -> None:
        """See that an attempt that the core gave up does not go on."""

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the training library of one part."""

    def exchange_control_files(
        self, attempt: AttemptId, rank: int, written: Collection[str], wait: float
    ) -> dict[str, str] | None:
        """Return the control files for a part that reports over HTTP, again after `wait` seconds.

        `written` are those that it has. None: it does not run here.
        """
        return None

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Forget attempts: their ends are on disk, so what proves them may be deleted."""

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return the upload of an attempt's files while it is under way."""

    def follow_log(self, job: int) -> None:
        """Copy the output of a job more often for a while."""

    def refresh(self) -> None:
        """Measure the node now, or try to reach it."""

    def remove(self) -> None:
        """Close, and give up what was held for the node: it was removed."""
        self.close()

    def close(self) -> None:
        """Release connections and descriptors; attempts continue."""
