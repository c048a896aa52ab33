"""The daemon's end of the process that looks for figures: what it watches, and what it has found.

Made for the epoll loop: nothing here waits. The process is started with the first attempt whose
figures are to be looked for. A new one is told everything again: what was found stands in the
reports, with the place where, so that nothing is found twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.launch import fill, log_paths
from stoker.core.state import State
from stoker.daemon.reports.paths import AttemptId, attempt_name, parse_attempt_name
from stoker.executors.agent.session.session import Poller

if TYPE_CHECKING:
    from stoker.daemon.runtime.line_subprocess import LineSubprocess

logger = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "stoker.scraper.process")
PATIENCE = 10.0
"""Seconds for which it may be silent while it is asked to come to an end with an attempt."""
PAUSE, RESTARTS = 0.5, 5
"""A process that died is followed by another, after a while, but not for ever."""
IDLE = 60.0
"""Seconds for which one that has nothing to do is kept."""
EARLIER = 0.02
"""The clock of files runs so many seconds behind: what seems older than the job may be its own."""


class ScraperClient:
    """Has the figures found of all attempts whose jobs say where they are."""

    def __init__(self, home: str, poller: Poller, state: Callable[[], State]) -> None:
        self.home, self.poller, self.state = home, poller, state
        self.orders: dict[AttemptId, dict[str, Any]] = {}
        """What is watched."""
        self.finishing: set[AttemptId] = set()
        self.process: LineSubprocess | None = None
        self.leaving: list[LineSubprocess] = []
        self.failures = 0
        self.start_at: float | None = None
        self.heard_at = 0.0
        """When it last said something, or was first asked to."""
        self._finished: list[AttemptId] = []

    # -- what is wanted -----------------------------------------------------------------

    def watch(self, job: Job, attempt: int, started_at: float | None = None) -> None:
        """Look for the figures of this attempt from now on."""
        key = (job.id, attempt)
        if key in self.orders:
            return
        self.orders[key] = order = self._order(job, attempt, started_at)
        with contextlib.suppress(OSError):  # if we die before anything is found, it is seen by this
            os.makedirs(os.path.dirname(order["report"]), 0o700, exist_ok=True)
        if self.process is not None:
            self._send(order)
        elif self.start_at is None:
            self._start()

    def finish(self, job: Job, attempt: int) -> None:
        """It has ended: look at the rest, then say so."""
        key = (job.id, attempt)
        if key in self.finishing:
            return
        self.watch(job, attempt)
        if not self.finishing:
            self.heard_at = time.monotonic()
        self.finishing.add(key)
        if self.process is not None:
            self._send({"finish": attempt_name(key)})

    def take_finished(self) -> list[AttemptId]:
        """Those of which all was found, since the last time."""
        finished, self._finished = self._finished, []
        return finished

    def _order(self, job: Job, attempt: int, began: float | None) -> dict[str, Any]:
        spec = self.state().spec(job)
        assert spec.source is not None
        ran = replace(job, attempt=attempt)
        node = job.placement.node if job.placement is not None else job.last_node or ""
        if began is None and attempt == job.attempt:
            began = job.started_at
        if spec.source.kind == "log":
            out, err = log_paths(ran, spec, node, f"{self.home}/logs")
            files = [out] if err is None or err == out else [out, err]
        else:
            files = [fill(spec.source.text, ran, spec, node)]
        return {
            "watch": attempt_name((job.id, attempt)), "kind": spec.source.kind, "files": files,
            "text": spec.source.text, "name": spec.source.name or "value",
            "report": f"{self.home}/training/{job.id}.{attempt}/report",
            "since": (job.submitted_at if began is None else began) - EARLIER,
        }  # fmt: skip

    # -- what comes of it ---------------------------------------------------------------

    def _heard(self, line: bytes) -> None:
        self.heard_at, self.failures = time.monotonic(), 0
        try:
            answer = msgspec.json.decode(line)
        except msgspec.DecodeError:
            self._died(f"it answered {line[:80]!r}")
            return
        if "trouble" in answer:
            key = parse_attempt_name(answer["trouble"])
            if key is not None:
                self._give_up(key, answer["why"])
        elif "finished" in answer:
            key = parse_attempt_name(answer["finished"])
            if key is not None and key in self.finishing:
                self._done(key)

    def _done(self, key: AttemptId) -> None:
        self.orders.pop(key, None)
        self.finishing.discard(key)
        self._finished.append(key)

    def _give_up(self, key: AttemptId, why: str) -> None:
        """Its figures are not looked for any more."""
        job = self.state().jobs.get(key[0])
        label = job.label if job else key[0]
        logger.warning("metrics of job %s are no longer scraped: %s", label, why)
        self._done(key)

    # -- life and death -----------------------------------------------------------------

    def tick(self) -> float | None:
        """Start, give up on or let go of the process when it is time; seconds until then."""
        now = time.monotonic()
        self.leaving = [process for process in self.leaving if not process.reap()]
        if self.start_at is not None:
            if now < self.start_at:
                return self.start_at - now
            self._start()
        if self.process is None:
            return None
        if self.finishing:
            if now >= self.heard_at + PATIENCE:
                self._hung()
                return self.tick()
            return self.heard_at + PATIENCE - now
        if self.orders:
            return None
        if now >= self.heard_at + IDLE:
            self._let_go()
            return None
        return self.heard_at + IDLE - now

    def _start(self) -> None:
        from stoker.daemon.runtime.line_subprocess import LineSubprocess

        self.start_at = None
        self.heard_at = time.monotonic()
        try:
            self.process = LineSubprocess(self.poller, self._heard, self._died, COMMAND)
        except OSError as error:
            self._died(f"it cannot be started: {os.strerror(error.errno or 0)}")
            return
        for order in self.orders.values():
            self._send(order)
        for key in self.finishing:
            self._send({"finish": attempt_name(key)})

    def _send(self, message: dict[str, Any]) -> None:
        if self.process is not None:
            self.process.send(msgspec.json.encode(message) + b"\n")

    def _hung(self) -> None:
        """It says nothing: whom it was busy with is not looked at again."""
        assert self.process is not None
        with contextlib.suppress(OSError), open(f"/proc/{self.process.process.pid}/comm") as file:
            key = parse_attempt_name(file.read().strip())
            if key in self.orders:
                self._give_up(key, f"it has not ended for {PATIENCE:.0f} s")
        self._died("it has hung")

    def _died(self, why: str) -> None:
        self._let_go()
        self.failures += 1
        if self.failures <= RESTARTS:
            self.start_at = time.monotonic() + PAUSE * (self.failures - 1)
            return
        logger.warning("the scraper process failed repeatedly: %s", why)
        self.failures = 0
        for key in list(self.orders):
            self._done(key)

    def _let_go(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.close()
            if not process.reap():
                self.leaving.append(process)

    def close(self) -> None:
        """Look for nothing more; the next daemon goes on."""
        self._let_go()
        for process in self.leaving:
            with contextlib.suppress(Exception):  # one that cannot even die is left alone
                process.process.wait(1.0)
