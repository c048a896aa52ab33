"""Batch: submit the lines of a file to free slots until all have finished."""

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
from stoker.compat.execute_batch.free_slots import find_free_slots
from stoker.compat.execute_batch.job import SubmittedLine
from stoker.compat.execute_batch.job_locks import ANOTHER_PROCESS, JobLocks
from stoker.compat.execute_batch.lines import create_results_directory, print_line
from stoker.compat.execute_batch.transfer_options import missing_results
from stoker.compat.stop_signals import stop_signal_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.plan import Plan, Slot

NAME = "execute_batch"
END_EVENTS = frozenset(
    ("ProcessExited", "AttemptLost", "StartFailed", "JobCancelled", "AttemptAbandoned")
)
"""Events after which a job may have finished."""
RETRY_SECONDS = 1.0
"""Delay before a line is resubmitted that the daemon could not accept."""
MAX_SUBMISSIONS_AT_ONCE = 16
"""Lines submitted concurrently."""
MAX_DAEMON_RESTARTS = 5
"""Consecutive daemon restarts without an event after which the batch gives up."""


class Batch:
    """Keeps the slots filled; the daemon starts the jobs, perhaps later."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        lines: Sequence[Line],
        transfer: dict[str, Any],
        verbose: bool = False,
    ) -> None:
        self.client, self.verbose = client, verbose
        self.free_slots = [(slot.number, slot) for slot in plan.slots]
        self.pending_lines = list(reversed(lines))
        self.results = create_results_directory()
        self.locks = JobLocks(client)
        self.common = {
            "directory": current_directory(),
            "environment": {},  # the local environment is not valid on another host
            "shell": shell(),
            "umask": umask(),
        }
        self.options = {**transfer, "client": NAME, "verbatim": True}
        self.node_names = {slot.node.node: slot.node.name for slot in plan.slots}
        self.running: dict[int, SubmittedLine] = {}
        self.maybe_finished: set[int] = set()
        self.slot_freed = False
        """A slot was freed since late lines were last checked."""
        self.failed = 0
        self.signals: list[int] = []
        """Stop signals received."""
        self.retry_at = 0.0
        self.daemon_restarts = 0
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.signal_fd = stop_signal_fd(signal.SIGINT, signal.SIGTERM)

    def run(self) -> int:
        """Run all lines and return the exit code."""
        for line in reversed(self.pending_lines):
            if os.path.exists(line.directory):
                print_line(
                    f"WARNING: job results already exists for line {line.number},"
                    " skipping evaluation: delete if you wish to rerun"
                )
        events = EventStream(self.client)
        try:
            while True:
                self._submit_lines()
                if not self.running and (not self.pending_lines or self.signals):
                    break
                self._wait_for_events(events)
                self._collect_finished()
                self._move_late_lines()
        finally:
            events.close()
            for line in self.pending_lines:
                self.locks.release(line.name)
        if self.signals:
            return wire.EXIT_INTERRUPTED if self.signals[0] == signal.SIGINT else 143
        return wire.EXIT_FAILED if self.failed else wire.EXIT_OK

    # -- submission -----------------------------------------------------------------------

    def _submit_lines(self) -> None:
        """Submit lines in file order to slots in node order."""
        while jobs := self._next_lines():
            replies = submit_all(self.client, [self._submission(job) for job in jobs])
            for job, reply in zip(jobs, replies, strict=True):
                self._on_reply(job, reply)

    def _next_lines(self) -> list[SubmittedLine]:
        """Return the next lines that have a free slot."""
        jobs: list[SubmittedLine] = []
        while (
            self.pending_lines
            and self.free_slots
            and not self.signals
            and len(jobs) < MAX_SUBMISSIONS_AT_ONCE
        ):
            line = self.pending_lines[-1]
            if os.path.exists(line.directory):
                self.pending_lines.pop()
                print_line(f"skipping {line.command}")
            elif time.monotonic() >= self.retry_at:
                self.pending_lines.pop()
                if self._lock_line(line):
                    jobs.append(SubmittedLine(line, heappop(self.free_slots)[1]))
                else:
                    print_line(f"skipping {line.command}")
            else:
                break
        return jobs

    def _lock_line(self, line: Line) -> bool:
        """Lock a line; return False if another process runs it or has run it."""
        holder = self.locks.acquire(line.name)
        if holder is not None:
            job_text = "" if holder == ANOTHER_PROCESS else f" (job {holder})"
            print_line(
                f"WARNING: line {line.number} is being run by another {NAME}{job_text},"
                " skipping evaluation"
            )
            return False
        if os.path.exists(line.directory):
            self.locks.release(line.name)
            return False
        return True

    def _submission(self, job: SubmittedLine) -> dict[str, Any]:
        log = os.path.join(self.results, job.line.name).replace("%", "%%")
        options = {
            **self.options, **job.slot.options, "name": job.line.name, "output": f"{log}.out",
            "error": f"{log}.err", "bring_into": log,
        }  # fmt: skip
        what = {"line": job.slot.command_line(job.line.command)}
        return {**self.common, "what": what, "options": options}

    def _on_reply(self, job: SubmittedLine, reply: int | StokerError) -> None:
        if not isinstance(reply, StokerError):
            self.running[reply] = job
            if self.verbose:
                print_line(job.slot.verbose_line(job.line.command, reply))
            return
        heappush(self.free_slots, (job.slot.number, job.slot))
        if reply.code in ("disk_full", "queue_full", "unavailable"):
            self.pending_lines.append(job.line)
            self.pending_lines.sort(key=lambda line: -line.number)
            self._retry_later(reply)
        else:
            self._print_message(f"{job.line.name}: {reply.message}")
            self._count_failure(job.line)
            self.locks.release(job.line.name)

    def _retry_later(self, error: StokerError) -> None:
        if not self.retry_at:
            self._print_message(f"{error.message} Trying again later.")
        self.retry_at = time.monotonic() + RETRY_SECONDS

    # -- events ---------------------------------------------------------------------------

    def _wait_for_events(self, events: EventStream) -> None:
        """Wait for events, signals or a timeout, and handle them."""
        ready = select.select([events.fileno(), self.signal_fd], [], [], self._timeout())[0]
        if self.signal_fd in ready:
            for number in os.read(self.signal_fd, 64):
                self._on_signal(number)
        if events.fileno() in ready:
            if not events.receive():
                # The daemon was restarted, or events were lost: check all jobs.
                self._on_daemon_gone()
                events.reopen()
                self.maybe_finished |= set(self.running)
            received = events.take()
            self.daemon_restarts = 0 if received else self.daemon_restarts
            started = {data["job"] for kind, data in received if kind == "ProcessStarted"}
            started_jobs = [self.running[id] for id in started if id in self.running]
            for job in sorted(started_jobs, key=lambda job: job.line.number):
                self._on_started(job)  # reported in file order
            for kind, data in received:
                self._on_event(kind, data)

    def _timeout(self) -> float | None:
        """Return the seconds until the next check; None without one."""
        if self.signals:
            return None
        times = [job.check_at for job in self.running.values() if not job.started]
        if self.pending_lines and self.free_slots:
            times.append(self.retry_at)
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _on_daemon_gone(self) -> None:
        self.daemon_restarts += 1
        if self.daemon_restarts > MAX_DAEMON_RESTARTS:
            raise StokerError(
                "The daemon keeps ending; see its log: stoker daemon status. Running jobs continue."
            )

    def _on_event(self, kind: str, data: dict[str, Any]) -> None:
        job = self.running.get(data.get("job", 0))
        if job is not None:
            if kind in END_EVENTS:
                self.maybe_finished.add(data["job"])
        elif data.get("node") in self.node_names:
            name = self.node_names[data["node"]]
            if kind == "NodeUnreachable":
                why = output.clean(data["why"])
                self._print_message(f"{name} does not answer ({why}); jobs running there continue")
            elif kind == "NodeReached":
                self._print_message(f"{name} answers again")

    def _collect_finished(self) -> None:
        """Handle the jobs that have finished."""
        if not self.maybe_finished:
            return
        ids = sorted(self.maybe_finished)
        self.maybe_finished.clear()
        for view in self.client.jobs([str(id) for id in ids], limit=len(ids))["jobs"]:
            job = self.running[view["id"]]
            if view["started_at"] is not None:
                self._on_started(job)
            if view["state"] in wire.FINISHED:
                del self.running[view["id"]]
                self._on_finished(job, view)

    def _on_started(self, job: SubmittedLine) -> None:
        if not job.started:
            job.started = True
            print_line(f"started: {job.line.name};  {job.slot.display_command(job.line.command)}")

    def _on_finished(self, job: SubmittedLine, view: dict[str, Any]) -> None:
        self._free_slot(job.slot)
        if job.started:
            os.makedirs(job.line.directory, exist_ok=True)
            self._report(job, view)
        elif not self.signals:
            self._print_message(f"{job.line.name}: {output.clean(view['cause'])}")
            self._count_failure(job.line)
        self.locks.release(job.line.name)

    def _free_slot(self, slot: Slot) -> None:
        heappush(self.free_slots, (slot.number, slot))
        self.slot_freed = True

    def _report(self, job: SubmittedLine, view: dict[str, Any]) -> None:
        """Report the end of a started job."""
        if not job.slot.node.view["shared"]:
            for path in missing_results(self.options, job.line.directory):
                self._print_message(
                    f"{job.line.name}: --copy-backwards {path}: the job wrote nothing there"
                )
        if view["termination_note"]:
            self._print_message(f"{job.line.name}: {output.clean(view['termination_note'])}")
        if view["state"] == "COMPLETED":
            print_line(f"finished: {job.line.name}; {job.line.command}")
            return
        if view["exit_code"] is None and not self.signals:
            self._print_message(f"{job.line.name}: {output.clean(view['cause'])}")
        self._count_failure(job.line)

    def _count_failure(self, line: Line) -> None:
        self.failed += 1
        print_line(f"failed: {line.name}; {line.command}")

    # -- late lines -----------------------------------------------------------------------

    def _move_late_lines(self) -> None:
        """Move lines that do not start to another slot, or report why they are pending.

        Jobs that came after the slots were computed may block a slot for ever.
        """
        now = time.monotonic()
        late = [
            id for id, job in self.running.items()
            if not job.started and (now >= job.check_at or (job.is_late and self.slot_freed))
        ]  # fmt: skip
        self.slot_freed = False
        if not late or self.signals:
            return
        views = self.client.jobs([str(id) for id in late], limit=len(late))["jobs"]
        pending = {view["id"] for view in views if view["state"] == "PENDING"}
        slots = (
            find_free_slots(self.client, [slot for _, slot in sorted(self.free_slots)])
            if pending
            else []
        )
        for id in sorted(late):
            job = self.running[id]
            job.check_at, job.is_late = now + job.check_interval, id in pending
            if not job.is_late:
                continue
            # Slots without a GPU are equivalent on one node.
            better = [
                slot for slot in slots if slot.gpu is not None or slot.node is not job.slot.node
            ]
            if (not better or job.moved) and not job.explained:
                job.explained = True
                why = output.clean(self.client.why(str(id))["text"])
                self._print_message(f"{job.line.name} waits: {why}")
            if better and self._cancel_pending(id):
                slots.remove(better[0])
                self._move(job, better[0])

    def _cancel_pending(self, id: int) -> bool:
        """Cancel a job if it is still pending."""
        if not self.client.act("cancel", [str(id)], only="waiting")["done"]:
            return False
        del self.running[id]
        self.maybe_finished.discard(id)
        return True

    def _move(self, job: SubmittedLine, slot: Slot) -> None:
        self.free_slots.remove((slot.number, slot))
        heapify(self.free_slots)
        self._free_slot(job.slot)
        moved = SubmittedLine(job.line, slot, job)
        self._on_reply(moved, submit_all(self.client, [self._submission(moved)])[0])

    # -- stopping -------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """First signal: cancel jobs; second: kill them; third: leave them running."""
        self.signals.append(number)
        ids = [str(id) for id in self.running]
        if len(self.signals) == 1:
            print_line("interrupting tasks")
            if ids:
                print_line("waiting for tasks to terminate")
                self.client.cancel(ids)
        elif len(self.signals) == 2 and ids:
            self.client.kill(ids)
        elif ids:
            self._print_message(f"not stopped: job {', '.join(ids)}; see: stoker")
            self.running.clear()

    @staticmethod
    def _print_message(text: str) -> None:
        output.say(f"{NAME}: {text}")
