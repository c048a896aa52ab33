"""Which accounts may run jobs."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import time

from stoker.gate.config import Config

OVERFLOW_UID = 65534
"""What the kernel shows for uids that have no number here."""
NO_LOGIN_SHELLS = frozenset({"nologin", "false", "sync", "halt", "shutdown"})
SECONDS_PER_DAY = 86400


class NotAllowed(Exception):
    """This account may not run jobs; the message says why."""


def check_uid(config: Config, uid: int) -> None:
    """Raise NotAllowed for uids of the system; reads no user database."""
    if uid == 0 and config.allow_root:
        return
    if uid < config.min_uid or uid == OVERFLOW_UID:
        raise NotAllowed(f"uid {uid} belongs to the system (min_uid = {config.min_uid})")


def entry_of(uid: int) -> pwd.struct_passwd:
    """Return the account of a uid."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise NotAllowed(f"uid {uid} has no account") from None


def check(config: Config, uid: int, name: str) -> pwd.struct_passwd:
    """Return the account of `uid`, which must still be that of `name`, or raise NotAllowed."""
    check_uid(config, uid)
    entry = entry_of(uid)
    if entry.pw_name != name:
        raise NotAllowed(
            f"uid {uid} belonged to {name} and now belongs to {entry.pw_name}: an administrator "
            f"must remove {config.users_dir}/{uid} and {config.state_dir}/{uid}"
        )
    if name in config.deny_users:
        raise NotAllowed(f"{name} is in deny_users")
    if config.allow_groups and not set(config.allow_groups) & group_names(entry):
        raise NotAllowed(f"{name} is in none of allow_groups")
    if os.path.basename(entry.pw_shell) in NO_LOGIN_SHELLS:
        raise NotAllowed(f"{name} may not log in (its shell is {entry.pw_shell})")
    if has_expired(name, int(time.time()) // SECONDS_PER_DAY):
        raise NotAllowed(f"the account of {name} has expired")
    return entry


def group_names(entry: pwd.struct_passwd) -> set[str]:
    """Return the names of all groups of an account."""
    found = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # a group without a name is in no list
    return found


class _Shadow(ctypes.Structure):
    """`struct spwd` of shadow.h; the module spwd is not in Python 3.13."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("password", ctypes.c_char_p), ("last_change", ctypes.c_long),
        ("min", ctypes.c_long), ("max", ctypes.c_long), ("warn", ctypes.c_long),
        ("inactive", ctypes.c_long), ("expire", ctypes.c_long), ("flag", ctypes.c_ulong),
    )  # fmt: skip


def has_expired(name: str, today: int) -> bool:
    """Return whether the account has expired on day `today` since 1970; root only."""
    function = ctypes.CDLL(None).getspnam
    function.restype = ctypes.POINTER(_Shadow)
    found = function(name.encode())
    return bool(found) and 0 <= found.contents.expire <= today
