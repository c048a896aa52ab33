"""Runs the lines of a batch: each in a slot that is free, until all are done."""

from __future__ import annotations

import os
import select
import signal
import time
from heapq import heapify, heappop, heappush

from stoker import wire
from stoker.cli import output
from stoker.client.errors import StokerError
from stoker.client.events import EventStream
from stoker.client.submit_environment import current_directory, shell, umask
from stoker.compat.execute_batch.bulk_submit import submit_all
from stoker.compat.execute_batch.free_slots import vacant
from stoker.compat.execute_batch.job import Job
from stoker.compat.execute_batch.job_locks import ANOTHER, JobLocks
from stoker.compat.execute_batch.lines import FINISHED, make_results, tell
from stoker.compat.execute_batch.stopping import listen_for_signals
from stoker.compat.execute_batch.transfer_options import brought_nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.plan import Plan, Slot

DOOR = "execute_batch"
ENDINGS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "AttemptAbandoned")
)
"""Events after which a job may be over."""
TRY_AGAIN = 1.0
"""Seconds before a line that the daemon had no room for is tried again."""
AT_ONCE = 16
"""Lines that are submitted at the same time."""
FALLS = 5
"""A daemon that ends so often, with nothing to tell in between, is not started again."""


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
        self.claims = JobLocks(client)
        self.common = {
            "directory": current_directory(),
            "environment": {},  # nothing of ours means anything there
            "shell": shell(),
            "umask": umask(),
        }
        self.options = {**carried, "client": DOOR, "verbatim": True}
        self.names = {slot.member.node: slot.member.typed for slot in plan.slots}
        self.running: dict[int, Job] = {}
        self.maybe_over: set[int] = set()
        self.vacated = False
        """Whether a slot has become free since late lines were looked at."""
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
        listen_for_signals(self._woken)
        events = EventStream(self.client)
        try:
            while True:
                self._fill()
                if not self.running and (not self.todo or self.signals):
                    break
                self._sleep(events)
                self._conclude()
                self._move_late_lines()
        finally:
            events.close()
            for line in self.todo:
                self.claims.release(line.name)
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
                if self._claimed(line):
                    jobs.append(Job(line, heappop(self.free)[1]))
                else:
                    tell(f"skipping {line.command}")
            else:
                break
        return jobs

    def _claimed(self, line: Line) -> bool:
        """See that no other run has a line, nor has had it by now."""
        holder = self.claims.take(line.name)
        if holder is not None:
            whose = "" if holder == ANOTHER else f" (job {holder})"
            tell(
                f"WARNING: line {line.number} is being run by another {DOOR}{whose},"
                " skipping evaluation"
            )
            return False
        if os.path.exists(line.directory):
            self.claims.release(line.name)
            return False
        return True

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
        if reply.code in ("disk_full", "queue_full", "unavailable"):
            self.todo.append(job.line)
            self.todo.sort(key=lambda line: -line.number)
            self._later(reply)
        else:
            self._say(f"{job.line.name}: {reply.message}")
            self._failed(job.line)
            self.claims.release(job.line.name)

    def _later(self, error: StokerError) -> None:
        if not self.not_before:
            self._say(f"{error.message} Trying again later.")
        self.not_before = time.monotonic() + TRY_AGAIN

    # -- in -------------------------------------------------------------------------------

    def _sleep(self, events: EventStream) -> None:
        """Wait for something to happen."""
        ready = select.select([events.fileno(), self.wake], [], [], self._patience())[0]
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
            started = {data["job"] for kind, data in news if kind == "ProcessStarted"}
            begun = [self.running[id] for id in started if id in self.running]
            for job in sorted(begun, key=lambda job: job.line.number):
                self._started(job)  # told in the order of the file
            for kind, data in news:
                self._hear(kind, data)

    def _patience(self) -> float | None:
        """How long nothing needs to be done, unless something happens; None: for ever."""
        if self.signals:
            return None
        moments = [job.look_at for job in self.running.values() if not job.started]
        if self.todo and self.free:
            moments.append(self.not_before)
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _fallen(self) -> None:
        self.falls += 1
        if self.falls > FALLS:
            raise StokerError(
                "The daemon keeps ending; see its log: stoker daemon status. Running jobs continue."
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
                self._say(f"{name} does not answer ({why}); jobs running there continue")
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
        self._vacate(job.slot)
        if job.started:
            os.makedirs(job.line.directory, exist_ok=True)
            self._report(job, view)
        elif not self.signals:
            self._say(f"{job.line.name}: {output.clean(view['cause'])}")
            self._failed(job.line)
        self.claims.release(job.line.name)

    def _vacate(self, slot: Slot) -> None:
        heappush(self.free, (slot.number, slot))
        self.vacated = True

    def _report(self, job: Job, view: dict[str, Any]) -> None:
        """Say how a job that had started has ended."""
        if not job.slot.member.view["shared"]:
            for path in brought_nothing(self.options, job.line.directory):
                self._say(f"{job.line.name}: --copy-backwards {path}: the job wrote nothing there")
        if view["termination_note"]:
            self._say(f"{job.line.name}: {output.clean(view['termination_note'])}")
        if view["state"] == "COMPLETED":
            tell(f"finished: {job.line.name}; {job.line.command}")
            return
        if view["exit_code"] is None and not self.signals:
            self._say(f"{job.line.name}: {output.clean(view['cause'])}")
        self._failed(job.line)

    def _failed(self, line: Line) -> None:
        self.failed += 1
        tell(f"failed: {line.name}; {line.command}")

    # -- lines that wait ------------------------------------------------------------------

    def _move_late_lines(self) -> None:
        """Give lines that wait in their slots one where they start; else say why they wait.

        What others take after the slots were reckoned may block one of them for ever.
        """
        now = time.monotonic()
        late = [
            id for id, job in self.running.items()
            if not job.started and (now >= job.look_at or (job.late and self.vacated))
        ]  # fmt: skip
        self.vacated = False
        if not late or self.signals:
            return
        views = self.client.jobs([str(id) for id in late], limit=len(late))["jobs"]
        waiting = {view["id"] for view in views if view["state"] == "PENDING"}
        slots = vacant(self.client, [slot for _, slot in sorted(self.free)]) if waiting else []
        for id in sorted(late):
            job = self.running[id]
            job.look_at, job.late = now + job.patience, id in waiting
            if not job.late:
                continue
            # Slots without a GPU are all the same on one machine.
            better = [each for each in slots if each.gpu is not None or not job.slot.beside(each)]
            if (not better or job.moved) and not job.explained:
                job.explained = True
                why = output.clean(self.client.why(str(id))["text"])
                self._say(f"{job.line.name} waits: {why}")
            if better and self._withdrawn(id):
                slots.remove(better[0])
                self._move(job, better[0])

    def _withdrawn(self, id: int) -> bool:
        """Take a job out of the queue, unless it has started in this moment."""
        if not self.client.act("cancel", [str(id)], only="waiting")["done"]:
            return False
        del self.running[id]
        self.maybe_over.discard(id)
        return True

    def _move(self, job: Job, slot: Slot) -> None:
        self.free.remove((slot.number, slot))
        heapify(self.free)
        self._vacate(job.slot)
        moved = Job(job.line, slot, job)
        self._submitted(moved, submit_all(self.client, [self._submission(moved)])[0])

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
            self._say(f"not stopped: job {', '.join(ids)}; see: stoker")
            self.running.clear()

    @staticmethod
    def _say(text: str) -> None:
        output.say(f"{DOOR}: {text}")
