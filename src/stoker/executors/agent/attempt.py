"""An attempt on a machine over SSH, as far as its executor knows it."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.job import Carry
from stoker.core.launch import Launch
from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.agent.transfer.staging import AttemptWorkspace

Key = tuple[int, int]


class RemoteAttempt(Struct):
    """An attempt that an executor looks after."""

    key: Key
    mirror: LogMirror
    carry: Carry
    directory: str
    owner: AttemptWorkspace
    part: int | None = None
    checkpoints: str | None = None
    """Where those that it leaves over there belong here; None: they are there already."""
    launch: Launch | None = None
    """What is to be started; nothing any more once it has been ordered."""
    gate: int = 0
    ordered: bool = False
    heard: bool = False
    """Whether this connection's agent will tell us when it ends."""
    asked_at: float = 0.0
    """When it was ordered."""
    pid: int | None = None
    began: bool = False
    """Whether it is on record that it has run."""
    over: list[str] | None = None
    """How it ended; what it left is being fetched."""
    lost: str | None = None
    """Why nobody knows how it ended."""
    ending: bool = False
    at_once: bool = False
    told: bool = False
    """Whether this connection's agent was asked to end it."""
    kill_at: float | None = None
    killed: bool = False
    looks: int = 0
    said: int = 0
    """How many bytes of its report we have heard."""
    words: dict[str, str] = {}
    """What it is to be told, by the names of files: as long as it lives, over any connection."""
    left: dict[str, str] = {}
    """Those that this connection's agent was asked to leave there."""
    ahead: bool = False
    """Its checkpoints over there are newer than those here, which could not be helped."""

    @property
    def word(self) -> str:
        """What the agent calls it."""
        return word_of(self.key)

    @property
    def offsets(self) -> tuple[str, str, str]:
        """How much we have of its output and of its report."""
        return (*self.mirror.offsets, str(self.said))


def word_of(key: Key) -> str:
    """What the agent calls an attempt."""
    return f"{key[0]}.{key[1]}"


def key_of(word: str) -> Key | None:
    """The attempt that the agent calls so; None for a word that names no attempt."""
    job, _, attempt = word.partition(".")
    try:
        return number(job), number(attempt)
    except ProtocolError:
        return None
