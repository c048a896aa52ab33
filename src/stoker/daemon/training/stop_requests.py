"""StopRequests: ask attempts to stop at a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from stoker.core.launch import training_env as contract
from stoker.core.model.job import AttemptId, Job
from stoker.core.state.state import State
from stoker.daemon.reports.attempt_report import AttemptReport, current_report
from stoker.executors.linux import control_files


class RemoteControl(Protocol):
    """Writes control files for attempts on remote nodes."""

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the part of an attempt with this rank."""


class StopRequests:
    """Sends and withdraws stop requests, on this node by control files."""

    def __init__(
        self,
        home: str,
        remote: RemoteControl,
        state: Callable[[], State],
        reports: Mapping[int, AttemptReport],
        on_written: Callable[[AttemptId], None],
    ) -> None:
        """`on_written` is called with an attempt after its report directory was created."""
        self.home, self.remote, self.state = home, remote, state
        self.reports, self.on_written = reports, on_written

    def send(self, id: int, attempt: int) -> None:
        """Ask an attempt to stop at its next checkpoint; may be repeated."""
        job = self.state().running.get(id)
        if job is None or job.attempt != attempt:
            return
        stop = job.progress.stop
        reason = " ".join(stop.reason.split()) if stop is not None else "asked to stop"
        if is_local(job, self.state()):
            self._write(job, control_files.STOP, reason)
        else:
            self.remote.send_control(AttemptId(id, attempt), 0, control_files.STOP, reason)

    def withdraw(self, id: int, attempt: int) -> None:
        """Withdraw a stop request unless the processes have agreed on a stop epoch.

        On a remote node it stays: an attempt that stops there without need is requeued at once.
        """
        job = self.state().running.get(id)
        if job is None or job.attempt != attempt or not is_local(job, self.state()):
            return
        current = current_report(self.reports, job)
        if current is None or current.report.stop_at is None:
            control_files.remove_stop(contract.report_directory(self.home, job))

    def forward_stop_epoch(self, job: Job, current: AttemptReport) -> None:
        """Send the stop epoch that the first part has reported to the parts on other nodes."""
        epoch = current.report.stop_at
        if epoch is None or epoch == current.forwarded_stop_epoch or job.placement is None:
            return
        current.forwarded_stop_epoch = epoch
        remotes = self.state().record.remotes
        for rank, part in enumerate(job.placement.other_parts, 1):
            if part.node in remotes:
                self.remote.send_control(current.key, rank, control_files.STOP_AT, str(epoch))
            else:
                self._write(job, control_files.STOP_AT, str(epoch))

    def _write(self, job: Job, name: str, text: str) -> None:
        control_files.write(contract.report_directory(self.home, job), name, text, job.label)
        self.on_written(AttemptId(job.id, job.attempt))


def is_local(job: Job, state: State) -> bool:
    """Return True if the daemon itself reads the report of a job, which its first part writes.

    A report on another node, or of another user, is sent to the daemon.
    """
    is_here = job.placement is not None and job.placement.node not in state.record.remotes
    return is_here and state.spec(job).uid is None
