"""ScraperClient: has metrics extracted from logs and files.

Made for the epoll loop: nothing here blocks. The process is started with the first attempt that
is to be scraped. A new process gets all orders again: it finds the points of an earlier one in the
reports, with their positions, so that no point is extracted twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from stoker.core.launch.launch import fill_path, log_paths
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.daemon.reports.paths import parse_attempt_name, report_directory
from stoker.daemon.workers.restart_policy import RestartPolicy
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor, Timer

logger = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "stoker.scraper.process")
FINISH_TIMEOUT_SECONDS = 10.0
"""Maximum silence of the process while it finishes an attempt."""
RESTART_DELAYS = (0.0, 0.5, 1.0, 1.5, 2.0)
IDLE_SECONDS = 60.0
"""How long a process without work is kept."""
FILE_CLOCK_LAG_SECONDS = 0.02
"""Timestamps of files lag behind the clock: a file of the job may seem older than its start."""


class ScraperClient:
    """Has the metrics of all attempts extracted for which the job names a source."""

    def __init__(self, home: str, reactor: Reactor, state: Callable[[], State]) -> None:
        self.home, self.state = home, state
        self.orders: dict[AttemptId, dict[str, Any]] = {}
        """Attempts that are scraped, with what the process is sent for each."""
        self.finishing: set[AttemptId] = set()
        self.process = LineSubprocess(reactor, self._on_reply, self._on_exit)
        self.restarts = RestartPolicy(RESTART_DELAYS)
        self._restarting = Timer(reactor, self._start)
        self._silence = Timer(reactor, self._check_silence)
        self.last_reply_at = 0.0
        """When the last line came, or the first finish was requested."""
        self._finished: list[AttemptId] = []

    # -- orders -------------------------------------------------------------------------

    def watch(self, job: Job, attempt: int, started_at: float | None = None) -> None:
        """Scrape an attempt from now on."""
        key = AttemptId(job.id, attempt)
        if key in self.orders:
            return
        self.orders[key] = order = self._build_order(job, attempt, started_at)
        with contextlib.suppress(OSError):  # the directory tells the next daemon of this attempt
            os.makedirs(os.path.dirname(order["report"]), 0o700, exist_ok=True)
        if self.process.is_running:
            self._send(order)
        elif not self._restarting.is_set:
            self._start()

    def finish(self, job: Job, attempt: int) -> None:
        """Scrape what an ended attempt has left, then list it in `take_finished`."""
        key = AttemptId(job.id, attempt)
        if key in self.finishing:
            return
        self.watch(job, attempt)
        if not self.finishing:
            self.last_reply_at = time.monotonic()
        self.finishing.add(key)
        self._silence.request(FINISH_TIMEOUT_SECONDS)
        self._send({"finish": str(key)})

    def take_finished(self) -> list[AttemptId]:
        """Return the attempts that were scraped completely since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _build_order(self, job: Job, attempt: int, started_at: float | None) -> dict[str, Any]:
        spec = self.state().spec(job)
        assert spec.source is not None
        attempted = replace(job, attempt=attempt)
        node = job.placement.node if job.placement is not None else job.last_node or ""
        if started_at is None and attempt == job.attempt:
            started_at = job.started_at
        if spec.source.kind == "log":
            out, err = log_paths(attempted, spec, node, f"{self.home}/logs")
            files = [out] if err is None or err == out else [out, err]
        else:
            files = [fill_path(spec.source.text, attempted, spec, node)]
        since = job.submitted_at if started_at is None else started_at
        key = AttemptId(job.id, attempt)
        return {
            "watch": str(key), "kind": spec.source.kind, "files": files,
            "text": spec.source.text, "name": spec.source.name or "value",
            "report": f"{report_directory(self.home, key)}/report",
            "since": since - FILE_CLOCK_LAG_SECONDS,
        }  # fmt: skip

    # -- replies ------------------------------------------------------------------------

    def _on_reply(self, line: bytes) -> None:
        self.last_reply_at = time.monotonic()
        self.restarts.reset()
        try:
            reply = msgspec.json.decode(line)
        except msgspec.DecodeError:
            self.process.fail(f"it answered {line[:80]!r}")
            return
        if "trouble" in reply:
            key = parse_attempt_name(reply["trouble"])
            if key is not None:
                self._give_up(key, reply["why"])
        elif "finished" in reply:
            key = parse_attempt_name(reply["finished"])
            if key is not None and key in self.finishing:
                self._drop(key)

    def _drop(self, key: AttemptId) -> None:
        self.orders.pop(key, None)
        self.finishing.discard(key)
        self._finished.append(key)
        if not self.orders:
            self._silence.request(IDLE_SECONDS)

    def _give_up(self, key: AttemptId, reason: str) -> None:
        """Stop scraping an attempt."""
        job = self.state().jobs.get(key[0])
        label = job.label if job else key[0]
        logger.warning("metrics of job %s are no longer scraped: %s", label, reason)
        self._drop(key)

    # -- the process --------------------------------------------------------------------

    def _check_silence(self) -> float | None:
        """Stop a process that hangs or has no work; return the seconds until then."""
        if not self.process.is_running or (self.orders and not self.finishing):
            return None
        pause = FINISH_TIMEOUT_SECONDS if self.finishing else IDLE_SECONDS
        left = self.last_reply_at + pause - time.monotonic()
        if left > 0:
            return left
        if self.finishing:
            self._on_timeout()
        else:
            self.process.stop()
        return None

    def _start(self) -> None:
        self.last_reply_at = time.monotonic()
        self._silence.request(FINISH_TIMEOUT_SECONDS)
        if self.process.start(COMMAND):
            for order in self.orders.values():
                self._send(order)
            for key in self.finishing:
                self._send({"finish": str(key)})

    def _send(self, message: dict[str, Any]) -> None:
        if self.process.is_running:
            self.process.send(msgspec.json.encode(message) + b"\n")

    def _on_timeout(self) -> None:
        """Give up the attempt that the process is stuck with, which is the process's name."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/comm") as file:
            key = parse_attempt_name(file.read().strip())
            if key in self.orders:
                self._give_up(key, f"it has not ended for {FINISH_TIMEOUT_SECONDS:.0f} s")
        self.process.fail("it has hung")

    def _on_exit(self, reason: str) -> None:
        delay = self.restarts.record_failure()
        if delay is not None:
            self._restarting.request(delay)
            return
        logger.warning("the scraper process failed repeatedly: %s", reason)
        self.restarts.reset()
        for key in list(self.orders):
            self._drop(key)

    def close(self) -> None:
        """Stop scraping; the next daemon continues."""
        self.process.close()
