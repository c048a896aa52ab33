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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import asdict

from stoker.core import events as e
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.notifications.entries import CHANGES_OF_LIMITS, READ_SECONDS, EntryBuilder
from stoker.daemon.notifications.message import (
    COMMAND_SECONDS,
    Delivery,
    Message,
    SendJob,
    sendmail,
)
from stoker.daemon.notifications.outbox import Entry, Outbox, TargetStatus
from stoker.daemon.notifications.schedule import GROUP_SECONDS
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.settings import NotifyTarget
from stoker.engine import Instant
from stoker.executors.reactor import Reactor, Timer

logger = logging.getLogger(__name__)

WORKERS = 2
DISK_RETRY_SECONDS = 5.0
PROCESS_SECONDS = 30.0
"""After this time the process of a delivery is ended; that of a command later."""
CLOSE_SECONDS, CLOSE_AHEAD_SECONDS = 3.0, GROUP_SECONDS + READ_SECONDS + 1.0
"""A daemon that stops sends what only waits for other messages, and waits so long for that."""
MAX_WAIT_SECONDS = 600.0
EVENTS_PER_STEP = 5000
"""Events without a message after which their number is noted all the same."""
LIMITS_SECONDS = 1.0
"""How long after an event time limits are looked at, so that many events are looked at once."""


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
        seq: Callable[[], int], context: RequestContext, reactor: Reactor,
        deliver: Callable[[SendJob], str | None] | None = None,
        clock: Callable[[], Instant] = system_clock, page_url: str = "",
    ) -> None:  # fmt: skip
        """`seq` returns the number of the last event; `deliver` sends and returns an error."""
        self._targets, self._path = targets, path
        self._state, self._seq, self._context = state, seq, context
        self._deliver, self._clock = deliver or run_process, clock
        self._builder = EntryBuilder(targets, context, page_url)
        self._limits = Timer(reactor, self._check_limits)
        self._inbox: queue.SimpleQueue[_Added | _Sent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure = ""
        """Why the thread has ended, if it was not closed."""
        self._outbox: Outbox | None = None
        self._noted = 0
        self.status: dict[str, TargetStatus] = {}
        """What became of messages, by target; replaced whole by the other thread."""

    # -- messages -----------------------------------------------------------------------

    def start(self) -> None:
        """Turn the events of the journal into messages that an earlier daemon did not."""
        state = self._state()
        is_used = bool(self._targets or state.record.notify_rules) or os.path.exists(self._path)
        if not (is_used or any(spec.notify for spec in state.specs.values())):
            return
        self._open()
        assert self._outbox is not None
        before = self._outbox.seq
        entries: list[Entry] = []
        self._builder.note_free_gpus(state)
        if before is not None and before < self._seq():
            later = self._context.store.events(before, self._seq() - before)
            entries = self._builder.entries((event for _, event in later), state)
        self._start_thread()
        self._put(entries, force=True)
        self._limits.request(0.0)

    def on_events(self, events: Sequence[e.Event]) -> None:
        """Add the messages about events that are in the journal."""
        if self._outbox is None:
            if not any(self._needs_outbox(event) for event in events):
                return
            self._open()
            self._start_thread()
            self._put([], force=True)
        self._put(self._builder.entries(events, self._state()))
        if any(isinstance(event, CHANGES_OF_LIMITS) for event in events):
            self._limits.request(LIMITS_SECONDS)

    def _needs_outbox(self, event: e.Event) -> bool:
        if isinstance(event, e.JobsSubmitted):
            return bool(self._state().specs[event.spec].notify)
        return isinstance(event, e.NotifyRuleAdded)

    def _check_limits(self) -> float | None:
        """Add the messages about jobs near their time limit; return the seconds to the next."""
        if self._outbox is None:
            return None
        entries, seconds = self._builder.before_limits(self._state(), self._clock().boot)
        self._put(entries)
        return seconds

    def _open(self) -> None:
        self._outbox = Outbox(self._path, self._limit_of)
        self.status = self._outbox.status()

    def _limit_of(self, target: str) -> int:
        found = self._builder.target(target)
        return found.limit if found is not None else 20

    def _put(self, entries: list[Entry], force: bool = False) -> None:
        seq = self._seq()
        if entries or force or seq - self._noted >= EVENTS_PER_STEP:
            self._noted = seq
            self._inbox.put(_Added(seq, entries))

    # -- tests and lists ----------------------------------------------------------------

    @property
    def targets(self) -> Mapping[str, NotifyTarget]:
        """The configured targets."""
        return self._targets

    def send_test(self, name: str) -> str | None:
        """Deliver a test message and return its error; takes long, for any thread."""
        message = Message(
            key="test", event="test", title="test message of stoker",
            lines=[f"Messages of the daemon on {self._context.node} reach {name}."],
            facts={"target": name}, host=self._context.node,
        )  # fmt: skip
        key = f"test-{time.time():.3f}"
        return self._send(Delivery(batch=0, target=name, messages=[message]), key)

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
        outbox, busy, closing_at = self._outbox, set[str](), 0.0
        assert outbox is not None
        # What could not be written; nothing later is written before it.
        failed: _Added | _Sent | None = None
        while not closing_at or (busy and time.monotonic() < closing_at):
            item, failed = failed, None
            try:
                wait = MAX_WAIT_SECONDS
                if len(busy) < WORKERS and (due := outbox.next_due(busy)) is not None:
                    wait = min(max(due - time.time(), 0.05), wait)
                with contextlib.suppress(queue.Empty):
                    item = item or self._inbox.get(timeout=0.1 if closing_at else wait)
                    if item is None:
                        closing_at = time.monotonic() + CLOSE_SECONDS
                    elif isinstance(item, _Added):
                        outbox.add(item.seq, item.entries, time.time())
                    else:
                        self._note(outbox, item)
                        busy.discard(item.delivery.target)
                    item = None
                ahead = CLOSE_AHEAD_SECONDS if closing_at else 0.0
                for delivery in outbox.take_due(time.time(), WORKERS - len(busy), ahead, busy):
                    busy.add(delivery.target)
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
        target = self._builder.target(delivery.target)
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
