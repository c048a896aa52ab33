"""What a user of a system daemon may see and do: pure decisions about requests and jobs.

A daemon of a single user decides nothing here: its user may do everything.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, IntEnum
from typing import Literal

from msgspec import Struct

Private = Literal["all", "logs", "none"]
"""What other users do not see of a job: everything but a few fields, its output, or nothing."""


class Need(Enum):
    """What a route requires of its caller, before the handler checks each job."""

    VIEW = "view"
    """It only reads."""
    ACT = "act"
    """It submits or changes jobs."""
    OWN = "own"
    """It changes sessions and tokens of the caller."""
    ADMIN = "admin"
    """It changes what all users share."""
    HOST = "host"
    """It changes the daemon itself, so an administrator must be on its machine."""


class Access(IntEnum):
    """How much of a job a caller may see."""

    PUBLIC = 0
    """Label, name, user, resources, state and times."""
    DETAILS = 1
    """Everything but its output."""
    ALL = 2


class Caller(Struct, frozen=True):
    """The user of a request, as the kernel or a token says."""

    uid: int
    name: str
    is_admin: bool = False
    leads: frozenset[int] = frozenset()
    """Unix groups whose members' jobs it may see and change."""
    may_act: bool = True
    """False: with a token or a browser session that may only look."""
    is_local: bool = True
    """Whether it is connected to the socket, not to a TCP port and not by a browser."""


_ACCESS = {"all": Access.PUBLIC, "logs": Access.DETAILS, "none": Access.ALL}


def refusal(need: Need, caller: Caller) -> str | None:
    """Return why a caller may not use a route, None if it may; jobs are checked one by one."""
    if need is Need.VIEW:
        return None
    if not caller.may_act:
        return "This token or session may only look."
    if need is Need.ACT:
        return None
    if need is not Need.ADMIN and not caller.is_local:
        return "This is possible only on the machine of the daemon, by its socket."
    if need is not Need.OWN and not caller.is_admin:
        return "Only administrators of this machine's queue may do this; ask one of them."
    return None


def may_manage(caller: Caller, owner: int | None, owner_groups: Collection[int]) -> bool:
    """Return whether a caller may change a user's jobs: the user, its leaders, administrators."""
    return caller.is_admin or caller.uid == owner or not caller.leads.isdisjoint(owner_groups)


def access_to(
    caller: Caller, owner: int | None, owner_groups: Collection[int], private: Private
) -> Access:
    """Return how much of a user's jobs a caller may see."""
    return Access.ALL if may_manage(caller, owner, owner_groups) else _ACCESS[private]
