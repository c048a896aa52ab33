"""The training library: `from stoker.training import job` connects a script to stoker.

Standard library only and Python 3.8 or newer, because it runs inside users' containers and
environments. It never blocks, never raises (except for the SystemExit of a requested stop), and
does nothing without stoker.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.training.runtime.job_info import Current
    from stoker.training.training_job import Job

    job: Job

__all__ = ["Current", "Job", "attach", "current", "job", "report"]

_attached: Job | None = None


def attach() -> Job:
    """Return the job of this process; the same object on every call."""
    global _attached  # noqa: PLW0603 - a process is part of one job
    if _attached is None:
        from stoker.training.training_job import Job

        _attached = Job()
        if _attached.attached:
            import atexit

            atexit.register(_attached.on_script_exit)
    return _attached


def report(
    metrics: Mapping[str, object] | None = None, /, step: object = None, **more: object
) -> None:
    """Record metrics: `report(loss=0.3, step=10)`, or `report({"val/loss": 0.3}, step=10)`."""
    attach().report(metrics, step, **more)


def current() -> Current:
    """Return what is known about the job: its GPUs, its attempt, its parameters."""
    from stoker.training.runtime.environment import Environment
    from stoker.training.runtime.job_info import read

    return read(Environment(), _attached)


def __getattr__(name: str) -> object:
    if name == "job":
        return attach()
    if name == "Current":
        from stoker.training.runtime.job_info import Current

        return Current
    if name == "Job":
        from stoker.training.training_job import Job

        return Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
