"""Runs the lines of a batch: each in a slot that is free, until all are done."""

from __future__ import annotations

import os
import select
import signal
import time
from heapq import heappop, heappush

from stoker import wire
from stoker.cli import output
from stoker.cli.submission import current_directory, shell, umask
from stoker.client.errors import StokerError
from stoker.client.events import EventStream
from stoker.frontdoors.execute_batch.lines import make_results, tell
from stoker.frontdoors.execute_batch.orders import submit_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client
    from stoker.frontdoors.execute_batch.lines import Line
    from stoker.frontdoors.execute_batch.plan import Plan, Slot

DOOR = "execute_batch"
ENDINGS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "AttemptAbandoned")
)
"""Events after which a job may be over."""
FINISHED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE")
)
TRY_AGAIN = 1.0
"""Seconds before a line that the daemon had no room for is tried again."""
AT_ONCE = 16
"""Lines that are submitted at the same time."""
FALLS = 5
"""A daemon that ends so often, with nothing to tell in between, is not started again."""


class Job:
    """A line in a slot."""

    __slots__ = ("line", "slot", "started")

    def __init__(self, line: Line, slot: Slot) -> None:
        self.line, self.slot = line, slot
        self.started = False


class Batch:
    """Keeps the slots filled. The daemon starts the jobs, and may start them later."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        lines: Sequence[Line],
        carried: dict[str, Any],
        verbose: bool = False,
    ) -> None:
        self.client, self.verbose = client, verbose
        self.free = [(slot.number, slot) for slot in plan.slots]
        self.todo = list(reversed(lines))
        self.results = make_results()
        self.common = {
            "directory": current_directory(),
            "environment": {},  # nothing of ours means anything there
            "shell": shell(),
            "umask": umask(),
        }
        self.options = {**carried, "door": DOOR, "verbatim": True}
        self.names = {slot.member.node: slot.member.typed for slot in plan.slots}
        self.running: dict[int, Job] = {}
        self.maybe_over: set[int] = set()
        self.failed = 0
        self.signals: list[int] = []
        """Those that asked us to stop."""
        self.not_before = 0.0
        self.falls = 0
        self.wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Run everything; the exit code."""
        for line in reversed(self.todo):
            if os.path.exists(line.directory):
                tell(
                    f"WARNING: job results already exists for line {line.number},"
                    " skipping evaluation: delete if you wish to rerun"
                )
        _listen_for_signals(self._woken)
        events = EventStream(self.client)
        try:
            while True:
                self._fill()
                if not self.running and (not self.todo or self.signals):
                    break
                self._sleep(events)
                self._conclude()
        finally:
            events.close()
        if self.signals:
            return wire.EXIT_INTERRUPTED if self.signals[0] == signal.SIGINT else 143
        return wire.EXIT_FAILED if self.failed else wire.EXIT_OK

    # -- out ------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Hand out lines in the order of the file, slots in the order of the machines."""
        while jobs := self._next():
            replies = submit_all(self.client, [self._submission(job) for job in jobs])
            for job, reply in zip(jobs, replies, strict=True):
                self._submitted(job, reply)

    def _next(self) -> list[Job]:
        """The next lines for which there are slots."""
        jobs: list[Job] = []
        while self.todo and self.free and not self.signals and len(jobs) < AT_ONCE:
            line = self.todo[-1]
            if os.path.exists(line.directory):
                self.todo.pop()
                tell(f"skipping {line.command}")
            elif time.monotonic() >= self.not_before:
                self.todo.pop()
                jobs.append(Job(line, heappop(self.free)[1]))
            else:
                break
        return jobs

    def _submission(self, job: Job) -> dict[str, Any]:
        log = os.path.join(self.results, job.line.name).replace("%", "%%")
        options = {
            **self.options, **job.slot.options, "name": job.line.name, "output": f"{log}.out",
            "error": f"{log}.err", "bring_into": log,
        }  # fmt: skip
        what = {"line": job.slot.line(job.line.command)}
        return {**self.common, "what": what, "options": options}

    def _submitted(self, job: Job, reply: int | StokerError) -> None:
        if not isinstance(reply, StokerError):
            self.running[reply] = job
            if self.verbose:
                tell(job.slot.typed(job.line.command, reply))
            return
        heappush(self.free, (job.slot.number, job.slot))
        if reply.code in ("no_room", "full", "unavailable"):
            self.todo.append(job.line)
            self.todo.sort(key=lambda line: -line.number)
            self._later(reply)
        else:
            self._say(f"{job.line.name}: {reply.message}")
            self._failed(job.line)

    def _later(self, error: StokerError) -> None:
        if not self.not_before:
            self._say(f"{error.message} Waiting for that to change.")
        self.not_before = time.monotonic() + TRY_AGAIN

    # -- in -------------------------------------------------------------------------------

    def _sleep(self, events: EventStream) -> None:
        """Wait for something to happen."""
        patience = None
        if self.todo and self.free and not self.signals:
            patience = max(self.not_before - time.monotonic(), 0.0)
        ready = select.select([events.fileno(), self.wake], [], [], patience)[0]
        if self.wake in ready:
            for number in os.read(self.wake, 64):
                self._signalled(number)
        if events.fileno() in ready:
            if not events.receive():
                # The daemon was restarted, or we were too slow: look at all of them.
                self._fallen()
                events.reopen()
                self.maybe_over |= set(self.running)
            news = events.take()
            self.falls = 0 if news else self.falls
            planned = {data["job"] for kind, data in news if kind == "AttemptPlanned"}
            begun = [self.running[id] for id in planned if id in self.running]
            for job in sorted(begun, key=lambda job: job.line.number):
                self._started(job)  # told in the order of the file
            for kind, data in news:
                self._hear(kind, data)

    def _fallen(self) -> None:
        self.falls += 1
        if self.falls > FALLS:
            raise StokerError(
                "The daemon ends again and again; see its log: stoker daemon status."
                " What runs goes on."
            )

    def _hear(self, kind: str, data: dict[str, Any]) -> None:
        job = self.running.get(data.get("job", 0))
        if job is not None:
            if kind in ENDINGS:
                self.maybe_over.add(data["job"])
        elif data.get("node") in self.names:
            name = self.names[data["node"]]
            if kind == "NodeUnreachable":
                why = output.clean(data["why"])
                self._say(f"{name} does not answer ({why}); what runs there goes on")
            elif kind == "NodeReached":
                self._say(f"{name} answers again")

    def _conclude(self) -> None:
        """See which jobs are over, and how they ended."""
        if not self.maybe_over:
            return
        ids = sorted(self.maybe_over)
        self.maybe_over.clear()
        for view in self.client.jobs([str(id) for id in ids], limit=len(ids))["jobs"]:
            job = self.running[view["id"]]
            if view["started_at"] is not None:
                self._started(job)
            if view["state"] in FINISHED:
                del self.running[view["id"]]
                self._over(job, view)

    def _started(self, job: Job) -> None:
        if not job.started:
            job.started = True
            tell(f"started: {job.line.name};  {job.slot.shown(job.line.command)}")

    def _over(self, job: Job, view: dict[str, Any]) -> None:
        heappush(self.free, (job.slot.number, job.slot))
        if not job.started:
            if not self.signals:
                self._say(f"{job.line.name}: {output.clean(view['cause'])}")
                self._failed(job.line)
            return
        os.makedirs(job.line.directory, exist_ok=True)
        if view["enforced"]:
            self._say(f"{job.line.name}: {output.clean(view['enforced'])}")
        if view["state"] == "COMPLETED":
            tell(f"finished: {job.line.name}; {job.line.command}")
            return
        if view["exit_code"] is None and not self.signals:
            self._say(f"{job.line.name}: {output.clean(view['cause'])}")
        self._failed(job.line)

    def _failed(self, line: Line) -> None:
        self.failed += 1
        tell(f"failed: {line.name}; {line.command}")

    # -- stopping -------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        """First ask what runs to end, then do not wait for it, then leave it behind."""
        self.signals.append(number)
        ids = [str(id) for id in self.running]
        if len(self.signals) == 1:
            tell("interrupting tasks")
            if ids:
                tell("waiting for tasks to terminate")
                self.client.cancel(ids)
        elif len(self.signals) == 2 and ids:
            self.client.kill(ids)
        elif ids:
            self._say(f"left behind: job {', '.join(ids)}; see stoker")
            self.running.clear()

    @staticmethod
    def _say(text: str) -> None:
        output.say(f"{DOOR}: {text}")


def _listen_for_signals(woken: int) -> None:
    """Have the numbers of signals written to a descriptor; go on when the terminal is gone."""
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        # `nohup` and background shells ignore some of these on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
