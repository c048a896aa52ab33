"""One thread that waits for all open futures of this process, on one stream of events."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from stoker import wire
from stoker.api import daemon_client as links
from stoker.api.errors import NotFound, StokerError, Unreachable, never_starts
from stoker.api.stream import Stream

LINGERS = 5.0
"""Seconds for which the thread stays when there is nothing to wait for."""
AT_ONCE = 5000
"""So many jobs are asked about in one request."""
LONGEST_PAUSE = 2.0
HARMLESS = frozenset({
    "AttemptPlanned", "TrainingBegan", "EpochsCounted", "MemoryMeasured", "StopAsked",
    "StopWithdrawn", "EstimateExceeded", "JobSignalled", "TimeLimitNear", "TrialMeasured",
})  # fmt: skip
"""Events that end no job."""


class Watched(Protocol):
    """What the watcher tells a future."""

    def stands(self, view: dict[str, Any]) -> None:
        """Say how its job stands."""

    def runs(self) -> None:
        """Its job has started."""

    def breaks(self, error: BaseException) -> None:
        """Nobody will ever know."""


class Watcher:
    """Waits for jobs of one daemon, whatever becomes of that daemon meanwhile."""

    def __init__(self, link: links.DaemonClient) -> None:
        self.link = link
        self.lock = threading.Lock()
        self.open: dict[int, list[Watched]] = {}
        self.fresh: set[int] = set()
        self.depend: dict[str, set[int]] = {}
        """Jobs that wait for others, by what they wait for."""
        self.thread: threading.Thread | None = None
        self.busy_at = 0.0
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def add(self, futures: Iterable[tuple[int, Watched]]) -> None:
        """Wait for these, too."""
        with self.lock:
            for id, future in futures:
                self.open.setdefault(id, []).append(future)
                self.fresh.add(id)
            self.busy_at = time.monotonic()
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="stoker-futures", daemon=True)
                self.thread.start()
        os.eventfd_write(self.bell, 1)

    def _run(self) -> None:
        stream: Stream | None = None
        pause = 0.05
        while True:
            try:
                if stream is None:
                    # A daemon that was stopped stays so until somebody wants it; one that was
                    # killed is started again, since its jobs go on and their ends are due.
                    self.link.autostart = self.link.has_crashed
                    stream = Stream(self.link)
                    self._take_fresh()
                    self._look(list(self.open))
                    pause = 0.05
                if not self._turn(stream):
                    stream.close()
                    stream = None
            except Unreachable:
                if stream is not None:
                    stream.close()
                stream = None
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except BaseException as error:  # noqa: BLE001 - nobody else would tell those who wait
                self._give_up(error)
                return
            if self._may_leave():
                if stream is not None:
                    stream.close()
                return

    def _turn(self, stream: Stream) -> bool:
        """Wait for the next thing to happen; False when the stream has ended."""
        alive = stream.next_ones(self.bell, LINGERS if not self.open else 30.0)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        touched, ended = self._take_fresh(), False
        for kind, content in stream.take():
            id = content.get("job")
            if kind in HARMLESS or id is None:
                continue
            if kind == "ProcessStarted":
                for future in self.open.get(id, ()):
                    future.runs()
            else:
                ended = True
                touched.add(id)
        self._look(touched | self._waiting() if ended else touched)
        return alive is not False

    def _take_fresh(self) -> set[int]:
        with self.lock:
            fresh, self.fresh = self.fresh, set()
        return fresh

    def _look(self, ids: Iterable[int]) -> None:
        """Ask how jobs stand, all in one request, and tell their futures."""
        wanted = sorted(id for id in ids if id in self.open)
        for start in range(0, len(wanted), AT_ONCE):
            self._ask(wanted[start : start + AT_ONCE])

    def _ask(self, ids: list[int]) -> None:
        try:
            reply = self.link.wait(list(ranges(ids)), timeout=0.0)
        except NotFound as error:
            if len(ids) > 1:
                half = len(ids) // 2
                self._ask(ids[:half])
                self._ask(ids[half:])
                return
            for future in self._closed(ids[0]):
                future.breaks(error)
            return
        for view in reply["jobs"]:
            id = int(view["id"])
            over = view["state"] in wire.FINISHED
            for future in self._closed(id) if over else self.open.get(id, ()):
                future.stands(view)
            self._note(id, view)
        self._take_stuck(reply)

    def _waiting(self) -> set[int]:
        """Return one of each kind of jobs that may have lost what they wait for."""
        left = {key: waiting & self.open.keys() for key, waiting in self.depend.items()}
        self.depend = {key: waiting for key, waiting in left.items() if waiting}
        return {min(waiting) for waiting in self.depend.values()}

    def _note(self, id: int, view: dict[str, Any]) -> None:
        """Remember what a job waits for; member by member where each has its own to wait for."""
        text = str(view.get("depends") or "")
        key = f"{text} {id}" if "aftercorr" in text else text
        if text and id in self.open and view["state"] == "PENDING":
            self.depend.setdefault(key, set()).add(id)
        elif key in self.depend:
            self.depend[key].discard(id)

    def _take_stuck(self, reply: dict[str, Any]) -> None:
        """Tell the futures of jobs that can never start, and look at those like them."""
        found = {int(stuck["id"]): stuck for stuck in reply.get("stuck") or ()}
        for id, stuck in found.items():
            for future in self._closed(id):
                future.breaks(never_starts(stuck, reply["jobs"]))
        for key, waiting in list(self.depend.items()):
            if waiting & found.keys():
                del self.depend[key]
                self._look(waiting - found.keys())

    def _closed(self, id: int) -> list[Watched]:
        with self.lock:
            return self.open.pop(id, [])

    def _give_up(self, error: BaseException) -> None:
        with self.lock:
            left, self.open, self.thread = self.open, {}, None
            self.depend.clear()
        told = (
            error if isinstance(error, StokerError) else StokerError(f"Internal error: {error!r}")
        )
        for futures in left.values():
            for future in futures:
                future.breaks(told)

    def _may_leave(self) -> bool:
        with self.lock:
            now = time.monotonic()
            if self.open or self.fresh:
                self.busy_at = now
            if now - self.busy_at < LINGERS:
                return False
            self.thread = None
            return True


def ranges(ids: list[int]) -> Iterator[str]:
    """Write sorted ids as `3-7`, also one alone: `5` could be the whole of an array."""
    first = last = ids[0]
    for id in ids[1:]:
        if id != last + 1:
            yield f"{first}-{last}"
            first = id
        last = id
    yield f"{first}-{last}"


_watchers: dict[str, Watcher] = {}
_guard = threading.Lock()


def watcher_of(link: links.DaemonClient) -> Watcher:
    """Return the watcher of a daemon."""
    with _guard:
        found = _watchers.get(link.key)
        if found is None:
            found = _watchers[link.key] = Watcher(links.DaemonClient(link.path))
        return found


def _forget() -> None:
    """A forked process has none of our threads, and locks as they happened to be."""
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()
    _watchers.clear()


os.register_at_fork(after_in_child=_forget)
