"""Events, in the past tense: the only way the state changes, and what the journal holds."""

from __future__ import annotations

from typing import Any, Union

from stoker.core.events.attempts import (
    AttemptAbandoned,
    AttemptLost,
    AttemptPlanned,
    AttemptQueued,
    AttemptRecovered,
    OrphanAttemptsFound,
    PreemptionCancelled,
    PreemptionRequested,
    PreemptionTimedOut,
    ProcessExited,
    ProcessStarted,
    StartCancelled,
    StartFailed,
)
from stoker.core.events.base import AttemptEvent, DaemonStarted, Event, IdsReserved, JobEvent
from stoker.core.events.jobs import (
    BeginTimeReached,
    DeadlinePassed,
    EstimateExceeded,
    FailuresDismissed,
    JobCancelled,
    JobEdited,
    JobHeld,
    JobLoaded,
    JobMoved,
    JobPaused,
    JobReleased,
    JobResumed,
    JobRetried,
    JobSignalled,
    JobsSubmitted,
    JobsUnloaded,
    SpecRecorded,
    TimeLimitNear,
    TimeLimitReached,
)
from stoker.core.events.nodes import (
    DevicesDrained,
    DevicesUndrained,
    ForeignUseChanged,
    NodeAdded,
    NodeCordoned,
    NodeJoined,
    NodeLoadMeasured,
    NodeReached,
    NodeRemoved,
    NodeUnreachable,
)
from stoker.core.events.queues import HistoryCleared, PolicyChosen, QueueDefined, QueueDeleted
from stoker.core.events.sweeps import (
    SweepChanged,
    SweepDefined,
    TrialMeasured,
    TrialsLoaded,
    TrialStopped,
    TrialsUnloaded,
)
from stoker.core.events.training import (
    EpochsCounted,
    MemoryMeasured,
    ProfileImported,
    TrainingBegan,
)

__all__ = [
    "AnyEvent", "AttemptAbandoned", "AttemptLost", "AttemptPlanned", "AttemptQueued",
    "AttemptRecovered", "BeginTimeReached", "DaemonStarted", "DeadlinePassed", "DevicesDrained",
    "DevicesUndrained", "EpochsCounted", "EstimateExceeded", "Event", "FailuresDismissed",
    "ForeignUseChanged", "HistoryCleared", "IdsReserved", "JobCancelled", "JobEdited",
    "JobHeld", "JobLoaded", "JobMoved", "JobPaused", "JobReleased", "JobResumed", "JobRetried",
    "JobSignalled", "JobsSubmitted", "JobsUnloaded", "MemoryMeasured", "NodeAdded",
    "NodeCordoned", "NodeJoined", "NodeLoadMeasured", "NodeReached", "NodeRemoved",
    "NodeUnreachable", "OrphanAttemptsFound", "PolicyChosen", "PreemptionCancelled",
    "PreemptionRequested", "PreemptionTimedOut", "ProcessExited", "ProcessStarted",
    "ProfileImported", "QueueDefined", "QueueDeleted", "SpecRecorded", "StartCancelled",
    "StartFailed", "SweepChanged", "SweepDefined", "TimeLimitNear", "TimeLimitReached",
    "TrainingBegan", "TrialMeasured", "TrialStopped", "TrialsLoaded", "TrialsUnloaded",
]  # fmt: skip

BASE_CLASSES = (Event, JobEvent, AttemptEvent)
AnyEvent: Any = Union[  # noqa: UP007 - of a tuple
    tuple(
        kind for base in BASE_CLASSES for kind in base.__subclasses__() if kind not in BASE_CLASSES
    )
]
"""Every event; the stored tag selects the class."""
