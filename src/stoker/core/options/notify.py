"""Options of notifications: --notify, and Slurm's --mail-type and --mail-user."""

from __future__ import annotations

from stoker.core.model.notification import JOB_EVENTS
from stoker.core.model.units import BadValue

Target = tuple[str, tuple[str, ...]]
DEFAULT_EVENTS = ("end", "alarm")
MAIL = "mailto:"
"""Prefix of targets that are an e-mail address; without an address, it is the submitter's."""
LIMIT_SHARE = "limit-"
"""Prefix of events at a part of the time limit, in percent."""
MAIL_TYPES = {
    "NONE": (), "BEGIN": ("start",), "END": ("end",), "FAIL": ("fail",), "REQUEUE": ("requeue",),
    "ALL": ("start", "end", "fail", "requeue"), "ARRAY_TASKS": ("tasks",), "TIME_LIMIT": ("fail",),
    **{f"TIME_LIMIT_{percent}": (f"{LIMIT_SHARE}{percent}",) for percent in (50, 80, 90)},
}  # fmt: skip
UNSENT_TYPES = frozenset({"INVALID_DEPEND", "STAGE_OUT"})


def parse_target(text: str) -> Target:
    """Parse `NAME` or `NAME:end,fail`; a name with @ is an e-mail address."""
    name, _, listed = text.strip().partition(":")
    events = tuple(word.strip().lower() for word in listed.split(",") if word.strip())
    wrong = next((event for event in events if event not in JOB_EVENTS), None)
    if not name or wrong is not None:
        what = f"'{wrong}' is none of" if wrong else "write NAME or NAME:fail,alarm; there are"
        raise BadValue(f"--notify '{text[:60]}': {what} {', '.join(JOB_EVENTS)}.")
    return (MAIL + name if "@" in name else name), events or DEFAULT_EVENTS


def parse_mail(types: str | None, user: str | None) -> tuple[tuple[Target, ...], list[str]]:
    """Return the target of Slurm's options, and warnings; without a user, it is the submitter."""
    if types is None:
        return (), ["--mail-user has no effect without --mail-type"] if user else []
    words = [word.strip().upper() for word in types.split(",") if word.strip()]
    for word in words:
        if word not in MAIL_TYPES and word not in UNSENT_TYPES:
            raise BadValue(f"--mail-type '{word[:40]}' is none of {', '.join(MAIL_TYPES)}.")
    if user is not None and (any(map(str.isspace, user)) or user.startswith("-")):
        raise BadValue(f"--mail-user '{user[:60]}' is not an e-mail address.")
    events = {event: None for word in words for event in MAIL_TYPES.get(word, ())}
    warnings = [f"--mail-type {word} is not sent" for word in words if word in UNSENT_TYPES]
    return (((MAIL + (user or ""), tuple(events)),) if events else ()), warnings


def limit_shares(targets: tuple[Target, ...], limit: float) -> dict[int, str]:
    """Return the events at parts of a time limit, by the seconds that are left then."""
    events = {event for _, events in targets for event in events if event.startswith(LIMIT_SHARE)}
    percents = {event: int(event.removeprefix(LIMIT_SHARE)) for event in events}
    return {round(limit * (100 - percent) / 100): event for event, percent in percents.items()}
