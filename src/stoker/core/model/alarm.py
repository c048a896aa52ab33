"""Alarms: what is probably wrong with a running job or a GPU."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import fields, replace

from stoker.core.model.units import MAX_DURATION_SECONDS, BadValue, parse_duration

OVER_REQUESTED = "over_requested"
"""Raised when an attempt ends: it is advice for the next submission."""


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

    @property
    def key(self) -> str:
        """Equal for alarms of which one replaces the other."""
        owner = "" if self.job is None else f"{self.job}.{self.attempt}"
        return f"{self.kind} {owner} {self.node or ''}/{self.gpu or ''}"


class AlarmLimits(Struct, frozen=True):
    """Seconds after which each kind of alarm is raised; 0: never.

    Kinds that need no time are raised at once if their value is not 0.
    """

    gpu_idle: float = 600.0
    gpu_unused: float = 600.0
    over_requested: float = 600.0
    """The shortest attempt that is judged."""
    hung: float = 600.0
    nan: float = 1.0
    hot: float = 300.0
    ecc: float = 1.0
    xid: float = 1.0


KINDS = tuple(field.name for field in fields(AlarmLimits))


def parse_limit(text: str, what: str) -> tuple[str, float]:
    """Parse `idle=off`, `idle=30m` or `nan=on`."""
    name, equals, value = text.partition("=")
    kind = name.strip().lower().replace("-", "_")
    kind = kind if kind in KINDS else f"gpu_{kind}"
    if kind not in KINDS or not equals:
        names = ", ".join(kind.removeprefix("gpu_") for kind in KINDS)
        raise BadValue(f"{what} '{text[:40]}': write KIND=off or KIND=30m; kinds are {names}.")
    return kind, parse_seconds(kind, value, f"{what} {name}")


def parse_seconds(kind: str, value: str, what: str) -> float:
    """Parse the limit of a kind: off, on (its default) or a duration."""
    word = value.strip().lower()
    if word in {"off", "on"}:
        return 0.0 if word == "off" else float(getattr(AlarmLimits(), kind))
    return min(float(parse_duration(value, what)), MAX_DURATION_SECONDS)


def with_limits(limits: AlarmLimits, changed: tuple[tuple[str, float], ...]) -> AlarmLimits:
    """Return the limits with those of one job."""
    return replace(limits, **dict(changed)) if changed else limits
