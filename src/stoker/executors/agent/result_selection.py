"""What comes back from an attempt: a small tar on the agent's own line, or carried beside it."""

from __future__ import annotations

import os

from stoker.core.job import Carry
from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.transfer import tree_upload as carry
from stoker.executors.agent.transfer.tree_upload import LinkLost, RemoteShell
from stoker.executors.agent.transfer.uploads import NEVER

__all__ = ["LinkLost", "bring", "kind", "named", "names", "unpack"]


def kind(what: Carry) -> str:
    """What the agent shall get ready: what was written, what was named, or nothing."""
    if what.bring is None:
        return "changed"
    return "named" if what.bring else "nothing"


def named(what: Carry) -> tuple[str, ...]:
    """Paths that come back whole."""
    return what.bring or ()


def names(what: Carry) -> bytes:
    """The same, as a list."""
    return b"".join(os.fsencode(path) + b"\0" for path in named(what))


def unpack(tar: bytes, attempt: RemoteAttempt) -> str | None:
    """Put an attempt's files where they belong; returns what its owner should know of them."""
    into, exclude = _place(attempt)
    return carry.unpack(tar, into, exclude, attempt.owner)


def bring(way: RemoteShell, work: str, names: bytes, attempt: RemoteAttempt) -> str | None:
    """The same for files that are too large for the agent's line, by the list that it made."""
    into, exclude = _place(attempt)
    return carry.bring(way, f"{way.root}/work/{work}", names, into, exclude, attempt.owner)


def _place(attempt: RemoteAttempt) -> tuple[str, tuple[str, ...]]:
    what = attempt.carry
    return what.into or attempt.directory, (*NEVER, *what.exclude)
