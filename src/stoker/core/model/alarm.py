"""Alarms: what is probably wrong with a running job or a GPU, when that is raised, what follows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import astuple

from stoker.core.model.units import (
    MAX_DURATION_SECONDS,
    BadValue,
    approximate_duration,
    parse_duration,
)

OVER_REQUESTED = "over_requested"
"""Raised when an attempt ends: it is advice for the next submission."""
TELL, MARK, CANCEL, RETRY, PREEMPT = ACTIONS = (
    "tell", "mark", "cancel", "retry", "preempt_if_waiting",
)  # fmt: skip
"""What follows from an alarm: a message, only a mark in lists, or also the end of the attempt."""
LIMITS = {
    "gpu_idle": 600.0, "gpu_unused": 600.0, OVER_REQUESTED: 600.0, "hung": 600.0, "nan": 1.0,
    "loss_flat": 3600.0, "diverged": 600.0, "log_silent": 3600.0, "hot": 300.0, "ecc": 1.0,
    "xid": 1.0,
}  # fmt: skip
"""Seconds after which each kind is raised, unless it is off; of kinds that need no time, 1."""
KINDS = tuple(LIMITS)
IDLE_KINDS = frozenset({"gpu_idle", "gpu_unused"})
"""Kinds that mean that a GPU is of no use to its job."""
OFF = frozenset({"loss_flat", "diverged", "log_silent"})
"""Kinds that are off by default."""
_WITHOUT_JOB = frozenset({OVER_REQUESTED, "hot", "ecc", "xid"})
"""Kinds that are about a GPU, or about an attempt that ends: they end no attempt."""
_CAUSES = {
    "gpu_idle": "GPU idle", "gpu_unused": "GPU unused", "loss_flat": "loss flat",
    "log_silent": "no output",
}  # fmt: skip
"""Kinds as the cause of an end, where these are not the kind itself."""


class Alarm(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One alarm, about an attempt, a GPU, or the GPU of an attempt."""

    kind: str
    since: float
    """Wall time at which it began, not at which it was noticed."""
    text: str
    """The evidence, in words."""
    job: int | None = None
    attempt: int = 0
    node: str | None = None
    gpu: str | None = None
    action: str = TELL
    """What follows from it."""
    evidence: str = ""
    """What its processes were doing, if that was found out: several lines."""

    @property
    def key(self) -> str:
        """Equal for alarms of which one replaces the other."""
        owner = "" if self.job is None else f"{self.job}.{self.attempt}"
        return f"{self.kind} {owner} {self.node or ''}/{self.gpu or ''}"

    def cause(self, at: float) -> str:
        """Return it as the cause of an end: `GPU idle for 12 min`."""
        if self.kind == "nan":
            return self.text
        return f"{cause_word(self.kind)} for {approximate_duration(max(at - self.since, 0.0))}"


def cause_word(kind: str) -> str:
    """Return how the cause of an end begins that an alarm has decided."""
    return _CAUSES.get(kind, kind)


class AlarmRule(Struct, frozen=True, array_like=True):
    """When a kind of alarm is raised, and what follows; the rest is as otherwise configured."""

    kind: str
    limit: float | None = None
    """Seconds; 0: never. Kinds that need no time are raised at once if it is not 0."""
    action: str = ""


class AlarmRules:
    """The rules of all kinds, with those of a queue or a job before the general ones."""

    def __init__(self, rules: Iterable[AlarmRule] = (), general: AlarmRules | None = None) -> None:
        self._rules: dict[str, tuple[float, str]] = {
            kind: (general.limit(kind), general.action(kind))
            if general is not None
            else (0.0 if kind in OFF else limit, TELL)
            for kind, limit in LIMITS.items()
        }
        for kind, limit, action in map(astuple, rules):
            before, otherwise = self._rules[kind]
            # An action turns a kind on that is off.
            seconds = before or LIMITS[kind] if limit is None else limit
            self._rules[kind] = seconds, action or otherwise

    def limit(self, kind: str) -> float:
        """Return the seconds after which a kind is raised; 0: never."""
        return self._rules[kind][0]

    def action(self, kind: str) -> str:
        """Return what follows from a kind."""
        return self._rules[kind][1]


def kind_of(word: str) -> str | None:
    """Return the kind that users call `idle` or `log-silent`; None: there is none."""
    kind = word.strip().lower().replace("-", "_")
    return kind if kind in KINDS else f"gpu_{kind}" if f"gpu_{kind}" in KINDS else None


def parse_rule(text: str, what: str) -> AlarmRule:
    """Parse `idle=off`, `idle=30m`, `nan=cancel` or `hung=1h,retry`."""
    name, equals, value = text.partition("=")
    kind = kind_of(name)
    if kind is None or not equals:
        names = ", ".join(kind.removeprefix("gpu_") for kind in KINDS)
        raise BadValue(
            f"{what} '{text[:40]}': write KIND=off, KIND=30m or KIND=30m,cancel; kinds are {names}."
        )
    if "=" in value:
        raise BadValue(f"{what} '{text[:40]}': write {what} once for each kind.")
    return parse_words(kind, value, f"{what} {name}")


def parse_words(kind: str, value: str, what: str) -> AlarmRule:
    """Parse the rule of a kind: off, on (its default), a duration, an action."""
    words = re.split(r"[,\s]+", value.strip().lower())
    action = next((word for word in words if word.replace("-", "_") in ACTIONS), "")
    rest, action = " ".join(word for word in words if word != action), action.replace("-", "_")
    if action not in ("", TELL, MARK) and kind in _WITHOUT_JOB:
        raise BadValue(f"{what} '{action}': it is about no running job; write tell or mark.")
    if rest in {"off", "on"}:
        return AlarmRule(kind, LIMITS[kind] if rest == "on" else 0.0, action)
    if action and not rest:
        return AlarmRule(kind, None, action)
    try:
        seconds = float(parse_duration(rest, what))
    except BadValue:
        raise BadValue(
            f"{what} '{value[:40]}': write off, on, a duration such as 30m,"
            f" or {', '.join(ACTIONS)}."
        ) from None
    return AlarmRule(kind, min(seconds, MAX_DURATION_SECONDS), action)
