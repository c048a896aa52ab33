"""The Python API: a client with the verbs of the command line, and an executor of calls."""

from stoker.api.calls.executor import DelayedSubmission, Executor
from stoker.api.calls.futures import Future
from stoker.api.client import Client
from stoker.api.errors import JobFailed, NotPicklable, UnknownOption
from stoker.api.jobs import Event, Gpu, Job, Node
from stoker.api.sweeps import Sweep, Trial
from stoker.client.errors import DaemonUnreachable as Unreachable
from stoker.client.errors import (
    Full,
    Impossible,
    NotFound,
    PermissionDenied,
    StokerError,
    UsageError,
)  # fmt: skip

__all__ = [
    "Client", "DelayedSubmission", "Event", "Executor", "Full", "Future", "Gpu", "Impossible",
    "Job", "JobFailed", "Node", "NotFound", "NotPicklable", "PermissionDenied", "StokerError",
    "Sweep", "Trial", "UnknownOption", "Unreachable", "UsageError",
]  # fmt: skip
