"""InstructionDispatcher: instruction -> executor, training or hook."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.events import instructions as i
from stoker.core.model.job import AttemptId, JobState
from stoker.daemon.control.hooks import HookRunner
from stoker.daemon.control.journal_sync import JournalSync
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.training.stop_requests import StopRequests
from stoker.engine import Engine
from stoker.faults import FaultTracker


class InstructionDispatcher:
    """Executes instructions, which are in the journal by now.

    A start on another node is held until the journal is on disk: a daemon must not forget what
    runs there.
    """

    def __init__(
        self,
        engine: Engine,
        registry: ExecutorRegistry,
        cancel_start: Callable[[AttemptId, str], None],
        grace: float,
        stops: StopRequests,
        hooks: HookRunner,
        sync: JournalSync,
        faults: FaultTracker,
    ) -> None:
        """`cancel_start` requeues a job on this node after its start raised an error."""
        self._engine, self._registry, self._stops, self._hooks = engine, registry, stops, hooks
        self._cancel_start, self._grace = cancel_start, grace
        self._sync, self._faults = sync, faults
        self._deferred: list[i.StartProcess] = []

    def execute(self, instructions: list[i.Instruction]) -> None:
        """Execute instructions in order; one that fails keeps no other from being executed."""
        for instruction in instructions:
            try:
                self._execute(instruction)
            except Exception as error:  # noqa: BLE001 - the other instructions are executed
                name = f"instruction {type(instruction).__name__}"
                self._faults.record(name, error, str(instruction))
                self._cancel_failed_start(instruction, error)

    def _execute(self, instruction: i.Instruction) -> None:
        match instruction:
            case i.StartProcess():
                self._start(instruction)
            case i.TerminateAttempt():
                grace = 0.0 if instruction.at_once else self._grace
                self._registry.terminate(_attempt(instruction), grace)
            case i.SignalAttempt(signal=number, if_caught=if_caught, to_script=to_script):
                self._registry.signal(_attempt(instruction), number, if_caught, to_script)
            case i.RequestStop(job=job, attempt=attempt):
                self._stops.send(job, attempt)
            case i.WithdrawStop(job=job, attempt=attempt):
                self._stops.withdraw(job, attempt)
            case i.SuspendAttempt():
                self._registry.suspend(_attempt(instruction))
            case i.ResumeAttempt():
                self._registry.resume(_attempt(instruction))
            case i.RunJobEndHook(job=job):
                self._hooks.run_job_end(job)
            case i.RunQueueEmptyHook():
                self._hooks.run_queue_empty()

    def _start(self, start: i.StartProcess) -> None:
        if self._registry.is_remote(start.placement) and self._engine.unsynced:
            self._deferred.append(start)
            self._sync.request(0.0)
        else:
            self._registry.start(start)

    def _cancel_failed_start(self, instruction: i.Instruction, error: Exception) -> None:
        """Give back the devices of a job that was not started, because of an internal error."""
        if not isinstance(instruction, i.StartProcess):
            return
        if not self._registry.is_remote(instruction.placement):
            why, attempt = f"internal error: {error!r}", _attempt(instruction)
            self._faults.contain("cancelling a start", None, self._cancel_start, attempt, why)

    def take_deferred(self) -> list[i.StartProcess]:
        """Return and remove the starts that wait for the next sync."""
        deferred, self._deferred = self._deferred, []
        return deferred

    def release_deferred(self, starts: list[i.StartProcess]) -> None:
        """Execute starts that are on disk now, unless they were cancelled meanwhile."""
        for start in starts:
            job = self._engine.state.jobs.get(start.job)
            if job is None or job.attempt != start.attempt or not job.holding:
                continue
            if job.state is JobState.COMPLETING:
                self._registry.abort_start(start, "cancelled before it was sent")
            else:
                self._faults.contain("instruction StartProcess", None, self._registry.start, start)


def _attempt(instruction: i.AttemptInstruction) -> AttemptId:
    return AttemptId(instruction.job, instruction.attempt)
