"""Limits of users, groups and queues, and weights of users and groups in fair share."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

EACH_USER = "*"
"""Name of the user whose limits every user without limits of its own has."""

SubjectKind = Literal["user", "group", "queue"]


class Subject(Struct, frozen=True, omit_defaults=True):
    """A user, a unix group or a queue, to which limits apply."""

    type: SubjectKind
    name: str
    id: int | None = None
    """Uid or gid; None: of a queue, and where users are known by name only."""

    @property
    def key(self) -> str:
        """Key of what its jobs use: by uid or gid, since names may change."""
        return f"{self.type}:{self.name if self.id is None else self.id}"

    @property
    def text(self) -> str:
        """Its name in a sentence."""
        return "each user" if self.key == ANY_USER_KEY else f"{self.type} {self.name}"


ANY_USER_KEY = f"user:{EACH_USER}"


class Limits(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Limits of all jobs of a subject together, and of each of them; None: no limit."""

    max_gpus: int | None = None
    """GPUs in use at a time, in thousandths."""
    max_running: int | None = None
    max_pending: int | None = None
    max_job_gpus: int | None = None
    """GPUs of one job, in thousandths."""
    max_time: int | None = None
    """Time limit of one job, in seconds."""
    gpu_hours: float | None = None
    """GPU-hours in a sliding week."""
    gpu_memory: int | None = None
    """MiB of GPU memory in use at a time; of a GPU that is not shared, all of its memory."""


class SubjectLimits(Struct, frozen=True, omit_defaults=True):
    """The limits of a subject."""

    subject: Subject
    limits: Limits


class Share(Struct, frozen=True, omit_defaults=True):
    """The weight of a user, or of each member of a group, in fair share."""

    subject: Subject
    weight: float


def user_key(user: str, uid: int | None) -> str:
    """Return the key of a job's user."""
    return f"user:{user if uid is None else uid}"
