"""One thread per daemon that updates all unfinished futures, by the event stream."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stoker import wire
from stoker.api.daemon_client import DaemonClient
from stoker.api.errors import never_starts_error
from stoker.client.errors import DaemonUnreachable, NotFound, StokerError
from stoker.client.events import EventStream

if TYPE_CHECKING:
    from stoker.api.calls.futures import Future

IDLE_SECONDS = 5.0
"""How long the thread stays without futures."""
MAX_JOBS_PER_REQUEST = 5000
"""Jobs per request."""
MAX_PAUSE_SECONDS = 2.0
NON_FINAL_EVENTS = frozenset({
    "AttemptPlanned", "TrainingBegan", "EpochsCounted", "MemoryMeasured", "StopAsked",
    "StopWithdrawn", "EstimateExceeded", "JobSignalled", "TimeLimitNear", "TrialMeasured",
})  # fmt: skip
"""Events after which no job has ended."""


class Watcher:
    """Waits for jobs of one daemon, across its restarts."""

    def __init__(self, daemon_client: DaemonClient) -> None:
        self.daemon_client = daemon_client
        self.lock = threading.Lock()
        self.futures: dict[int, list[Future[Any]]] = {}
        self.added: set[int] = set()
        self.dependents: dict[str, set[int]] = {}
        """Pending jobs by their dependency."""
        self.thread: threading.Thread | None = None
        self.last_used = 0.0
        self.wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def add(self, futures: Iterable[tuple[int, Future[Any]]]) -> None:
        """Add futures by job id."""
        with self.lock:
            for id, future in futures:
                self.futures.setdefault(id, []).append(future)
                self.added.add(id)
            self.last_used = time.monotonic()
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="stoker-futures", daemon=True)
                self.thread.start()
        os.eventfd_write(self.wakeup_fd, 1)

    def _run(self) -> None:
        stream: EventStream | None = None
        pause = 0.05
        while True:
            try:
                if stream is None:
                    # A stopped daemon is not started again; a killed one is, since its jobs
                    # continue and their ends must be reported.
                    self.daemon_client.autostart = self.daemon_client.has_crashed
                    stream = EventStream(self.daemon_client)
                    self._take_added()
                    self._update_futures(list(self.futures))
                    pause = 0.05
                if not self._wait_for_events(stream):
                    stream.close()
                    stream = None
            except DaemonUnreachable:
                if stream is not None:
                    stream.close()
                stream = None
                time.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
            except BaseException as error:  # noqa: BLE001 - the futures must be completed
                self._fail_all(error)
                return
            if self._may_exit():
                if stream is not None:
                    stream.close()
                return

    def _wait_for_events(self, stream: EventStream) -> bool:
        """Wait for events and update futures; False if the stream has ended."""
        is_open = stream.wait(self.wakeup_fd, IDLE_SECONDS if not self.futures else 30.0)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wakeup_fd)
        changed, has_ended = self._take_added(), False
        for kind, content in stream.take():
            id = content.get("job")
            if kind in NON_FINAL_EVENTS or id is None:
                continue
            if kind == "ProcessStarted":
                for future in self.futures.get(id, ()):
                    future.on_started()
            else:
                has_ended = True
                changed.add(id)
        self._update_futures(changed | self._dependents_to_check() if has_ended else changed)
        return is_open is not False

    def _take_added(self) -> set[int]:
        with self.lock:
            added, self.added = self.added, set()
        return added

    def _update_futures(self, ids: Iterable[int]) -> None:
        """Request the views of jobs and pass them to their futures."""
        watched = sorted(id for id in ids if id in self.futures)
        for start in range(0, len(watched), MAX_JOBS_PER_REQUEST):
            self._request_views(watched[start : start + MAX_JOBS_PER_REQUEST])

    def _request_views(self, ids: list[int]) -> None:
        try:
            reply = self.daemon_client.wait(list(id_ranges(ids)), timeout=0.0)
        except NotFound as error:
            if len(ids) > 1:
                half = len(ids) // 2
                self._request_views(ids[:half])
                self._request_views(ids[half:])
                return
            for future in self._take_futures(ids[0]):
                future.on_failed(error)
            return
        for view in reply["jobs"]:
            id = int(view["id"])
            has_ended = view["state"] in wire.FINISHED
            for future in self._take_futures(id) if has_ended else self.futures.get(id, ()):
                future.on_view(view)
            self._record_dependency(id, view)
        self._fail_stuck(reply)

    def _dependents_to_check(self) -> set[int]:
        """Return one job per dependency: its dependency may never be satisfied now."""
        pending = {key: jobs & self.futures.keys() for key, jobs in self.dependents.items()}
        self.dependents = {key: jobs for key, jobs in pending.items() if jobs}
        return {min(jobs) for jobs in self.dependents.values()}

    def _record_dependency(self, id: int, view: dict[str, Any]) -> None:
        """Record the dependency of a pending job; with aftercorr, per task."""
        text = str(view.get("depends") or "")
        key = f"{text} {id}" if "aftercorr" in text else text
        if text and id in self.futures and view["state"] == "PENDING":
            self.dependents.setdefault(key, set()).add(id)
        elif key in self.dependents:
            self.dependents[key].discard(id)

    def _fail_stuck(self, reply: dict[str, Any]) -> None:
        """Fail the futures of jobs that can never start; check jobs with the same dependency."""
        stuck_jobs = {int(stuck["id"]): stuck for stuck in reply.get("stuck") or ()}
        for id, stuck in stuck_jobs.items():
            for future in self._take_futures(id):
                future.on_failed(never_starts_error(stuck, reply["jobs"]))
        for key, jobs in list(self.dependents.items()):
            if jobs & stuck_jobs.keys():
                del self.dependents[key]
                self._update_futures(jobs - stuck_jobs.keys())

    def _take_futures(self, id: int) -> list[Future[Any]]:
        with self.lock:
            return self.futures.pop(id, [])

    def _fail_all(self, error: BaseException) -> None:
        with self.lock:
            futures_by_id, self.futures, self.thread = self.futures, {}, None
            self.dependents.clear()
        reported = (
            error if isinstance(error, StokerError) else StokerError(f"Internal error: {error!r}")
        )
        for futures in futures_by_id.values():
            for future in futures:
                future.on_failed(reported)

    def _may_exit(self) -> bool:
        with self.lock:
            now = time.monotonic()
            if self.futures or self.added:
                self.last_used = now
            if now - self.last_used < IDLE_SECONDS:
                return False
            self.thread = None
            return True


def id_ranges(ids: list[int]) -> Iterator[str]:
    """Yield sorted ids as ranges, a single one as `5-5`: `5` could mean a whole array."""
    first = last = ids[0]
    for id in ids[1:]:
        if id != last + 1:
            yield f"{first}-{last}"
            first = id
        last = id
    yield f"{first}-{last}"


_watchers: dict[str, Watcher] = {}
_lock = threading.Lock()


def watcher_of(daemon_client: DaemonClient) -> Watcher:
    """Return the watcher of a daemon; one per process."""
    with _lock:
        watcher = _watchers.get(daemon_client.key)
        if watcher is None:
            watcher = _watchers[daemon_client.key] = Watcher(DaemonClient(daemon_client.path))
        return watcher


def _reset_after_fork() -> None:
    """In a forked process: threads are gone and locks may be held."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _watchers.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
