"""stoker keeps your GPUs fed: a job scheduler for machine-learning experiments."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.api import Client as Client
    from stoker.api import DelayedSubmission as DelayedSubmission
    from stoker.api import Event as Event
    from stoker.api import Executor as Executor
    from stoker.api import Full as Full
    from stoker.api import Future as Future
    from stoker.api import Gpu as Gpu
    from stoker.api import Impossible as Impossible
    from stoker.api import Job as Job
    from stoker.api import JobFailed as JobFailed
    from stoker.api import Node as Node
    from stoker.api import NotFound as NotFound
    from stoker.api import NotPicklable as NotPicklable
    from stoker.api import PermissionDenied as PermissionDenied
    from stoker.api import StokerError as StokerError
    from stoker.api import Sweep as Sweep
    from stoker.api import Trial as Trial
    from stoker.api import UnknownOption as UnknownOption
    from stoker.api import Unreachable as Unreachable
    from stoker.api import UsageError as UsageError

API = frozenset({
    "Client", "DelayedSubmission", "Event", "Executor", "Full", "Future", "Gpu", "Impossible",
    "Job", "JobFailed", "Node", "NotFound", "NotPicklable", "PermissionDenied", "StokerError",
    "Sweep", "Trial", "UnknownOption", "Unreachable", "UsageError",
})  # fmt: skip
"""The public names. They are imported on first use: commands start without them."""


def __getattr__(name: str) -> object:
    if name in API:
        from importlib import import_module

        return getattr(import_module("stoker.api"), name)
    raise AttributeError(f"module 'stoker' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *API})
