"""Feed beside a running daemon: its queue gets the lines, and we follow them."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from stoker import wire
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError
from stoker.client.events import EventStream
from stoker.feed.job_stream import FinishedJob, JobStream
from stoker.feed.submit_environment import SubmitEnvironment, in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE = 500
ENDINGS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "DeadlinePassed")
)
"""Events after which a job may be over."""


def follow(work: JobStream, place: SubmitEnvironment) -> int:
    """Queue the lines with the daemon and follow them to their ends."""
    return QueueFollower(connect(), work, place).run()


class QueueFollower:
    """Keeps a bounded number of lines in somebody else's queue, and counts their ends."""

    def __init__(self, client: Client, work: JobStream, place: SubmitEnvironment) -> None:
        self.client, self.work, self.place = client, work, place
        self.lines = work.lines
        self.mine: set[int] = set()
        self.running: set[int] = set()
        self.ended: set[int] = set()
        """Jobs of ours that an event says may be over."""
        self.code = 0
        self.error: StokerError | None = None
        self.stopping = False
        self.cancelling = False
        self.wake, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Feed, follow, and return the exit code."""
        self._look_at_devices()
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
                self.work.turned(lambda: len(self.running))
        finally:
            events.close()
        if self.error is not None:
            raise self.error
        if self.stopping:
            self.work.stopped()
        return self.code or self.work.code

    @property
    def waiting(self) -> int:
        """How many of our jobs have not started."""
        return len(self.mine) - len(self.running)

    def _sleep(self, events: EventStream) -> None:
        """Wait for a line, an event or a signal."""
        hungry = not self.stopping and not self.lines.ended and self.work.hungry(self.waiting)
        watched = [events.fileno(), self.wake]
        if hungry and not self.lines.regular:
            watched.append(self.lines.fd)
        ready = select.select(watched, [], [], self._patience())[0]
        if self.lines.fd in ready and hungry:
            self.lines.read()
        if self.wake in ready:
            for number in os.read(self.wake, 64):
                self._signalled(number)
        if events.fileno() in ready:
            self._hear(events)

    def _patience(self) -> float:
        """Not a moment while more can go out: in a large file, the next line may be far off."""
        if not self.stopping and self.work.openings(self.waiting, 0):
            return 0.0
        due = self.work.due()
        return 1.0 if due is None else min(due, 1.0)

    def _hear(self, events: EventStream) -> None:
        if not events.receive():
            # The daemon restarted or we were too slow: begin again, and look at all of them.
            events.reopen()
            self.ended |= self.mine
        for kind, data in events.take():
            job = data.get("job")
            if job not in self.mine:
                continue
            if kind == "ProcessStarted":
                self.running.add(job)
            elif kind in ENDINGS:
                self.running.discard(job)
                self.ended.add(job)

    def _submit(self) -> None:
        """Send out the lots that there are."""
        while not self.stopping and self.work.openings(self.waiting, 0):
            lot = self.work.next(self.waiting)
            if lot is None:
                return
            try:
                receipt = self.client.submit(
                    {
                        "what": lot.what,
                        "options": lot.options,
                        "directory": self.place.directory,
                        "environment": self.place.environment,
                        "shell": self.place.shell,
                        "umask": self.place.umask,
                    }
                )
            except StokerError as error:
                self.error = self.work.refused(lot, error)
                if self.error is not None and error.code == "unavailable":
                    raise self.error from None  # it could not be told what to cancel either
                if self.error is not None:
                    self._cancel()
                continue
            self.mine.update(range(receipt["first"], receipt["last"] + 1))
            self.work.submitted(lot, receipt["first"], receipt["last"])

    def _count(self) -> None:
        """Ask how the jobs stand that may be over."""
        waiting, self.ended = sorted(self.ended & self.mine), set()
        for start in range(0, len(waiting), PAGE):
            words = [str(id) for id in waiting[start : start + PAGE]]
            for view in self.client.jobs(words, tail=5, limit=PAGE)["jobs"]:
                if view["state"] in wire.FINISHED:
                    self._one(view)

    def _one(self, view: dict[str, Any]) -> None:
        self.mine.discard(view["id"])
        self.running.discard(view["id"])
        started = bool(view["started_at"] or view.get("attempts"))
        self.work.ended(
            FinishedJob(
                view["id"], view["state"], started, view.get("termination_note"), lambda: view
            )
        )

    def _listen_for_signals(self) -> None:
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGUSR1:
            self._drain()
        else:
            self.code = self.code or 128 + number
            self._cancel()

    def _cancel(self) -> None:
        """Cancel our own lines; a second time, at once."""
        again, self.stopping, self.cancelling = self.cancelling, True, True
        self.work.interrupted()
        ids = [str(id) for id in sorted(self.mine)]
        if ids:
            with contextlib.suppress(StokerError):
                self.client.kill(ids) if again else self.client.cancel(ids)

    def _drain(self) -> None:
        """Let what runs finish; what has not started never will."""
        if self.stopping:
            return
        self.stopping = True
        self.work.draining()
        ids = [str(id) for id in sorted(self.mine)]
        if not ids:
            return
        with contextlib.suppress(StokerError):
            self.client.hold(ids)  # so that none starts between the question and the answer
            waiting = self.client.jobs(ids, state="PENDING", limit=100_000)["jobs"]
            if waiting:
                self.client.cancel([str(view["id"]) for view in waiting])

    def _look_at_devices(self) -> None:
        """Refuse devices that the daemon does not have; warn of strangers on those it has."""
        everywhere = self.client.gpus()["gpus"]
        if not everywhere and not self.work.named:
            self.work.without_gpus()
        # Devices that are named are those of the daemon's own machine.
        here = self.client.daemon()["node"] if self.work.named else None
        gpus = [gpu for gpu in everywhere if gpu["node"] == here]
        for name in self.work.named:
            meant = [gpu for gpu in gpus if _answers_to(gpu, name)]
            if not meant and not self.work.trusts_names:
                there = ", ".join(str(gpu["id"]) for gpu in gpus) or "none"
                raise StokerError(
                    f"The running daemon has no GPU {name}; it has: {there}.",
                    wire.EXIT_NOT_FOUND,
                    "not_found",
                )
            for gpu in meant:
                if gpu.get("foreign_process"):
                    self.work.warn(in_use(name, gpu["foreign_process"]))


def _answers_to(gpu: dict[str, Any], name: str) -> bool:
    """Whether a person who types this name means this GPU."""
    if name in (gpu["id"], str(gpu["index"])):
        return True
    return len(name) >= 5 and str(gpu["uuid"] or "").startswith(name)
