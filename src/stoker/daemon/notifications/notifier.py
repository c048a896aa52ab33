"""Notifier: events -> messages, in the daemon's thread; a thread of its own delivers them.

The daemon's thread touches no file and no socket: it puts messages into a queue, with the number
of the last event. The other thread writes them into the outbox and starts a process per delivery.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import asdict, replace

from stoker.core import events as e
from stoker.core.model.alarm import MARK
from stoker.core.model.job import FAILED_STATES, Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.notifications import compose
from stoker.daemon.notifications.message import (
    COMMAND_SECONDS,
    Delivery,
    Message,
    SendJob,
    sendmail,
)
from stoker.daemon.notifications.outbox import Entry, Outbox, TargetStatus
from stoker.daemon.notifications.schedule import GROUPED, due_time
from stoker.daemon.settings import NotifyTarget

logger = logging.getLogger(__name__)

MAIL = "mailto:"
"""Prefix of targets that are an e-mail address (`--mail-user`)."""
ENDS = (
    e.ProcessExited, e.AttemptLost, e.AttemptAbandoned, e.StartFailed, e.JobCancelled,
    e.DeadlinePassed,
)  # fmt: skip
WORKERS = 2
DISK_RETRY_SECONDS = 5.0
PROCESS_SECONDS = 30.0
"""After this time the process of a delivery is ended; that of a command later."""
CLOSE_SECONDS, CLOSE_AHEAD_SECONDS = 3.0, 61.0
"""A daemon that stops sends what only waits for other messages, and waits so long for that."""
MAX_WAIT_SECONDS = 600.0
EVENTS_PER_STEP = 5000
"""Events without a message after which their number is noted all the same."""
MAX_LOGS = 10
"""Messages of one commit that have the end of the output."""


def can_send_mail(targets: Mapping[str, NotifyTarget]) -> bool:
    """Return whether there is a mail server, or a program that takes mail."""
    return any(t.kind == "email" and t.smtp for t in targets.values()) or sendmail() is not None


class _Added(Struct):
    """Messages up to an event."""

    seq: int
    entries: list[Entry]


class _Sent(Struct):
    """The outcome of a delivery."""

    delivery: Delivery
    error: str | None


class Notifier:
    """Used by the daemon's thread, except where noted."""

    def __init__(
        self, targets: Mapping[str, NotifyTarget], path: str, state: Callable[[], State],
        seq: Callable[[], int], context: RequestContext,
        deliver: Callable[[SendJob], str | None] | None = None,
    ) -> None:  # fmt: skip
        """`seq` returns the number of the last event; `deliver` sends and returns an error."""
        self._targets, self._path = targets, path
        self._state, self._seq, self._context = state, seq, context
        self._deliver = deliver or run_process
        self._inbox: queue.SimpleQueue[_Added | _Sent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure = ""
        """Why the thread has ended, if it was not closed."""
        self._outbox: Outbox | None = None
        self._noted = 0
        self._witness: dict[int, int] = {}
        """By array: a member that had not ended when it was last looked at."""
        self.status: dict[str, TargetStatus] = {}
        """What became of messages, by target; replaced whole by the other thread."""

    # -- messages -----------------------------------------------------------------------

    def start(self) -> None:
        """Turn the events of the journal into messages that an earlier daemon did not."""
        is_used = bool(self._targets) or os.path.exists(self._path)
        state = self._state()
        if not (is_used or any(spec.notify for spec in state.specs.values())):
            return
        self._open()
        assert self._outbox is not None
        before = self._outbox.seq
        entries: list[Entry] = []
        if before is not None and before < self._seq():
            later = self._context.store.events(before, self._seq() - before)
            entries = self._entries(event for _, event in later)
        self._start_thread()
        self._put(entries, force=True)

    def on_events(self, events: Sequence[e.Event]) -> None:
        """Add the messages about events that are in the journal."""
        if self._outbox is None:
            submitted = (event for event in events if isinstance(event, e.JobsSubmitted))
            if not any(self._state().specs[event.spec].notify for event in submitted):
                return
            self._open()
            self._start_thread()
            self._put([], force=True)
        self._put(self._entries(events))

    def _open(self) -> None:
        self._outbox = Outbox(self._path, self._limit_of)
        self.status = self._outbox.status()

    def _limit_of(self, target: str) -> int:
        found = self._target(target)
        return found.limit if found is not None else 20

    def _put(self, entries: list[Entry], force: bool = False) -> None:
        seq = self._seq()
        if entries or force or seq - self._noted >= EVENTS_PER_STEP:
            self._noted = seq
            self._inbox.put(_Added(seq, entries))

    def _entries(self, events: Iterable[e.Event]) -> list[Entry]:
        entries: list[Entry] = []
        ended: dict[int, None] = {}
        state = self._state()
        for event in events:
            if isinstance(event, ENDS):
                ended[event.job] = None
            elif isinstance(event, e.ProcessStarted) and not event.part:
                job = state.jobs.get(event.job)
                is_current = job is not None and job.attempt == event.attempt
                if job is not None and is_current and self._has_targets(state.spec(job)):
                    message = compose.job_started(job, state.spec(job))
                    entries += self._for_job(job, state.spec(job), "start", message)
            elif isinstance(event, e.AlarmRaised):
                entries += self._for_alarm(event, state)
        for id in ended:
            entries += self._for_end(id, state)
        return _with_few_logs(entries)

    def _for_alarm(self, event: e.AlarmRaised, state: State) -> list[Entry]:
        alarm = event.alarm
        if alarm.action == MARK or alarm.key not in state.record.alarms:
            return []  # it is over, or is advice that comes with the end of its job
        message = compose.alarm_raised(alarm, state)
        job = state.jobs.get(alarm.job) if alarm.job is not None else None
        if job is None:
            return self._to_all("alarm", message)
        return self._for_job(job, state.spec(job), "alarm", message)

    def _for_end(self, id: int, state: State) -> list[Entry]:
        """Return the messages about a job that has ended, or is repeated."""
        found = self._find(id, state)
        if found is None:
            return []
        job, spec = found
        entries: list[Entry] = []
        if not self._has_targets(spec):
            return entries
        if not job.finished:
            if job.state is JobState.PENDING and job.past:
                message = compose.job_requeued(job, spec)
                entries += self._for_job(job, spec, "requeue", message)
            return entries
        event = "fail" if job.state in FAILED_STATES else "end"
        sweep = state.sweeps.get(job.array or 0)
        if "tasks" in compose.events_of(spec) or job.array is None:
            message = compose.job_end(job, spec, self._context.logs)
            entries += self._for_job(job, spec, event, message)
        elif sweep is not None:
            if sweep.ended_at is not None:
                message = compose.sweep_end(sweep, state)
                entries += self._for_job(job, spec, message.event, message)
        elif not self._has_unfinished(job.array, spec, state):
            message = compose.array_end(job, spec, self._context)
            entries += self._for_job(job, spec, message.event, message)
        if not state.live:
            entries += self._to_all("empty", compose.queue_empty(job))
        return entries

    def _find(self, id: int, state: State) -> tuple[Job, Spec] | None:
        job = state.jobs.get(id)
        return (job, state.spec(job)) if job is not None else self._context.load_finished(id)

    def _has_targets(self, spec: Spec) -> bool:
        return bool(spec.notify) or any(target.on for target in self._targets.values())

    def _has_unfinished(self, array: int, spec: Spec, state: State) -> bool:
        """Return whether members of an array have not ended; ids of members are consecutive."""
        witness = self._witness.pop(array, 0)
        for id in (witness, *range(array + spec.array_size - 1, array - 1, -1)):
            job = state.jobs.get(id)
            if job is not None and job.array == array and not job.finished:
                self._witness[array] = id
                return True
        return False

    def _for_job(self, job: Job, spec: Spec, event: str, message: Message) -> list[Entry]:
        """Return the entries for the targets of a job, and those for all jobs."""
        # A failure is an end, too.
        kinds = {event, "end"} if event == "fail" else {event}
        names = {
            (MAIL + (name.removeprefix(MAIL) or job.user) if name.startswith(MAIL) else name): None
            for name, events in spec.notify if kinds & set(events)
        }  # fmt: skip
        entries = [self._entry(name, message) for name in names]
        return entries + [
            entry for entry in self._to_all(event, message) if entry.target not in names
        ]

    def _to_all(self, event: str, message: Message) -> list[Entry]:
        kinds = {event, "end"} if event == "fail" else {event}
        return [
            self._entry(name, message)
            for name, target in self._targets.items()
            if kinds & set(target.on)
        ]

    def _entry(self, name: str, message: Message) -> Entry:
        target = self._target(name)
        if target is None or not target.with_logs:
            message = replace(message, log=[])
        digest, quiet = (target.digest, target.quiet) if target is not None else ("", "")
        topic = message.key
        if digest:
            topic = "digest"
        elif message.event in GROUPED:
            topic = message.event
        return Entry(name, message, topic, due_time(time.time(), message.event, digest, quiet))

    def _target(self, name: str) -> NotifyTarget | None:
        if not name.startswith(MAIL):
            return self._targets.get(name)
        mails = (target for target in self._targets.values() if target.kind == "email")
        mail = next(mails, NotifyTarget(kind="email"))
        return replace(mail, to=name.removeprefix(MAIL))

    # -- tests and lists ----------------------------------------------------------------

    @property
    def targets(self) -> Mapping[str, NotifyTarget]:
        """The configured targets."""
        return self._targets

    def send_test(self, name: str) -> str | None:
        """Deliver a test message and return its error; takes long, for any thread."""
        message = Message(
            key="test", event="test", title="test message of stoker",
            lines=["This target works."], facts={"target": name},
        )  # fmt: skip
        return self._send(Delivery(batch=0, target=name, messages=[message]), "test")

    def warnings(self) -> list[str]:
        """Return the targets that do not work, and whether nothing is delivered any more."""
        stopped = [f"notifications stopped ({self._failure}); restart the daemon"]
        return stopped * bool(self._failure) + [
            f"notifications to {name} fail: {status.error}"
            for name, status in self.status.items()
            if status.error is not None
        ]

    # -- the other thread ---------------------------------------------------------------

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what only waits for other messages, for a moment; the rest stays in the outbox."""
        if self._thread is not None:
            self._put([], force=True)
            self._inbox.put(None)
            self._thread.join(CLOSE_SECONDS + 1.0)

    def _run(self) -> None:
        pool = ThreadPoolExecutor(WORKERS, "deliveries")
        try:
            self._serve(pool)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            logger.exception("notifications have stopped")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _serve(self, pool: ThreadPoolExecutor) -> None:
        outbox, in_flight, closing_at = self._outbox, 0, 0.0
        assert outbox is not None
        # What could not be written; nothing later is written before it.
        failed: _Added | _Sent | None = None
        while not closing_at or (in_flight and time.monotonic() < closing_at):
            item, failed = failed, None
            try:
                wait = MAX_WAIT_SECONDS
                if in_flight < WORKERS and (due := outbox.next_due()) is not None:
                    wait = min(max(due - time.time(), 0.05), wait)
                with contextlib.suppress(queue.Empty):
                    item = item or self._inbox.get(timeout=0.1 if closing_at else wait)
                    if item is None:
                        closing_at = time.monotonic() + CLOSE_SECONDS
                    elif isinstance(item, _Added):
                        outbox.add(item.seq, item.entries, time.time())
                    else:
                        self._note(outbox, item)
                        in_flight -= 1
                    item = None
                ahead = CLOSE_AHEAD_SECONDS if closing_at else 0.0
                for delivery in outbox.take_due(time.time(), WORKERS - in_flight, ahead):
                    in_flight += 1
                    pool.submit(self._send_and_tell, delivery)
            except sqlite3.Error as error:  # the disk is full
                logger.warning("notifications cannot be written: %s", error)
                failed = item
                time.sleep(0.1 if closing_at else DISK_RETRY_SECONDS)
        outbox.close()

    def _note(self, outbox: Outbox, sent: _Sent) -> None:
        wait = outbox.finish(sent.delivery, sent.error, time.time())
        if sent.error is not None:
            again = f"; tried again in {wait / 60:.0f} min" if wait is not None else "; given up"
            logger.warning("notification to %s: %s%s", sent.delivery.target, sent.error, again)
        self.status = outbox.status()

    def _send_and_tell(self, delivery: Delivery) -> None:
        try:
            error = self._send(delivery, f"{self._context.node}-{delivery.batch}")
        except Exception as failure:  # noqa: BLE001 - it is the outcome
            error = repr(failure)
        self._inbox.put(_Sent(delivery, error))

    def _send(self, delivery: Delivery, key: str) -> str | None:
        target = self._target(delivery.target)
        if target is None:
            return "it is not in the configuration any more"
        options = {name: str(value) for name, value in asdict(target).items() if value}
        first = delivery.messages[0].key
        job = SendJob(
            target=options, message=delivery.combined(), idempotency_key=f"{key}-{_digest(first)}"
        )
        return self._deliver(job)


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode(), digest_size=8).hexdigest()


def _with_few_logs(entries: list[Entry]) -> list[Entry]:
    for entry in entries[MAX_LOGS:]:
        entry.message = replace(entry.message, log=[])
    return entries


def run_process(job: SendJob) -> str | None:
    """Deliver a message in a process of its own; end it if it takes too long."""
    import signal
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker.daemon.notifications.send"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    seconds = PROCESS_SECONDS + (COMMAND_SECONDS if job.target["kind"] == "command" else 0.0)
    try:
        output, _ = process.communicate(encode(job), timeout=seconds)
        return decode(output, type=dict[str, str | None])["error"]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"the delivery has taken {seconds:.0f} s"
    except (MsgspecError, KeyError, TypeError):
        return f"the delivery ended with code {process.wait()}"
