"""Handlers in process with a Notifier: deliveries are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.daemon.notifications.message import SendJob
from stoker.daemon.notifications.notifier import Notifier
from stoker.daemon.settings import NotifyTarget
from stoker.engine import Instant
from virtual_reactor import VirtualReactor


class NotifierFixture(HandlerFixture):
    """Handlers with a notifier; deliveries are recorded."""

    def __init__(self, directory: Path, **targets: NotifyTarget) -> None:
        super().__init__(directory)
        self.targets = targets
        self.context.notify_targets = lambda: self.targets
        self.sent: list[SendJob] = []
        self.error: str | None = None
        self.reactor = VirtualReactor(lambda: self.now)
        self.open()

    def open(self) -> None:
        self.notifier = Notifier(
            self.targets, str(self.directory / "outbox.db"), lambda: self.state,
            lambda: self.engine.seq, self.context, self.reactor, self._deliver,
            lambda: Instant(self.now, self.now), page_url="https://box:1/",
        )  # fmt: skip
        self.notifier.start()

    def _deliver(self, job: SendJob) -> str | None:
        self.sent.append(job)
        return self.error

    def cycle(self, events: list[e.Event], commands: list[Any]) -> None:
        super().cycle(events, commands)
        if hasattr(self, "notifier"):
            self.notifier.on_events(self.events)

    def flush(self) -> list[tuple[str, str]]:
        """Close, so that everything is delivered; return addresses or kinds, and titles."""
        self.notifier.close()
        return [
            (job.target.get("to") or job.target["kind"], job.message.title) for job in self.sent
        ]
