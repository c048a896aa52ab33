"""A feed beside a running daemon: it submits the lines and follows them by events."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from stoker import wire
from stoker.client.client import Client
from stoker.client.errors import NotFound, StokerError
from stoker.client.events import EventStream
from stoker.feed.job_stream import FinishedJob, JobStream
from stoker.feed.submit_environment import in_use_warning
from stoker.wire import JsonObject

PAGE = 500
ENDINGS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "DeadlinePassed")
)
"""Events after which a job may have finished."""


class QueueFollower:
    """Keeps a bounded number of lines in the daemon's queue, and counts their outcomes."""

    def __init__(self, client: Client, work: JobStream, environment: JsonObject) -> None:
        self.client, self.work, self.environment = client, work, environment
        self.lines = work.lines
        self.unfinished: set[int] = set()
        self.running: set[int] = set()
        self.maybe_finished: set[int] = set()
        """Jobs that may have finished, according to an event."""
        self.code = 0
        self.error: StokerError | None = None
        self.stopping = False
        self.cancelling = False
        self.wake, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Submit and follow all lines; return the exit code."""
        self._check_gpus()
        self._listen_for_signals()
        events = EventStream(self.client)
        try:
            while not (self.lines.is_done or self.stopping) or self.unfinished:
                if not self.stopping:
                    self._submit()
                if not self.unfinished and (self.lines.is_done or self.stopping):
                    break
                self._sleep(events)
                self._count_finished()
                self.work.show_progress(lambda: len(self.running))
        finally:
            events.close()
        if self.error is not None:
            raise self.error
        if self.stopping:
            self.work.on_stopped()
        return self.code or self.work.exit_code

    @property
    def pending(self) -> int:
        """Number of jobs of this feed that have not started."""
        return len(self.unfinished) - len(self.running)

    def _sleep(self, events: EventStream) -> None:
        """Wait for input, an event or a signal."""
        wants_input = (
            not self.stopping and not self.lines.is_at_end and self.work.wants_input(self.pending)
        )
        watched = [events.fileno(), self.wake]
        if wants_input and not self.lines.is_regular:
            watched.append(self.lines.fd)
        ready = select.select(watched, [], [], self._timeout())[0]
        if self.lines.fd in ready and wants_input:
            self.lines.read()
        if self.wake in ready:
            for number in os.read(self.wake, 64):
                self._on_signal(number)
        if events.fileno() in ready:
            self._read_events(events)

    def _timeout(self) -> float:
        """Return the longest sleep; 0 while more can be submitted, as from a large file."""
        if not self.stopping and self.work.free_slots(self.pending, 0):
            return 0.0
        due = self.work.next_update()
        return 1.0 if due is None else min(due, 1.0)

    def _read_events(self, events: EventStream) -> None:
        if not events.receive():
            # The daemon restarted, or this feed was too slow: check all jobs.
            events.reopen()
            self.maybe_finished |= self.unfinished
        for kind, data in events.take():
            job = data.get("job")
            if job not in self.unfinished:
                continue
            if kind == "ProcessStarted":
                self.running.add(job)
            elif kind in ENDINGS:
                self.running.discard(job)
                self.maybe_finished.add(job)

    def _submit(self) -> None:
        """Submit the batches that are available."""
        while not self.stopping and self.work.free_slots(self.pending, 0):
            batch = self.work.next_batch(self.pending)
            if batch is None:
                return
            try:
                receipt = self.client.submit(
                    {"what": batch.what, "options": batch.options, **self.environment}
                )
            except StokerError as error:
                self.error = self.work.on_rejected(batch, error)
                if self.error is not None and error.code == "unavailable":
                    raise self.error from None  # it could not be asked to cancel anything either
                if self.error is not None:
                    self._cancel()
                continue
            self.unfinished.update(range(receipt["first"], receipt["last"] + 1))
            self.work.on_submitted(batch, receipt["first"], receipt["last"])

    def _count_finished(self) -> None:
        """Read the states of the jobs that may have finished."""
        waiting, self.maybe_finished = sorted(self.maybe_finished & self.unfinished), set()
        for start in range(0, len(waiting), PAGE):
            ids = [str(id) for id in waiting[start : start + PAGE]]
            for view in self.client.jobs(ids, tail=5, limit=PAGE)["jobs"]:
                if view["state"] in wire.FINISHED:
                    self._finish(view)

    def _finish(self, view: JsonObject) -> None:
        self.unfinished.discard(view["id"])
        self.running.discard(view["id"])
        started = bool(view["started_at"] or view.get("attempts"))
        note = view.get("termination_note")
        self.work.on_finished(FinishedJob(view["id"], view["state"], started, note, lambda: view))

    def _listen_for_signals(self) -> None:
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            self._drain()
        else:
            self.code = self.code or 128 + number
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the lines of this feed; the second time, kill them."""
        again, self.stopping, self.cancelling = self.cancelling, True, True
        self.work.on_interrupt()
        ids = [str(id) for id in sorted(self.unfinished)]
        if ids:
            with contextlib.suppress(StokerError):
                self.client.kill(ids) if again else self.client.cancel(ids)

    def _drain(self) -> None:
        """Let running lines finish, and cancel those that have not started."""
        if self.stopping:
            return
        self.stopping = True
        self.work.on_drain()
        ids = [str(id) for id in sorted(self.unfinished)]
        if not ids:
            return
        with contextlib.suppress(StokerError):
            self.client.hold(ids)  # so that none starts before it is cancelled
            waiting = self.client.jobs(ids, state="PENDING", limit=100_000)["jobs"]
            if waiting:
                self.client.cancel([str(view["id"]) for view in waiting])

    def _check_gpus(self) -> None:
        """Reject GPUs that the daemon does not have; warn of foreign processes on the others."""
        all_gpus = self.client.gpus()["gpus"]
        if not all_gpus and not self.work.gpu_names:
            self.work.on_no_gpus()
        # Named GPUs are those of the daemon's own machine.
        local_node = self.client.daemon()["node"] if self.work.gpu_names else None
        gpus = [gpu for gpu in all_gpus if gpu["node"] == local_node]
        for name in self.work.gpu_names:
            named = [gpu for gpu in gpus if _is_named(gpu, name)]
            if not named and not self.work.accepts_unknown_gpus:
                known = ", ".join(str(gpu["id"]) for gpu in gpus) or "none"
                raise NotFound(f"The running daemon has no GPU {name}; it has: {known}.")
            for gpu in named:
                if gpu.get("foreign_process"):
                    self.work.warn(in_use_warning(name, gpu["foreign_process"]))


def _is_named(gpu: JsonObject, name: str) -> bool:
    """Return whether a name means this GPU: id, index or start of the UUID."""
    if name in (gpu["id"], str(gpu["index"])):
        return True
    return len(name) >= 5 and str(gpu["uuid"] or "").startswith(name)
