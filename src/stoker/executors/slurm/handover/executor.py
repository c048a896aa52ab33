"""HandoverExecutor: one Slurm job per attempt; Slurm chooses the host and the GPUs.

The agent on the host of Slurm's commands reads and writes the files of attempts. The batch job of
an attempt is another agent, whose only request is the start: it claims the attempt, runs it and
records its exit in the home directory that the hosts of the cluster share. So a second submission
of an attempt has no effect, and the record of the exit decides, whatever Slurm says.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from stoker.core.launch.launch import Launch
from stoker.core.model.resources import (
    CPU,
    GPU,
    MEMORY,
    POOL_PREFIX,
    DeviceFacts,
    NodeFacts,
    PlacementMode,
)
from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.attempt_states import AttemptStates
from stoker.executors.agent.executor import AgentEnvironment, AgentExecutor
from stoker.executors.agent.node_readings import AgentReading
from stoker.executors.pilot_shape import MAX_AHEAD, MIN_AHEAD
from stoker.executors.port import (
    AttemptId,
    AttemptRecords,
    Capability,
    ExecutorSink,
    RecoverableAttempt,
)
from stoker.executors.slurm.handover.job_tracker import JobTracker
from stoker.executors.slurm.handover.login_transport import LoginTransport
from stoker.executors.slurm.handover.states import HandoverStates
from stoker.executors.slurm.handover.submissions import Submissions
from stoker.executors.slurm.monitor import SlurmMonitor
from stoker.executors.slurm.options import SlurmOptions

ENDLESS = 1_000_000_000
"""Capacity of the pools of a cluster: Slurm's queue and `ahead` bound what is handed over."""
STARTS_SECONDS = 10.0
"""Time whose starts count for `ahead`: from the end of a short job it takes seconds until another
one is in Slurm's queue, which must not run empty meanwhile."""


class HandoverReading(Struct, frozen=True):
    """A cluster that answers, and the models of its GPUs."""

    models: tuple[str, ...]
    ahead: int
    pilot: NodeFacts | None = None
    """What the pilots of the cluster are; None: it has none."""
    cores: int = 0
    memory_total: int = 0
    memory_available: int = 0

    def node_facts(self, name: str) -> NodeFacts:
        """Return pools without end: Slurm decides what is free."""
        any_model = DeviceFacts(POOL_PREFIX, ENDLESS, model=" ".join(self.models) or None)
        plain = DeviceFacts(POOL_PREFIX, ENDLESS)
        types: dict[str, tuple[DeviceFacts, ...]] = {CPU: (plain,), MEMORY: (plain,)}
        if self.models:
            types[GPU] = (any_model,)
        return NodeFacts(
            name, types, placement=PlacementMode.DELEGATED, max_in_flight=self.ahead,
            pilot=self.pilot,
        )  # fmt: skip


