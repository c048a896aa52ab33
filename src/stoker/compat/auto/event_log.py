"""EventLog: the server's log, one timestamped line per event of a task."""

from __future__ import annotations

import sys
import time

from stoker.cli.output import clean
from stoker.compat.auto.lookup import find_tasks
from stoker.compat.auto.options import NAME
from stoker.compat.auto.tasks import nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from stoker.client.client import Client

LOGGED_EVENTS = {"ProcessStarted", "ProcessExited", "AttemptLost", "StartFailed", "JobCancelled"}


class EventLog:
    """Writes to stdout, and to a file if one is given."""

    def __init__(self, path: str | None) -> None:
        self.logged_starts: set[tuple[int, int]] = set()
        """Attempts with a logged start: a new daemon reports recovered attempts again."""
        self.files: list[TextIO] = [sys.stdout] if sys.stdout is not None else []
        if path is not None:
            self.files.append(open(path, "a", encoding="utf-8"))  # noqa: SIM115 - open until the process ends

    def __call__(self, text: str, at: float | None = None) -> None:
        """Write one line; a closed pipe or a full disk must not stop the server."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        for file in self.files[:]:
            try:
                file.write(f"{stamp} | {text}\n")
                file.flush()
            except (OSError, ValueError):
                self.files.remove(file)

    def log_events(self, client: Client, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Log the events of tasks submitted with auto."""
        logged = [(kind, event) for kind, event in events if kind in LOGGED_EVENTS]
        views = find_tasks(client, list({int(event["job"]): None for _, event in logged}))
        for kind, event in logged:
            view = views.get(int(event["job"]))
            if view is None or view["client"] != NAME or not self._is_new(kind, event):
                continue
            line = _line(kind, event, view)
            if line is not None:
                self(line, float(event["at"]))

    def _is_new(self, kind: str, event: dict[str, Any]) -> bool:
        attempt = (int(event["job"]), int(event.get("attempt", -1)))
        if kind != "ProcessStarted":
            self.logged_starts.discard(attempt)
            return True
        is_new = attempt not in self.logged_starts
        self.logged_starts.add(attempt)
        return is_new


def _line(kind: str, event: dict[str, Any], view: dict[str, Any]) -> str | None:
    name = f"task {view['id']}"
    if kind == "ProcessStarted":
        gpus = (view.get("devices") or {}).get("gpu") or []
        devices = f"GPU {','.join(gpus)} of " if gpus else ""
        return f"{name} started on {devices}{nodes(view)}: {clean(view['command'])}"
    if kind == "JobCancelled":
        # The end of a running task is logged with its exit code.
        return f"{name} cancelled" if view["started_at"] is None else None
    if kind == "ProcessExited":
        signal = event.get("signal")
        code = -int(signal) if signal else event.get("code")
        return f"{name} ended with return code {code}; its output: {view['log']}"
    return f"{name} failed: {clean(view.get('cause') or view['state'].lower())}"
