"""stoker keeps your GPUs fed: a job scheduler for machine-learning experiments."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.api import *  # noqa: F403

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
