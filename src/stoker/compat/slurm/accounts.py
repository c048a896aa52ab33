"""sacctmgr and sshare: only what tools ask before they submit, the account of the user.

stoker has no accounts; the user's group stands for it.
"""

from __future__ import annotations

import os

from stoker.client.errors import UsageError
from stoker.compat.slurm.columns.job_fields import CLUSTER, group_name, user_name

ENTITIES = ("user", "account", "association")


def account() -> str:
    """Return the name of the user's group."""
    return group_name(os.getgid())


def sacctmgr(argv: list[str]) -> int:
    """Answer `show|list user|account|association`."""
    words = [word for word in argv if not word.startswith("-")]
    if len(words) < 2 or words[0] not in ("show", "list"):
        raise UsageError("stoker has no accounts; only show user and show account work")
    what = words[1].lower()
    if not any(entity.startswith(what) or what == f"{entity}s" for entity in ENTITIES):
        raise UsageError(f"stoker has no {what}")
    names = next(
        (word.partition("=")[2] for word in words if word.lower().startswith("format=")), "Account"
    )
    values = {"account": account(), "user": user_name(), "cluster": CLUSTER}
    print("|".join(values.get(name.partition("%")[0].lower(), "") for name in names.split(",")))
    return 0


def sshare(argv: list[str]) -> int:
    """Print the account of the user."""
    if not {"-h", "-n", "--noheader"} & {*argv}:
        print("Account")
    print(account())
    return 0
