"""The Python API: a client with the verbs of the command line, and an executor of calls."""

from stoker.api.client import Client
from stoker.api.delayed import DelayedSubmission
from stoker.api.errors import (
    Full,
    Impossible,
    JobFailed,
    NotFound,
    NotPicklable,
    PermissionDenied,
    StokerError,
    UnknownOption,
    Unreachable,
    UsageError,
)
from stoker.api.executor import Executor
from stoker.api.futures import Future
from stoker.api.jobs import Event, Gpu, Job, Node
from stoker.api.sweeps import Sweep, Trial

__all__ = [
    "Client",
    "DelayedSubmission",
    "Event",
    "Executor",
    "Full",
    "Future",
    "Gpu",
    "Impossible",
    "Job",
    "JobFailed",
    "Node",
    "NotFound",
    "NotPicklable",
    "PermissionDenied",
    "StokerError",
    "Sweep",
    "Trial",
    "UnknownOption",
    "Unreachable",
    "UsageError",
]
