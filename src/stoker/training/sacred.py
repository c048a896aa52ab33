"""For sacred: an observer that reports what a run logs.

`ex.observers.append(StokerObserver())`, and every `_run.log_scalar("loss", loss, step)` is a
metric of the job; so is the return value of the main function, under the name `result`.
"""

from __future__ import annotations

from importlib import import_module

from stoker.training import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT = "result"


class StokerObserver(import_module("sacred.observers").RunObserver):  # type: ignore[misc]
    """Reports the metrics and the result of a run; sacred passes them every few seconds."""

    priority = 0

    def __init__(self) -> None:
        super().__init__()
        self._job = attach()

    def started_event(self, **event: Any) -> Any:
        """Return the id of the run, unchanged."""
        return event.get("_id")

    def log_metrics(self, metrics_by_name: dict[str, Any], info: Any) -> None:
        """Report new metrics; those of one step are one report."""
        steps: dict[Any, dict[str, Any]] = {}
        for name, logged in metrics_by_name.items():
            # Python 3.8 has no strict zip.
            for step, value in zip(logged["steps"], logged["values"]):  # noqa: B905
                if name in steps.get(step, ()):
                    self._job.report(steps.pop(step), step=step)
                steps.setdefault(step, {})[name] = value
        for step, values in steps.items():
            self._job.report(values, step=step)

    def completed_event(self, stop_time: Any, result: Any) -> None:
        """Report the result of the run."""
        if result is not None:
            self._job.report(result if isinstance(result, dict) else {RESULT: result})
