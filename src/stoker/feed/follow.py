"""Feed beside a running daemon: its queue gets the lines, and we follow them."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from stoker import places, wire
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError
from stoker.client.events import EventStream
from stoker.feed.lines import Lines
from stoker.feed.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_AHEAD = 256
PAGE = 500
ENDINGS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "DeadlinePassed")
)
"""Events after which a job may be over."""


def follow(lines: Lines, progress: Progress, options: dict[str, object]) -> int:
    """Queue the lines with the daemon and follow them to their ends."""
    return Follower(connect(), lines, progress, options).run()


class Follower:
    """Keeps a bounded number of lines in somebody else's queue, and counts their ends."""

    def __init__(
        self, client: Client, lines: Lines, progress: Progress, options: dict[str, object]
    ) -> None:
        self.client, self.lines, self.progress, self.options = client, lines, progress, options
        self.mine: set[int] = set()
        self.ended: set[int] = set()
        """Jobs of ours that an event says may be over."""
        self.code = 0
        self.stopping = False
        self.wake, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Feed, follow, and return the exit code."""
        self._warn_of_strangers()
        self._listen_for_signals()
        events = EventStream(self.client)
        try:
            while not (self.lines.done or self.stopping) or self.mine:
                if not self.stopping:
                    self._submit()
                if not self.mine and (self.lines.done or self.stopping):
                    break
                self._sleep(events)
                self._count()
                self.progress.draw()
        finally:
            events.close()
        self.progress.finish(places.logs_dir())
        return self.code or (1 if self.progress.failed else 0)

    def _sleep(self, events: EventStream) -> None:
        """Wait for a line, an event or a signal."""
        room = len(self.mine) < READ_AHEAD and not self.lines.ended and not self.stopping
        watched = [events.fileno(), self.wake]
        if room and not self.lines.regular:
            watched.append(self.lines.fd)
        ready = select.select(watched, [], [], self.progress.due() or 1.0)[0]
        if self.lines.fd in ready and room:
            self.lines.read()
        if self.wake in ready:
            for number in os.read(self.wake, 64):
                self._signalled(number)
        if events.fileno() in ready:
            self._hear(events)

    def _hear(self, events: EventStream) -> None:
        if not events.receive():
            # The daemon restarted or we were too slow: begin again, and look at all of them.
            events.reopen()
            self.ended |= self.mine
        for kind, data in events.take():
            job = data.get("job")
            if job in self.mine and kind in ENDINGS:
                self.ended.add(job)

    def _submit(self) -> None:
        taken = self.lines.take(READ_AHEAD - len(self.mine))
        if not taken:
            return
        mask = os.umask(0o022)
        os.umask(mask)
        receipt = self.client.submit(
            {
                "what": {"lines": taken},
                "options": self.options,
                "directory": os.getcwd(),
                "environment": dict(os.environ),
                "shell": os.environ.get("SHELL") or "/bin/sh",
                "umask": mask,
            }
        )
        self.mine.update(range(receipt["first"], receipt["last"] + 1))
        self.progress.submitted += receipt["count"]

    def _count(self) -> None:
        """Ask how the jobs stand that may be over."""
        waiting, self.ended = sorted(self.ended & self.mine), set()
        for start in range(0, len(waiting), PAGE):
            words = [str(id) for id in waiting[start : start + PAGE]]
            for view in self.client.jobs(words, tail=5, limit=PAGE)["jobs"]:
                if view["state"] in wire.FINISHED:
                    self.mine.discard(view["id"])
                    self._one(view)

    def _one(self, view: dict[str, Any]) -> None:
        if view["state"] == "COMPLETED":
            self.progress.done += 1
        elif view["state"] == "CANCELLED":
            self.progress.cancelled += 1
        else:
            self.progress.failed += 1
            self.progress.failure(view)

    def _listen_for_signals(self) -> None:
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)

    def _signalled(self, number: int) -> None:
        again, self.stopping = self.stopping, True
        ids = [str(id) for id in sorted(self.mine)]
        if number == signal.SIGUSR1:
            self.progress.say("stoker: draining: running lines finish, no more are started")
            waiting = self.client.jobs(ids, state="PENDING", limit=100_000)["jobs"] if ids else []
            ids = [str(view["id"]) for view in waiting]
        else:
            self.code = self.code or 128 + number
        if ids:
            with contextlib.suppress(StokerError):
                if again and number != signal.SIGUSR1:
                    self.client.kill(ids)
                else:
                    self.client.cancel(ids)

    def _warn_of_strangers(self) -> None:
        named = str(self.options.get("use_gpus", "")).split(",")
        for gpu in self.client.gpus()["gpus"] if self.options.get("explicit") else ():
            if gpu["id"] in named and gpu["stranger"]:
                self.progress.warn(
                    f"GPU {gpu['id']} is used by {gpu['stranger']}; it is used all the same, "
                    "because you named it"
                )
