"""RemoteAttempt: an attempt on a node with an agent, as far as its executor knows it."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.core.model.spec import FileTransfer
from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.agent.transfer.staging import AttemptWorkspace


class Phase(Enum):
    """How far an attempt is. Every phase survives the loss of the connection."""

    UPLOADING = auto()
    """Its files are sent; the agent does not know it yet."""
    ORDERED = auto()
    """The start request was sent, now or by an earlier daemon."""
    RUNNING = auto()
    """The agent has reported its process."""
    COLLECTING = auto()
    """It has ended; its output and files are fetched."""
    DONE = auto()
    """Its end was reported."""


class EndRequest(Struct):
    """A request to terminate an attempt, repeated over every connection until it has ended."""

    at_once: bool = False
    is_sent: bool = False
    """Whether the agent of this connection was asked to terminate it."""
    kill_at: float | None = None
    """Boot time of the KILL; None until the agent was asked."""
    was_killed: bool = False


class RemoteAttempt(Struct):
    """An attempt that an executor looks after."""

    id: AttemptId
    mirror: LogMirror
    carry: FileTransfer
    directory: str
    workspace: AttemptWorkspace
    part: int | None = None
    """Its rank in a gang."""
    checkpoints: str | None = None
    """The directory on this node that receives its checkpoints; None if they are shared."""
    launch: Launch | None = None
    """What is to be started; None once the start request was sent."""
    barrier_timeout: int = 0
    """Seconds that it waits for the other parts; 0: it does not wait."""
    phase: Phase = Phase.UPLOADING
    end: EndRequest | None = None
    is_observed: bool = False
    """Whether the agent of this connection reports its end; otherwise it is polled."""
    ordered_at: float = 0.0
    """When the start request was sent, by the monotonic clock."""
    pid: int | None = None
    has_run: bool = False
    """Whether the journal knows that it has run."""
    outcome: list[str] | None = None
    """How it ended, as the agent reported it; set while results are collected."""
    lost_reason: str | None = None
    """Why it is not known how it ended."""
    is_preempted: bool = False
    """Whether another scheduler ended it, so that its loss is no failure."""
    undecided_polls: int = 0
    """Polls in a row that could not tell whether it runs."""
    report_offset: int = 0
    """Bytes of its training report that have arrived."""
    control_files: dict[str, str] = {}
    """Text of its control files by name, sent again over every connection."""
    sent_control_files: dict[str, str] = {}
    """Those that were sent over this connection."""
    checkpoints_left: bool = False
    """Its checkpoints on the node are newer than those here and could not be copied."""

    @property
    def is_ordered(self) -> bool:
        """Whether the start request was sent."""
        return self.phase is not Phase.UPLOADING

    @property
    def is_collecting(self) -> bool:
        """Whether it has ended and its results are fetched."""
        return self.phase is Phase.COLLECTING

    @property
    def is_alive(self) -> bool:
        """Whether its start was requested and its end is not known."""
        return self.phase in (Phase.ORDERED, Phase.RUNNING)

    def collect(self, outcome: list[str]) -> None:
        """Note the end; results are fetched from now on."""
        self.outcome, self.phase = outcome, Phase.COLLECTING

    def stop_collecting(self) -> None:
        """Return to the phase before the end: its results must be fetched again."""
        if self.is_collecting:
            self.outcome = None
            self.phase = Phase.ORDERED if self.pid is None else Phase.RUNNING

    @property
    def word(self) -> str:
        """The agent's name of it."""
        return str(self.id)

    @property
    def offsets(self) -> tuple[str, str, str]:
        """How many bytes of its output and of its report have arrived."""
        return (*self.mirror.offsets, str(self.report_offset))


def parse_attempt(word: str) -> AttemptId | None:
    """Return the attempt that the agent names; None for a word that names no attempt."""
    job, _, attempt = word.partition(".")
    try:
        return AttemptId(number(job), number(attempt))
    except ProtocolError:
        return None
