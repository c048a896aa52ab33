"""Syncing the journal in the background, and what must wait until its commits are on disk."""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable

from msgspec import Struct, field

from stoker.core.events.instructions import StartProcess
from stoker.core.model.job import AttemptId
from stoker.daemon.training.cleanup import remove
from stoker.executors.reactor import Reactor, Timer
from stoker.store.port import Store, StoreError, StoreFenced

SYNC_SECONDS = 0.05
"""Starts and exits are on disk within this time; submissions before they are acknowledged."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
"""Pauses after a sync that failed: the first one, doubled each time up to the longest."""
SLOW_SECONDS = 0.25
"""A sync that takes longer is not repeated at once: it gets a fifth of the time at most."""

logger = logging.getLogger(__name__)


class AfterSync(Struct):
    """What may be done once the commits made before it are on disk, and not earlier."""

    ended: dict[str, list[AttemptId]] = field(default_factory=dict)
    """Attempts with committed ends, by node: their executors may forget them then."""
    reports: list[str] = field(default_factory=list)
    """Directories of training reports that are no longer needed."""
    starts: list[StartProcess] = field(default_factory=list)
    """Starts on other nodes."""

    def add(self, more: AfterSync) -> None:
        """Let more wait together with this."""
        self.reports += more.reports
        self.starts += more.starts
        for node, ended in more.ended.items():
            self.ended.setdefault(node, []).extend(ended)


class JournalSync:
    """Runs `Store.sync` in a thread, so that the loop never waits for the disk."""

    def __init__(
        self,
        store: Store,
        reactor: Reactor,
        start_thread: Callable[[Callable[[], None], tuple[()]], object] = _thread.start_new_thread,
    ) -> None:
        """A thread of `threading` would make the loop wait until it runs."""
        self._start_thread = start_thread
        self.store, self.reactor = store, reactor
        self.error: str | None = None
        """Why commits are not on disk; None while syncs succeed."""
        self._timer = Timer(reactor, self._on_due)
        self._is_due = False
        self._not_before = 0.0
        self._failures = 0
        self._waiting = AfterSync()
        """Kept through failures: it is handed out only after a sync that succeeded."""
        self._is_running = self._ended = False
        self._lock = _thread.allocate_lock()
        """Held while a sync runs."""
        self._outcome: Exception | None = None

    def request(self, delay: float = SYNC_SECONDS) -> None:
        """Sync within `delay` seconds, or as soon as a failure allows it."""
        self._timer.request(delay)

    @property
    def is_requested(self) -> bool:
        """Whether a sync is to be made that has not begun."""
        return self._is_due or self._timer.is_set

    @property
    def is_due(self) -> bool:
        """Whether to begin now."""
        return self._is_due and not self._is_running

    def _on_due(self) -> float | None:
        """Let the loop begin a sync; return the seconds until then if the last one was slow."""
        left = self._not_before - self.reactor.time()
        self._is_due = left <= 0
        return None if self._is_due else left

    def begin(self, more: AfterSync) -> None:
        """Start a sync of all that is committed; what is given waits for it."""
        self._is_due = False
        self._waiting.add(more)
        self._is_running, self._ended = True, False
        self._lock.acquire()
        try:
            self._start_thread(self._sync_in_thread, ())
        except RuntimeError as error:  # too many threads on this machine: tried again
            self._outcome = error
            self._end()

    def _sync_in_thread(self) -> None:
        try:
            self._sync()
        finally:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._lock.release()
        self.reactor.call_soon_threadsafe(lambda: None)  # the loop calls `finish`

    def _sync(self) -> None:
        began = self.reactor.time()
        try:
            self.store.sync()
            self._outcome = None
        except Exception as error:  # noqa: BLE001 - reported and tried again, whatever it was
            self._outcome = error
        else:
            self._clean_up()
        took = self.reactor.time() - began
        if took > SLOW_SECONDS:
            self._not_before = self.reactor.time() + 4 * took

    def _clean_up(self) -> None:
        """Delete training reports of ends that are on disk now."""
        try:
            remove(self._waiting.reports)
        except OSError as error:
            logger.warning("a training report stays: %s", error)

    def finish(self) -> AfterSync | None:
        """Return what may be done now; None while a sync runs, after a failure, or without one.

        Raise StoreFenced if another daemon has taken the journal over.
        """
        if not (self._is_running and self._ended):
            return None
        self._is_running = False
        if self._is_due:
            self._is_due = False
            self.request(0.0)
        if self._outcome is not None:
            self._failed(self._outcome)
            return None
        if self._failures:
            logger.warning("the journal is synced again")
        self._failures, self.error = 0, None
        done, self._waiting = self._waiting, AfterSync()
        return done

    def _failed(self, error: Exception) -> None:
        if isinstance(error, StoreFenced):
            raise error
        pause = min(RETRY_SECONDS * 2**self._failures, LONGEST_RETRY_SECONDS)
        self._failures += 1
        self.error = f"the journal cannot be synced: {error}"
        bug = None if isinstance(error, (OSError, StoreError)) else error
        logger.error("%s; the next try is in %g s", self.error, pause, exc_info=bug)
        self._not_before = self.reactor.time() + pause
        self.request(pause)

    def close(self, more: AfterSync) -> AfterSync | None:
        """Sync a last time; return what may be done then, None if it failed."""
        with self._lock:
            self._waiting.add(more)
            self._sync()
        if self._outcome is not None:
            logger.error("the journal cannot be synced: %s", self._outcome)
            return None
        return self._waiting
