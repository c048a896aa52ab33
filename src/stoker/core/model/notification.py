"""Conditions of notifications: `job fail`, `sweep 17 done`, `gpu free`, `before-limit 10m`."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.alarm import KINDS, kind_of
from stoker.core.model.units import BadValue, parse_duration

START, END, FAIL, REQUEUE, ALARM, EMPTY, FREE, BEFORE_LIMIT = (
    "start", "end", "fail", "requeue", "alarm", "empty", "free", "before-limit",
)  # fmt: skip
JOB_EVENTS = (START, END, FAIL, REQUEUE, ALARM)
"""What `--notify NAME:...` of a submission can name."""
_WORDS = {"done": END, "queue empty": EMPTY, "gpu free": FREE}
_GENERAL = frozenset({EMPTY, FREE})
"""Events that are about no job."""
SYNTAX = (
    "write [job|array|sweep [ID]] start|end|fail|requeue|alarm [KIND]|before-limit TIME,"
    " queue empty, or gpu free"
)


class Condition(Struct, frozen=True, omit_defaults=True):
    """When a target is notified."""

    event: str
    kind: str = ""
    """Of an alarm; empty: any."""
    seconds: int = 0
    """Of `before-limit`: how long before the time limit."""
    arrays_only: bool = False
    job: int | None = None
    """Only this job."""
    array: int | None = None
    """Only this array or sweep."""

    def matches(self, event: str, kind: str = "", seconds: int = 0) -> bool:
        """Return whether an event is meant, whatever job it is about; a failure is an end."""
        is_event = event == self.event or (event == FAIL and self.event == END)
        return is_event and self.kind in ("", kind) and self.seconds == seconds


class NotifyRule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A target that is notified of more than its own `on` and the options of jobs say."""

    id: int
    target: str
    when: str
    """The condition in words."""
    condition: Condition
    user: str
    uid: int | None = None
    """In system mode: only jobs of this user."""


def parse_condition(text: str) -> tuple[Condition, str]:
    """Return a condition, and the job, array or sweep that it names; '' if it names none."""
    words = text.lower().split()
    if " ".join(words) in _WORDS:
        return Condition(_WORDS[" ".join(words)]), ""
    subject = words.pop(0) if words and words[0] in ("job", "array", "sweep") else ""
    selector = ""
    if subject and len(words) > 1 and _WORDS.get(words[0], words[0]) not in (ALARM, BEFORE_LIMIT):
        selector = text.split()[1]
        words.pop(0)
    event, rest = (_WORDS.get(words[0], words[0]), words[1:]) if words else ("", [])
    if event not in (*JOB_EVENTS, BEFORE_LIMIT, *_GENERAL) or (subject and event in _GENERAL):
        raise BadValue(f"'{text[:60]}' is no condition; {SYNTAX}.")
    kind, seconds = "", 0
    if event == BEFORE_LIMIT and len(rest) == 1:
        seconds = parse_duration(rest.pop(), event)
    elif event == ALARM and rest:
        kind = _alarm_kind(rest.pop(0))
    if rest or (event == BEFORE_LIMIT and not seconds):
        raise BadValue(f"'{text[:60]}' is no condition; {SYNTAX}.")
    arrays_only = subject in ("array", "sweep") and not selector
    return Condition(event, kind, seconds, arrays_only), selector


def _alarm_kind(word: str) -> str:
    kind = kind_of(word)
    if kind is None:
        names = ", ".join(kind.removeprefix("gpu_") for kind in KINDS)
        raise BadValue(f"'{word[:40]}' is no kind of alarm; there are {names}.")
    return kind
