"""Submissions: start requests as files, and the calls of sbatch that submit their batch jobs."""

from __future__ import annotations

import re
import shlex
import time
from _blake2 import blake2b
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.session.reconnecting import ROOT
from stoker.executors.agent.session.session import agent_program
from stoker.executors.port import SHORTAGE_SECONDS
from stoker.executors.reactor import Timer
from stoker.executors.slurm.commands import SlurmError, SlurmUnanswered
from stoker.executors.slurm.handover.batch_options import (
    MIN_ARRAY_SIZE,
    BatchJob,
    batch_jobs,
    batch_options,
    start_requests,
)

if TYPE_CHECKING:
    from stoker.executors.slurm.handover.executor import HandoverExecutor

UNANSWERED_SECONDS = 20.0
"""Time for a job to be listed whose submission was not answered."""
GATHER_SECONDS = 0.5
"""Time for which attempts wait for others of one array that are being prepared."""
QUEUED_GATHER_SECONDS = 2.0
"""The same while Slurm's queue has attempts that come first: larger arrays are fewer calls."""
MAX_DELAY_SECONDS = 3600.0
"""Longest delay of the next try of a job that sbatch refused again and again."""
LASTING_REFUSAL = re.compile(
    r"node configuration is not available|more processors requested|memory specification"
    r"|invalid generic resource|invalid gres|requested time limit|task count specification"
    r"|node count specification|memory required by task",
    re.IGNORECASE,
)
"""Refusals that a job would get again: no node has what it requests."""
ARRAY_REFUSAL = re.compile(r"array", re.IGNORECASE)
"""Refusals of arrays as such: a smaller MaxArraySize."""