class HandoverExecutor(AgentExecutor):
    """Submits a Slurm job for each attempt and reports what becomes of it."""

    def __init__(
        self,
        name: str,
        monitor: SlurmMonitor,
        environment: AgentEnvironment,
        records: AttemptRecords,
        shares_files: bool,
        options: SlurmOptions,
    ) -> None:
        self.monitor, self.options = monitor, options
        self.models: tuple[str, ...] | None = None
        """Models of the cluster's GPUs; None until Slurm has listed them."""
        self._answers = False
        """Whether the last poll succeeded."""
        self._starts: deque[float] = deque()
        """Monotonic times of the last starts."""
        self._reported_ahead = MIN_AHEAD
        super().__init__(name, LoginTransport(monitor, name), environment, records, shares_files)
        self.jobs, self.submissions = JobTracker(self), Submissions(self)

    def _new_states(self) -> AttemptStates:
        return HandoverStates(self)

    @property
    def capabilities(self) -> Capability:
        """Everything but device binding and barriers."""
        return super().capabilities & ~(Capability.BIND_DEVICES | Capability.BARRIER)

    def open(self, sink: ExecutorSink) -> None:
        """Poll the cluster, and connect to the host of its commands."""
        super().open(sink)
        self.monitor.open(self._on_polled)

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look for the Slurm jobs of these attempts."""
        for attempt in attempts:
            self.jobs.watch(attempt.id, is_submitting=False)
        super().recover(attempts)

    # -- the cluster --------------------------------------------------------------------

    def _on_polled(self, error: str | None) -> None:
        if error is not None:
            self._answers = False
            self._is_reported_up = False
            self.sink.node_down(error)
            return
        self.jobs.unwatch_ended()
        if not self._answers:
            self._answers = True
            self.monitor.pool.submit(self.monitor.commands.gpu_models, self._on_models)

    def _on_models(self, models: tuple[str, ...] | Exception) -> None:
        if not isinstance(models, Exception):
            self.models = models
        self._report_up()
        self.readings.measure_soon()

    def _report_up(self) -> None:
        if self._answers and self.models is not None:
            super()._report_up()

    def report_reading(self, reading: AgentReading) -> None:
        """Report the cluster instead of the host of its commands."""
        if self._answers and self.models is not None:
            shape = self.options.pilot
            pilot = shape.node_facts("pilot") if self.options.has_pilots else None
            self._reported_ahead = self.ahead
            self.sink.node_reading(HandoverReading(self.models, self._reported_ahead, pilot))

    @property
    def ahead(self) -> int:
        """How many attempts may wait in Slurm's queue; by default it grows in few steps."""
        ahead = self.options.ahead
        if ahead is None:
            oldest = time.monotonic() - STARTS_SECONDS
            while self._starts and self._starts[0] < oldest:
                self._starts.popleft()
            running = len(self.attempts) - self.waiting_count
            ahead = MIN_AHEAD
            while ahead < 2 * max(running, len(self._starts)):
                ahead *= 2
            ahead = min(ahead, MAX_AHEAD)
        limit = self.submissions.max_ahead
        return ahead if limit is None else min(ahead, limit)

    def on_started(self) -> None:
        """Count a start; report at once if more attempts may wait now."""
        self._starts.append(time.monotonic())
        if self.ahead > self._reported_ahead:
            self.readings.measure_soon()

    @property
    def waiting_count(self) -> int:
        """Number of attempts that do not run yet."""
        return sum(attempt.pid is None for attempt in self.attempts.values())

    def on_up(self) -> None:
        """Send the program again: its file may have been removed."""
        self.submissions.forget()
        super().on_up()

    def on_down(self, why: str) -> None:
        """Give up requests that were being written."""
        self.submissions.on_disconnect()
        super().on_down(why)

    # -- instructions -------------------------------------------------------------------

    def send_start(self, attempt: RemoteAttempt, launch: Launch, *words: str) -> None:
        """Submit a batch job that sends the start request to an agent of its own."""
        attempt.is_observed = False
        self.jobs.watch(attempt.id, is_submitting=True)
        self.submissions.add(attempt, launch, words)

    def fail_start(self, attempt: RemoteAttempt, why: str) -> None:
        """Report a start that would fail again."""
        self.ends.forget(attempt)
        self.ends.expect_acknowledgement(attempt.id)
        self.ends.fail(attempt.id, attempt.part, why)

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate an attempt; one that has not begun never will."""
        super().terminate(attempt, grace)
        known = self.attempts.get(attempt)
        if known is not None and known.is_ordered and known.is_alive:
            self.jobs.revoke(known)

    def refresh(self) -> None:
        """Poll the cluster and connect now."""
        super().refresh()
        self.monitor.timer.request(0.0)

    def remove(self) -> None:
        """Cancel the jobs that are left."""
        self.jobs.unwatch_all()
        self.monitor.remove_listener(self._on_polled)
        if not self.options.has_pilots:
            self.monitor.retire()
        super().close()

    def close(self) -> None:
        """Close the connection; jobs continue."""
        self.jobs.close()
        self.submissions.close()
        self.monitor.close()
        super().close()
