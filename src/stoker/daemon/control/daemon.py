"""Daemon: one turn collects events, runs the engine, executes instructions and publishes.

Read this file first: it is the table of contents of the daemon.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import TYPE_CHECKING

from stoker.core.events import Event
from stoker.daemon.alarms.monitor import AlarmMonitor
from stoker.daemon.context import RequestContext, daemon_stopping
from stoker.daemon.control.counters import DaemonCounters
from stoker.daemon.control.dispatcher import InstructionDispatcher
from stoker.daemon.control.event_pipeline import EventPipeline
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.control.journal_sync import AfterSync, JournalSync
from stoker.daemon.control.lifecycle import Lifecycle
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.handlers.wait import JobWaiters
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.notifications.notifier import Notifier
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.command_queue import CommandQueue
from stoker.daemon.runtime.lazy import Lazy
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.settings import Settings
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.daemon.training.report_receiver import ReportReceiver
from stoker.engine import Command, CycleResult, Engine
from stoker.faults import FIRST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import StoreError, StoreFenced

if TYPE_CHECKING:
    from stoker.daemon.state_files import StateFiles
    from stoker.daemon.sweeps.controller import SweepController
    from stoker.daemon.workers.forecast_client import ForecastClient
    from stoker.executors.local.executor import LocalExecutor
    from stoker.executors.report_tokens import ReportTokens
    from stoker.executors.user.executor import UserExecutor

MAX_SLEEP_SECONDS = 60.0
"""The wall clock can jump, so begin times are checked now and then."""
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


def collect_garbage_rarely() -> None:
    """Let the collector check jobs and events rarely: they are never circular.

    A full collection with 100,000 jobs takes 45 ms, in which no request is answered.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class Daemon:
    """Runs turns until it is stopped; owns nothing but its parts."""

    def __init__(
        self,
        settings: Settings,
        context: RequestContext,
        engine: Engine,
        reactor: EpollReactor,
        dispatcher: InstructionDispatcher,
        sync: JournalSync,
        publisher: Publisher,
        local: LocalExecutor | UserExecutor,
        registry: ExecutorRegistry,
        gpus: GpuMonitor,
        training: TrainingMonitor,
        alarms: AlarmMonitor,
        notifier: Notifier,
        sweeps: Lazy[SweepController],
        forecasts: Lazy[ForecastClient],
        faults: FaultTracker,
        report_tokens: ReportTokens,
        job_source: JobSource,
        idle_exit: float | None = None,
    ) -> None:
        """`idle_exit`: seconds without work after which the daemon stops."""
        self.settings, self.context = settings, context
        self.engine, self.store = engine, engine.store
        self.reactor, self.dispatcher, self.sync = reactor, dispatcher, sync
        self.publisher, self.local, self.registry, self.gpus = publisher, local, registry, gpus
        self.training, self.sweeps, self.forecasts = training, sweeps, forecasts
        self.notifier = notifier
        self.faults, self.job_source = faults, job_source
        self.report_tokens, self.reports = report_tokens, ReportReceiver(training, registry)
        self.commands = CommandQueue(reactor.wake)
        self.pipeline = EventPipeline(
            registry, training, gpus, alarms, lambda: engine.state, context.logs, faults
        )
        self.lifecycle = Lifecycle(reactor, job_source.on_signal, idle_exit)
        self.waiters = JobWaiters(reactor)
        self.counters = DaemonCounters(engine.state, time.time())
        self.since = time.time()
        self._files: StateFiles | None = None
        self._has_finished = False
        """Whether the loop ended without an error: then everything that happened is recorded."""

    def run(self) -> None:
        """Run turns until the daemon is stopped."""
        self.lifecycle.listen_for_signals()
        collect_garbage_rarely()
        while not self.lifecycle.is_stopped:
            try:
                begin = time.perf_counter()
                self.turn()
                self.counters.observe_turn(time.perf_counter() - begin)
                if not self.lifecycle.is_stopped:
                    self.reactor.wait(self._seconds_until_turn())
            except StoreFenced:
                raise
            except Exception as error:
                if type(self.job_source) is not JobSource:
                    raise  # the process exists for its job source
                self.faults.record("a turn of the daemon", error)
                self.reactor.wait(FIRST_PAUSE_SECONDS)
        self._has_finished = True
        logger.info("stopping; jobs that continue to run: %d", len(self.engine.state.running))

    def turn(self) -> None:
        """Handle what has happened since the last turn."""
        self._finish_sync()
        commands = [*self.job_source.commands(), *self.commands.drain()]
        self.cycle(self.pipeline.collect(), commands)
        while self.pipeline.has_events:  # a start that failed at once
            self.cycle(self.pipeline.collect(), [])
            if self.pipeline.is_failing:
                break
        self._begin_sync()
        self.lifecycle.stop_if_drained(
            bool(self.engine.state.running) or self.training.is_reading_ended
        )
        self.lifecycle.set_busy(self._is_busy())

    def cycle(self, events: list[Event], commands: list[Command]) -> None:
        """Run the engine once, and do what follows from that."""
        may_start = self.lifecycle.may_start
        scheduling_enabled = may_start and self.pipeline.gpus_fresh(bool(commands))
        store_error = self.engine.store_error
        begin = time.perf_counter()
        result = self.engine.cycle(
            events, commands, scheduling_enabled, self.training.metrics.jobs_being_read
        )
        seconds = time.perf_counter() - begin
        self._act_on_safely(result)
        observe = self.counters.observe_cycle
        self.faults.contain("counters", None, observe, result, seconds, self.engine.state)
        if self.engine.store_error != store_error:
            logger.warning("%s", self.engine.store_error or "the journal can be written again")
        self._follow_up(result, may_start)
        self._request_sync()

    def record(self, events: list[Event]) -> None:
        """Enter events in the journal before the loop runs; nothing is started."""
        self._act_on(self.engine.cycle(events, scheduling_enabled=False))

    def _act_on(self, result: CycleResult) -> None:
        """Execute, reply and publish what is in the journal; then raise what ended the cycle."""
        contain = self.faults.contain
        if result.instructions:
            contain("executing instructions", None, self.dispatcher.execute, result.instructions)
        for reply in result.replies:
            contain("answering a request", None, reply.send)
        if result.events:
            publish = self.publisher.publish
            contain("publishing events", None, publish, result.seq, result.events, result.changes)
        result.raise_error()

    def _act_on_safely(self, result: CycleResult) -> None:
        """Act on the result of a cycle; the daemon survives every error but fencing."""
        try:
            self._act_on(result)
        except StoreFenced:
            self.lifecycle.stop()
            raise
        except StoreError as error:
            logger.error("%s", error)  # noqa: TRY400 - the message is complete
        except Exception as error:  # noqa: BLE001 - not even the state could be read back
            self.faults.record("the cycle", error)

    def _follow_up(self, result: CycleResult, may_start: bool) -> None:
        """Let sweeps, waiting requests and the job source follow up on a cycle."""
        state, contain = self.engine.state, self.faults.contain
        if state.boards and may_start:
            contain("sweeps", None, lambda: self.sweeps.get().supply_trials(self.engine.state))
        contain("waiting requests", None, self.waiters.check, state, system_clock(), result.events)
        self.job_source.on_events(result.events)

    def _seconds_until_turn(self) -> float | None:
        """Return when the engine or the job source needs a turn even if nothing happens."""
        engine = self.engine
        waits = [
            MAX_SLEEP_SECONDS if engine.state.has_wall_clock_timers else None,
            self.faults.contain(
                "timers of the cycle", RETRY_SECONDS, engine.seconds_until_due, system_clock()
            ),
            RETRY_SECONDS if engine.must_retry or self.pipeline.is_failing else None,
            self.job_source.next_wakeup(),
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _is_busy(self) -> bool:
        state = self.engine.state
        waiting = self.publisher.has_streams or bool(self.waiters.waiting)
        return bool(state.live) or waiting or self.training.is_reading_ended

    def watch_files(self, files: StateFiles) -> None:
        """Have files and directories created again that are deleted while the loop runs."""
        self._files = files

    # -- durability ---------------------------------------------------------------------

    def _request_sync(self) -> None:
        removable = self.training.cleanup.has_removable and not self.engine.has_unrecorded_events
        if (self.engine.unsynced or removable) and not self.sync.is_requested:
            self.sync.request()

    def _begin_sync(self) -> None:
        """Put commits on disk in the background; what relies on them waits for that."""
        if self.sync.is_due:
            self.engine.mark_synced()
            self.sync.begin(self._take_after_sync())

    def _take_after_sync(self) -> AfterSync:
        starts = self.dispatcher.take_deferred()
        if self.engine.has_unrecorded_events or self.pipeline.has_events:
            # Some ends are not even committed: what proves them stays.
            return AfterSync(starts=starts)
        reports = self.training.cleanup.take_removable()
        return AfterSync(self.registry.take_ended(), reports, starts)

    def _finish_sync(self) -> None:
        """Acknowledge ends and start on other nodes what has waited for the disk."""
        try:
            synced = self.sync.finish()
        except StoreFenced:
            self.lifecycle.stop()
            raise
        if synced is not None:
            self.faults.contain("acknowledging ends", None, self.registry.acknowledge, synced.ended)
            self.dispatcher.release_deferred(synced.starts)

    # -- the end ------------------------------------------------------------------------

    def reject_commands(self) -> None:
        """Reject every command that waits for a reply, and all later ones."""
        self.commands.close()
        for waiter in self.waiters.waiting:
            waiter.reject(daemon_stopping())

    def close(self) -> None:
        """Close all parts, and leave everything in order for the next daemon."""
        self.lifecycle.close()
        self.gpus.close()
        if self._files is not None:
            self._files.close()
        after_sync = self._take_after_sync() if self._has_finished else AfterSync()
        self.training.close()
        if self.sweeps.value is not None:
            self.sweeps.value.sampler.close()
        if self.forecasts.value is not None:
            self.forecasts.value.close()
        self.registry.close()
        synced = self.sync.close(after_sync)
        if synced is not None:
            self.local.acknowledge(synced.ended.get(self.registry.local_name, ()))
        self.notifier.close()
        self.store.close()
        self.local.close()
        is_recorded = not self.engine.has_unrecorded_events and not self.registry.pending
        if is_recorded and not self.engine.state.running:
            self.local.clear_run_directory()
