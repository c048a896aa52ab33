"""An attempt on a machine over SSH, as far as its executor knows it."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.job import Carry
from stoker.core.launch import Launch
from stoker.executors.ssh.landing import Owner
from stoker.executors.ssh.mirror import Mirror

Key = tuple[int, int]


class Attempt(Struct):
    """An attempt that an executor looks after."""

    key: Key
    mirror: Mirror
    carry: Carry
    directory: str
    owner: Owner
    part: int | None = None
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

    @property
    def word(self) -> str:
        """What the agent calls it."""
        return word_of(self.key)


def word_of(key: Key) -> str:
    """What the agent calls an attempt."""
    return f"{key[0]}.{key[1]}"


def key_of(word: str) -> Key | None:
    """The attempt that the agent calls so."""
    job, _, attempt = word.partition(".")
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None