class Submissions:
    """Submits the batch jobs of attempts, one call of sbatch at a time."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor, self.monitor = executor, executor.monitor
        self.max_ahead: int | None = None
        """Attempts that may wait after a refusal, so that one is tried at a time; else None."""
        self._writing: dict[AttemptId, tuple[str, ...]] = {}
        """Attempts whose request is being written, and their options of sbatch."""
        self._ready: dict[tuple[str, ...], list[AttemptId]] = {}
        """Attempts to submit by their options."""
        self._waiting: deque[tuple[BatchJob, tuple[str, ...]]] = deque()
        self._is_calling = False
        self._may_be_arrays = True
        self._refusals: dict[int, int] = {}
        """How often sbatch has refused each job."""
        self._program = ""
        """The name of the agent's program for batch jobs, once it was sent."""
        self._timer = Timer(executor.environment.reactor, self._submit_ready)

    def forget(self) -> None:
        """Assume nothing about the files on the host: they may have been removed."""
        self._program = ""

    def add(self, attempt: RemoteAttempt, launch: Launch, words: Sequence[str]) -> None:
        """Write the start request to a file, then submit the batch job that reads it."""
        executor, id = self.executor, attempt.id
        self._ensure_program()
        self._writing[id] = (
            *batch_options(launch, executor.models or (), executor.grace),
            *executor.options.given_options(launch.priority),
        )

        def on_written(reply: list[str]) -> None:
            options = self._writing.pop(id, ())
            if executor.attempts.get(id) is not attempt:
                pass
            elif reply[0] == "done":
                self._ready.setdefault(options, []).append(id)
            else:
                why = f"no space left on {executor.name}"
                executor.ends.cancel(attempt, why, delay=SHORTAGE_SECONDS)
            self._timer.request(self._gather_seconds())

        path = f"run/{executor.connection.run_name}/{attempt.word}.request"
        text = start_requests(launch, words)
        executor.connection.request(on_written, "write_file", path, text)

    def _gather_seconds(self) -> float:
        """Return for how long an attempt waits for others of one array."""
        if self.executor.jobs.pending_count >= MIN_ARRAY_SIZE:
            return QUEUED_GATHER_SECONDS
        attempts = self.executor.attempts.values()
        others_follow = self._writing or any(not attempt.is_ordered for attempt in attempts)
        return GATHER_SECONDS if others_follow else 0.0

    def on_disconnect(self) -> None:
        """Give up requests whose writing was not confirmed."""
        for id in self._writing:
            self.executor.jobs.on_submitted(id, 0.0)  # Slurm will not list it
        self._writing.clear()

    def _ensure_program(self) -> None:
        """Send the agent's program before its first use."""
        if self._program:
            return
        connection = self.executor.connection
        text = agent_program({
            "NONCE": "batch", "ROOT": ROOT, "INSTALL": self.executor.environment.install,
            "RUN_NAME": connection.run_name, "BATCH": "1",
        })  # fmt: skip
        self._program = f"agent-{blake2b(text.encode(), digest_size=8).hexdigest()}"
        connection.request(None, "write_file", f"scripts/{self._program}", text)

    # -- sbatch -------------------------------------------------------------------------

    def _submit_ready(self) -> None:
        ready, self._ready = self._ready, {}
        for options, ids in ready.items():
            for job in batch_jobs(self.monitor.prefix, ids, self._may_be_arrays):
                self._waiting.append((job, options))
        self._call()

    def _call(self) -> None:
        """Call sbatch for the next batch job."""
        if self._is_calling or not self._waiting:
            return
        job, options = self._waiting.popleft()
        if not any(id in self.executor.attempts for id in job.ids):  # cancelled meanwhile
            self._call()
            return
        self._is_calling = True
        words = (*job.options(), *options)
        run = shlex.quote(self.executor.connection.run_name)

        def on_submitted(error: SlurmError | None) -> None:
            self._is_calling = False
            self._on_submitted(job, options, error)
            self._call()

        self.monitor.submit(words, job.script(run, self._program), on_submitted)

    def _on_submitted(
        self, job: BatchJob, options: tuple[str, ...], error: SlurmError | None
    ) -> None:
        is_unanswered = isinstance(error, SlurmUnanswered)
        if error is None or is_unanswered:
            until = time.monotonic() + (UNANSWERED_SECONDS if is_unanswered else 0.0)
            for id in job.ids:
                self.executor.jobs.on_submitted(id, until)
        if error is None:
            self._set_max_ahead(None)
            for id in job.ids:
                self._refusals.pop(id.job, None)
        elif is_unanswered:
            self._cancel_waiting(str(error))
        elif LASTING_REFUSAL.search(str(error)):
            for id in job.ids:
                self._fail(id, error)
        elif job.is_array:  # a limit may leave room for some of its members
            self._may_be_arrays = not ARRAY_REFUSAL.search(str(error))
            singles = batch_jobs(self.monitor.prefix, job.ids, may_be_arrays=False)
            self._waiting.extendleft(reversed([(single, options) for single in singles]))
        else:
            self._refuse(job.ids[0], error)

    def _fail(self, id: AttemptId, error: SlurmError) -> None:
        """Report a start that sbatch would refuse again."""
        executor, attempt = self.executor, self.executor.attempts.get(id)
        if attempt is None or not attempt.is_alive:
            return
        why = f"sbatch refused it: {error}"
        if attempt.end is not None:
            executor.ends.cancel(attempt, why)
            return
        executor.fail_start(attempt, why)

    def _refuse(self, id: AttemptId, error: SlurmError) -> None:
        """Cancel a start that sbatch refused; the next one is tried in a moment.

        A job that is refused again and again lets others go first.
        """
        attempt, why = self.executor.attempts.get(id), f"sbatch refused it: {error}"
        if attempt is not None and attempt.is_alive:
            count = self._refusals[id.job] = self._refusals.get(id.job, 0) + 1
            delay = min(SHORTAGE_SECONDS * 2**count, MAX_DELAY_SECONDS)
            self.executor.ends.cancel(attempt, why, delay=delay)
        self._cancel_waiting(why)
        self._set_max_ahead(self.executor.waiting_count + 1)

    def _cancel_waiting(self, why: str) -> None:
        """Return the attempts that would meet the same answer to the queue."""
        waiting = [id for job, _ in self._waiting for id in job.ids]
        self._waiting.clear()
        for id in waiting:
            attempt = self.executor.attempts.get(id)
            if attempt is not None and attempt.is_alive:
                self.executor.ends.cancel(attempt, why)

    def _set_max_ahead(self, max_ahead: int | None) -> None:
        if self.max_ahead != max_ahead:
            self.max_ahead = max_ahead
            self.executor.readings.measure_soon()

    def close(self) -> None:
        """Submit no more."""
        self._timer.cancel()
        self._waiting.clear()
