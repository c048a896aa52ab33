"""Identities: users of the machine by uid, as the system knows them now."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from stoker.daemon.rights import Caller, Private

K = TypeVar("K")
V = TypeVar("V")

CACHE_SECONDS = 10.0
"""How long a change of users or groups may take to count: a lookup may ask another server."""
MAX_CACHED = 1024


class User(NamedTuple):
    """A user, and all groups that it is in."""

    name: str
    groups: frozenset[int]


class Identities:
    """Looks up users and decides who is an administrator or a leader."""

    def __init__(
        self, admin_group: str, private: Private, leaders: Mapping[str, Sequence[str]],
        find_user: Callable[[int], User] | None = None,
        find_group: Callable[[str], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        find_uid: Callable[[str], int | None] | None = None,
    ) -> None:  # fmt: skip
        """`leaders` are names of users by group."""
        self.admin_group, self.private, self._leaders = admin_group, private, leaders
        self._find_user, self._find_group = find_user or _user, find_group or _group
        self._find_uid, self._clock = find_uid or _uid, clock
        self._users: dict[int, tuple[float, User]] = {}
        self._groups: dict[str, tuple[float, int | None]] = {}

    def caller(self, uid: int, may_act: bool = True, is_local: bool = True) -> Caller:
        """Return the caller with this uid."""
        user = self.user(uid)
        return Caller(
            uid=uid, name=user.name, is_admin=uid == 0 or self._is_in(user, self.admin_group),
            leads=self._led_by(user), may_act=may_act, is_local=is_local,
        )  # fmt: skip

    def user(self, uid: int) -> User:
        """Return a user; one that the system does not know has no groups."""
        return self._cached(self._users, uid, self._find_user)

    def uid(self, name: str) -> int | None:
        """Return the uid of a user by name."""
        return self._find_uid(name)

    def gid(self, group: str) -> int | None:
        """Return the gid of a group by name."""
        return self._cached(self._groups, group, self._find_group)

    def _cached(self, table: dict[K, tuple[float, V]], key: K, find: Callable[[K], V]) -> V:
        now = self._clock()
        entry = table.get(key)
        if entry is None or now >= entry[0]:
            if len(table) >= MAX_CACHED:
                table.clear()
            entry = table[key] = now + CACHE_SECONDS, find(key)
        return entry[1]

    def _is_in(self, user: User, group: str) -> bool:
        return bool(group) and self.gid(group) in user.groups

    def _led_by(self, user: User) -> frozenset[int]:
        names = (group for group, leaders in self._leaders.items() if user.name in leaders)
        gids = map(self.gid, names)
        return frozenset(gid for gid in gids if gid is not None)


def _user(uid: int) -> User:
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(str(uid), frozenset())
    groups = [entry.pw_gid]
    with contextlib.suppress(OSError):
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_name, frozenset(groups))


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
