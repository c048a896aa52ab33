"""What a server says: one line with a time for everything that happens to a task."""

from __future__ import annotations

import sys
import time

from stoker.cli.output import clean
from stoker.compat.auto.lookup import known
from stoker.compat.auto.options import DOOR
from stoker.compat.auto.tasks import nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from stoker.client.client import Client

TOLD = {"ProcessStarted", "ProcessExited", "AttemptLost", "StartFailed", "JobCancelled"}


class EventLog:
    """Writes to stdout, and to a file if one was named."""

    def __init__(self, path: str | None) -> None:
        self.started: set[tuple[int, int]] = set()
        """Attempts that were told of: a new daemon reports those that it takes over again."""
        self.files: list[TextIO] = [sys.stdout] if sys.stdout is not None else []
        if path is not None:
            self.files.append(open(path, "a", encoding="utf-8"))  # noqa: SIM115 - for our whole life

    def __call__(self, text: str, at: float | None = None) -> None:
        """Write one line; a reader who has gone, or a full disk, must not stop the server."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        for file in self.files[:]:
            try:
                file.write(f"{stamp} | {text}\n")
                file.flush()
            except (OSError, ValueError):
                self.files.remove(file)

    def events(self, client: Client, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Tell what happened to tasks of this door."""
        told = [(kind, event) for kind, event in events if kind in TOLD]
        views = known(client, list({int(event["job"]): None for _, event in told}))
        for kind, event in told:
            view = views.get(int(event["job"]))
            if view is None or view["client"] != DOOR or not self._is_news(kind, event):
                continue
            line = _line(kind, event, view)
            if line is not None:
                self(line, float(event["at"]))

    def _is_news(self, kind: str, event: dict[str, Any]) -> bool:
        attempt = (int(event["job"]), int(event.get("attempt", -1)))
        if kind != "ProcessStarted":
            self.started.discard(attempt)
            return True
        known = attempt in self.started
        self.started.add(attempt)
        return not known


def _line(kind: str, event: dict[str, Any], view: dict[str, Any]) -> str | None:
    name = f"task {view['id']}"
    if kind == "ProcessStarted":
        gpus = (view.get("devices") or {}).get("gpu") or []
        devices = f"GPU {','.join(gpus)} of " if gpus else ""
        return f"{name} started on {devices}{nodes(view)}: {clean(view['command'])}"
    if kind == "JobCancelled":
        # What ran is told when it has ended.
        return f"{name} cancelled" if view["started_at"] is None else None
    if kind == "ProcessExited":
        signal = event.get("signal")
        code = -int(signal) if signal else event.get("code")
        return f"{name} ended with return code {code}; its output: {view['log']}"
    return f"{name} failed: {clean(view.get('cause') or view['state'].lower())}"
