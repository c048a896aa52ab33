"""PilotExecutor: attempts in a Slurm allocation that joins as a node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from stoker.core.events import Event
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.port import (
    NODE,
    Allocation,
    AttemptId,
    AttemptRecords,
    ExecutorSink,
    NodeReading,
    PartHost,
)
from stoker.executors.slurm.commands import SlurmError, SlurmJob, SlurmUnanswered
from stoker.executors.slurm.monitor import SlurmMonitor
from stoker.executors.slurm.transport import PilotTransport

NEW_SECONDS = 60.0
"""A pilot that Slurm does not know is submitted if it was added within this time; an older one was
submitted by an earlier daemon, and has ended."""
UNANSWERED_SECONDS = 20.0
"""Time until a submission that was not answered is repeated, unless Slurm lists the job."""
MAX_MISSING_POLLS, MISSING_SECONDS = 3, 5.0
"""Polls in a row, and their time, after which a job that Slurm does not list any more is gone."""
MIN_CHANGE_SECONDS = 300.0
"""Smaller changes of an expected start are not shown."""
MAX_READ_FAILURES = 3
"""Failed connections after which the records of an ended pilot are given up."""


class Pilot(Struct, frozen=True):
    """One allocation."""

    name: str
    """The name of its node."""
    job_name: str
    """Its name in Slurm, by which it is found again: Slurm may reuse its ids."""
    options: tuple[str, ...]
    """Options of sbatch."""
    added_at: float


class EndedNodeSink:
    """Passes on what the records of an ended pilot tell of attempts: the node itself is gone."""

    def __init__(self, sink: ExecutorSink, on_event: Callable[[], None]) -> None:
        self.sink, self.on_event = sink, on_event

    def event(self, event: Event) -> None:
        """Pass on an event of an attempt."""
        self.sink.event(event)
        self.on_event()

    def report_data(self, attempt: AttemptId, rank: int | None, offset: int, data: bytes) -> None:
        """Pass on new data of a training report."""
        self.sink.report_data(attempt, rank, offset, data)

    def checkpoints_left_behind(self, attempt: AttemptId) -> None:
        """Do nothing: no job can resume on this node."""

    def node_up(self, ended: Sequence[AttemptId]) -> None:
        """Do nothing."""

    def node_down(self, why: str) -> None:
        """Do nothing."""

    def node_gone(self, why: str) -> None:
        """Pass on that the node is gone."""
        self.sink.node_gone(why)

    def node_reading(self, reading: NodeReading) -> None:
        """Do nothing: it was measured on another host."""

    def reading_failed(self, error: str | None) -> None:
        """Do nothing."""

    def ready(self, attempt: AttemptId, rank: int, port: int, host: PartHost = NODE) -> None:
        """Do nothing."""


class PilotExecutor(AgentExecutor):
    """Submits a pilot, connects to its agent while it runs, and reports when it is over."""

    def __init__(
        self,
        pilot: Pilot,
        monitor: SlurmMonitor,
        environment: AgentEnvironment,
        records: AttemptRecords,
        shares_files: bool,
    ) -> None:
        self.pilot, self.monitor = pilot, monitor
        self.slurm = PilotTransport(monitor, pilot.job_name, environment.install)
        super().__init__(pilot.name, self.slurm, environment, records, shares_files)
        self._is_submitting = self._is_submitted = self._is_gone = False
        self._submit_at = 0.0
        """Monotonic time before which it is not submitted again."""
        self._missing, self._listed_at = 0, 0.0
        """Polls in a row that did not list the job, and the monotonic time of the last that did."""
        self._shown_start = 0.0
        """The expected start that was reported last."""

    @property
    def allocation(self) -> Allocation | None:
        """The allocation as Slurm described it last."""
        job = self.slurm.job
        if job is None:
            return None
        start = job.expected_start(time.time()) if job.is_pending else job.start
        return Allocation(job.id, job.is_pending, job.reason, start, job.end)

    def open(self, sink: ExecutorSink) -> None:
        """Find the allocation, or submit it; connect when it runs."""
        self._sink = sink
        self.monitor.watch(self.pilot.job_name, self)

    def on_job(self, job: SlurmJob | None) -> None:
        """Handle what Slurm says of the allocation."""
        if self.end_reason is not None:
            return
        if job is None:
            self._on_unknown()
            return
        self._is_submitted, self._missing, self._listed_at = True, 0, time.monotonic()
        self.slurm.job = job
        if job.is_pending:
            self._wait_for(self._queue_text(job))
        elif job.is_running:
            if not self.connection.is_open:
                self.connection.open()
        else:
            self._end(f"Slurm job {job.id} has ended: {job.state}")

    def _queue_text(self, job: SlurmJob) -> str:
        """Return why Slurm has not started it; small changes of the expected start are left out."""
        start = job.expected_start(time.time())
        if start is None or abs(start - self._shown_start) > MIN_CHANGE_SECONDS:
            self._shown_start = start or 0.0
        why = "it has not been considered yet" if job.reason == "None" else job.reason
        reason = f"Slurm job {job.id}: {why}"
        if not self._shown_start:
            return reason
        return f"{reason}; expected start {_clock_time(self._shown_start)}"

    def _on_unknown(self) -> None:
        if self._is_submitting:
            return
        if self._is_submitted:
            self._missing += 1
            is_missing = time.monotonic() - self._listed_at >= MISSING_SECONDS
            if is_missing and self._missing >= MAX_MISSING_POLLS and not self.connection.is_up:
                self._end("Slurm does not know its job any more")
        elif time.monotonic() < self._submit_at:
            self.monitor.timer.request(self._submit_at - time.monotonic())
        elif time.time() - self.pilot.added_at < NEW_SECONDS:
            self._is_submitting = True
            self.monitor.submit(self.pilot.options, batch_script(self.pilot), self._on_submitted)
        else:
            self._end("its Slurm job has ended")

    def _on_submitted(self, error: SlurmError | None) -> None:
        self._is_submitting = False
        if self._is_submitted:
            return  # it was listed before sbatch ended
        if error is None:
            self._is_submitted, self._listed_at = True, time.monotonic()
        elif isinstance(error, SlurmUnanswered):
            self._submit_at = time.monotonic() + UNANSWERED_SECONDS
            self._wait_for(str(error))  # the next polls tell whether it was accepted
        else:
            self._end(f"sbatch refused it: {error}")

    def _wait_for(self, reason: str) -> None:
        self.slurm.waiting_for = reason
        self.sink.node_down(reason)

    def on_down(self, why: str) -> None:
        """Find out whether the allocation is over."""
        super().on_down(why)
        if self.end_reason is None:
            self.monitor.poll_soon()
        elif self.slurm.has_no_records or self.connection.failures >= MAX_READ_FAILURES:
            self._report_gone()

    def _end(self, why: str) -> None:
        """Report that the node is gone, after the ends of the attempts that left records."""
        self.end_reason = why
        self.connection.close()
        super().on_down(why)
        if not self.attempts:
            self._report_gone()
            return
        self.slurm.reads_records, self.connection.failures = True, 0
        self._sink = EndedNodeSink(self.sink, self._on_attempt_event)
        self.connection.open()

    def _on_attempt_event(self) -> None:
        if not self.attempts:
            self._report_gone()

    def _report_gone(self) -> None:
        """Report the end of the node, once: the next pilot may have its name."""
        self.connection.close()
        if not self._is_gone:
            self._is_gone = True
            self.sink.node_gone(self.end_reason or "")

    def remove(self) -> None:
        """Release the allocation, and delete its files."""
        self.monitor.unwatch(self.pilot.job_name)
        self.monitor.clean_up_later(clean_up_script(self.slurm))
        super().close()

    def close(self) -> None:
        """Close the connection; the allocation and its attempts continue."""
        self.monitor.close()
        super().close()


def batch_script(pilot: Pilot) -> str:
    """Return the batch script of a pilot."""
    with open(os.path.join(os.path.dirname(__file__), "pilot.sh")) as file:
        return f"#!/bin/sh\nSTOKER_PILOT={pilot.job_name}\n{file.read()}"


def sbatch_options(job_name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the options with which a pilot is submitted."""
    return (
        f"--job-name={job_name}", "--no-requeue", "--output=/dev/null", "--chdir=/", *words
    )  # fmt: skip


def _clock_time(at: float) -> str:
    """Return a wall time as 14:05, with the date unless it is today."""
    moment, today = time.localtime(at), time.localtime()
    is_today = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", moment)


def clean_up_script(transport: PilotTransport) -> str:
    """Return a shell script that deletes what an ended pilot left in a shared home directory.

    An attempt that began here began nowhere else, so that its working directory is not in use.
    """
    return f"""
cd {transport.run_directory} || exit 0
for file in *.begun; do
    [ -e "$file" ] && rm -rf ../../work/{transport.install}."${{file%.begun}}"
done
rm -rf {transport.run_directory}
"""
