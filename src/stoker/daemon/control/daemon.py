"""The loop: receive, apply, journal, plan, carry out, publish. Read this file first."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker.core import instructions as i
from stoker.core.cluster import Placement
from stoker.core.events import Event
from stoker.core.launch import Launch, launch
from stoker.core.lifecycle import JobState
from stoker.core.slurm_env import SubmitHost
from stoker.core.state import State
from stoker.daemon.context import RequestContext, daemon_stopping
from stoker.daemon.control.hooks import record_path, run_hook
from stoker.daemon.control.journal_sync import AfterSync, JournalSync
from stoker.daemon.daemon_log import log_events
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.handlers.wait import JobWaiters
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.nodes.container_failures import mark_container_failures
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.command_queue import CommandQueue
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.settings import Settings
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.daemon.views.job import job_view
from stoker.engine import (
    Command,
    CycleResult,
    Engine,
)
from stoker.executors.local.executor import LocalExecutor
from stoker.faults import FIRST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import Store, StoreError, StoreFenced

if TYPE_CHECKING:
    from stoker.daemon.state_files import StateFiles
    from stoker.daemon.sweeps.controller import SweepController
    from stoker.daemon.workers.forecast_client import ForecastClient

LONGEST_SLEEP = 60.0
"""The wall clock can jump, so begin times are looked at now and then."""
PROBE_PATIENCE = 1.0
FLEET_EVENTS = "events of the fleet"
"""Where these cannot be told, they are not asked for again before the next turn."""

logger = logging.getLogger(__name__)


class JobSource:
    """A second source of work beside the API; `feed` brings its own."""

    def asks(self) -> list[Command]:
        """Submissions to be made in this turn."""
        return []

    def after(self, events: Sequence[Event]) -> None:
        """What the turn brought."""

    def timeout(self) -> float | None:
        """Seconds until it wants a turn even if nothing happens."""
        return None


class Daemon:
    """Turns the engine for as long as there is somebody or something to serve."""

    def __init__(
        self, store: Store, executor: LocalExecutor, poller: EpollReactor, desk: RequestContext,
        settings: Settings, watch: GpuMonitor, fleet: ExecutorRegistry, scripts: str,
        feeder: JobSource | None = None, faults: FaultTracker | None = None,
    ) -> None:  # fmt: skip
        self.store, self.executor, self.poller, self.desk = store, executor, poller, desk
        self.settings, self.watch, self.fleet, self.scripts = settings, watch, fleet, scripts
        self.home = os.path.dirname(desk.logs)
        self.feeder = feeder or JobSource()
        self.faults = desk.faults = faults or FaultTracker(system_clock)
        self.engine = Engine(store, system_clock, self.faults)
        fleet.compose, fleet.state = self.compose, lambda: self.engine.state
        self.trainings = TrainingMonitor(
            self.home, poller, fleet, fleet.state, TrialScorer(fleet.state)
        )
        fleet.heard = self.trainings.on_report_data
        desk.reading = self.trainings.metrics.jobs_being_read
        self._sweeps: SweepController | None = None
        self._outlooks: ForecastClient | None = None
        self.commands = CommandQueue(poller.wake)
        self.waits = JobWaiters()
        self.readers: list[Callable[[int, Sequence[Event]], None]] = []
        self.since = time.time()
        self.draining = False
        self.starting = True
        """False once the daemon is about to end: what becomes free stays free."""
        self.done = False
        self.finished = False
        """Whether it ended as it should: then all that has happened is on record."""
        self.exit_when_idle: float | None = None
        self.idle_since: float | None = None
        self.unsent: list[i.StartProcess] = []
        """Starts on other machines whose intent is not on disk yet."""
        self.probe_asked: float | None = None
        self.children: list[int] = []
        self.on_signal: Callable[[int], None] = lambda _: self.stop()
        self.sync = JournalSync(store, poller.wake)
        self.files: StateFiles | None = None

    # -- the loop -----------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop."""
        self._listen_for_signals()
        # Jobs and events are never circular: let the collector look at them rarely.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        while not self.done:
            try:
                self.turn()
                if not self.done:
                    self.poller.wait(self.timeout())
            except StoreFenced:
                raise
            except Exception as error:
                if type(self.feeder) is not JobSource:
                    raise  # what `feed` does is what its process is for
                self.faults.record("a turn of the daemon", error)
                self.poller.wait(FIRST_PAUSE_SECONDS)
        self.finished = True
        logger.info("stopping; jobs that continue to run: %d", len(self.engine.state.running))

    def watch_files(self, files: StateFiles) -> None:
        """Have files and directories made again that are deleted while the loop runs."""
        self.files = files

    def turn(self) -> None:
        """One turn: what happened, what it means, what follows."""
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        contain = self.faults.contain
        if self.files is not None:
            contain("state files", None, self.files.check_if_due)
        contain("timers of the local executor", None, self.executor.tick, boot)
        contain("timers of the fleet", None, self.fleet.tick, boot)
        asks = [*self.feeder.asks(), *self.commands.drain()]
        self.cycle(self._facts(), asks)
        while self.executor.facts or self.fleet.pending:
            # Carrying out may bring news at once: a start that cannot be made.
            self.cycle(self._facts(), [])
            if self.faults.is_failing(FLEET_EVENTS):
                break
        self._after_sync()
        self._sync_when_due()
        self._finish_when_drained()

    def cycle(self, facts: list[Event], asks: list[Command]) -> None:
        """Turn the engine once, and tell everybody who waits."""
        state, contain = self.engine.state, self.faults.contain
        may_start = self.starting and not self.draining
        scheduling_enabled = may_start and self._gpus_known(state, bool(asks))
        store_error = self.engine.store_error
        result = self.engine.cycle(
            facts, asks, scheduling_enabled, self.trainings.metrics.jobs_being_read
        )
        self._finish(result)
        if self.engine.store_error != store_error:
            logger.warning("%s", self.engine.store_error or "the journal can be written again")
        if self.engine.state.boards and may_start:
            contain("sweeps", None, lambda: self.sweeps.supply_trials(self.engine.state))
        now = system_clock()
        contain("waiting requests", None, self.waits.check, self.engine.state, now, result.events)
        self.feeder.after(result.events)
        left = self.trainings.cleanup.has_removable and not self.engine.has_unrecorded_events
        if (self.engine.unsynced or left) and not self.sync.is_requested:
            self.sync.request()

    def record(self, events: list[Event]) -> None:
        """Enter events in the journal before the loop runs; nothing is started."""
        self._act_on(self.engine.cycle(events, scheduling_enabled=False))

    def _act_on(self, result: CycleResult) -> None:
        """Execute, reply and publish what is in the journal; then raise what ended the cycle."""
        contain = self.faults.contain
        if result.instructions:
            contain("executing instructions", None, self.carry_out, result.instructions)
        for reply in result.replies:
            contain("answering a request", None, reply.send)
        if result.events:
            contain("publishing events", None, self.publish, result.seq, result.events)
        result.raise_error()

    def _finish(self, result: CycleResult) -> None:
        """Act on the result of a cycle; the daemon survives every error but fencing."""
        try:
            self._act_on(result)
        except StoreFenced:
            self.done = True
            raise
        except StoreError as error:
            logger.error("%s", error)  # noqa: TRY400 - the sentence says it all
        except Exception as error:  # noqa: BLE001 - not even the state could be read back
            self.faults.record("the cycle", error)

    @property
    def sweeps(self) -> SweepController:
        """Loaded when there is one."""
        if self._sweeps is None:
            from stoker.daemon.sweeps.controller import SweepController
            from stoker.daemon.workers.sampler_client import SamplerClient

            self._sweeps = SweepController(self.desk, self.commands.put, SamplerClient(self.poller))
        return self._sweeps

    @property
    def outlooks(self) -> ForecastClient:
        """Loaded when a command needs a forecast."""
        if self._outlooks is None:
            from stoker.daemon.workers.forecast_client import ForecastClient

            self._outlooks = ForecastClient(self.desk, self.poller)
            self.desk.foreseen = self._outlooks.forecast
            self.desk.foreseen_sweep = self._outlooks.forecast_sweep
        return self._outlooks

    def _facts(self) -> list[Event]:
        state, contain = self.engine.state, self.faults.contain
        nothing: list[Event] = []
        local, self.executor.facts = self.executor.facts, []
        facts: list[Event] = []
        for fact in local:  # one by one: an internal error loses no other than its own
            facts += contain("local events", nothing, self.fleet.of_this_machine, [fact])
        facts += contain(FLEET_EVENTS, nothing, self.fleet.facts, state)
        facts = contain(
            "container logs", facts, mark_container_failures, facts, state, self.desk.logs
        )
        facts = contain("training reports", facts, self.trainings.enrich_events, facts)
        if self.watch.has_reading:
            # First what was seen of the GPUs: it tells whose fault it was that memory ran out.
            facts = contain("GPU readings", nothing, self.watch.take_events, state) + facts
            self.probe_asked = None
        return facts

    def _gpus_known(self, state: State, asked: bool) -> bool:
        """Never give out a GPU on the word of an old look at it."""
        if not self.watch.is_stale():
            return True
        if not len(state.line):
            return not asked  # what is asked for now is looked at in the next turn
        now = time.monotonic()
        if self.probe_asked is None:
            self.probe_asked = now
        return now - self.probe_asked > PROBE_PATIENCE

    def timeout(self) -> float | None:
        """How long nothing needs doing, unless something happens."""
        now, contain = system_clock(), self.faults.contain
        state = self.engine.state
        waits = [LONGEST_SLEEP] if state.alarms or state.deadlines else []
        for wait in (
            contain("timers of the cycle", 1.0, self.engine.seconds_until_due, now),
            contain("timers of the local executor", 1.0, self.executor.tick, now.boot),
            contain("timers of the fleet", 1.0, self.fleet.tick, now.boot),
            contain("timers of the GPU watch", 1.0, self.watch.tick, state),
            contain("timers of training reports", 1.0, self.trainings.tick),
            contain("timers of sweeps", 1.0, self._sweeps.tick) if self._sweeps else None,
            contain("timers of eta", 1.0, self._outlooks.tick) if self._outlooks else None,
            1.0 if self.faults.is_failing(FLEET_EVENTS) else None,
            self.waits.timeout(now.boot),
            self.feeder.timeout(),
            1.0 if self.engine.unwritten_events else None,
            self.sync.seconds_left(),
            self.files.seconds_left() if self.files is not None else None,
            PROBE_PATIENCE / 2 if self.probe_asked is not None else None,
            self._idle_left(state),
        ):
            if wait is not None:
                waits.append(wait)  # noqa: PERF401 - a comprehension over ten calls reads worse
        if self.executor.facts or (self.fleet.pending and not self.faults.is_failing(FLEET_EVENTS)):
            return 0.0  # a look around just now has found something
        return min(waits) if waits else None

    def _idle_left(self, state: State) -> float | None:
        if self.exit_when_idle is None:
            return None
        if state.live or self.readers or self.waits.waiting or self.trainings.is_reading_ended:
            self.idle_since = None
            return None
        now = time.monotonic()
        if self.idle_since is None:
            self.idle_since = now
        left = self.idle_since + self.exit_when_idle - now
        if left <= 0:
            logger.info("nothing to do for %g s", self.exit_when_idle)
            self.done = True
        return max(left, 0.0)

    # -- carrying out -------------------------------------------------------------------

    def carry_out(self, wishes: list[i.Instruction]) -> None:
        """Do what the core wishes. Its decisions are on record by now."""
        for wish in wishes:
            try:
                self._carry_out(wish)
            except Exception as error:  # noqa: BLE001 - the other instructions are carried out
                self.faults.record(f"instruction {type(wish).__name__}", error, str(wish))
                if isinstance(wish, i.StartProcess) and not self.fleet.afar(wish.placement):
                    why = f"internal error: {error!r}"
                    self.faults.contain(
                        "cancelling a start", None, self.executor.cancel_start, wish, why
                    )

    def _carry_out(self, wish: i.Instruction) -> None:
        match wish:
            case i.StartProcess():
                self._start(wish)
            case i.EndAttempt():
                self.executor.end(wish)
                self.fleet.end(wish)
            case i.SignalAttempt():
                self.executor.signal(wish)
                self.fleet.signal(wish)
            case i.AskToStop():
                self.trainings.stops.send(wish.job, wish.attempt)
            case i.LetGoOn():
                self.trainings.stops.withdraw(wish.job, wish.attempt)
            case i.SuspendAttempt():
                self.executor.suspend(wish.job, wish.attempt)
                self.fleet.suspend(wish.job, wish.attempt)
            case i.ResumeAttempt():
                self.executor.resume(wish.job, wish.attempt)
                self.fleet.resume(wish.job, wish.attempt)
            case i.AnnounceEnd():
                self._announce_end(wish.job)
            case i.AnnounceEmpty():
                self._hook(self.settings.on_empty, {"event": "empty"})

    def _start(self, wish: i.StartProcess) -> None:
        if not self.fleet.afar(wish.placement):
            if self.files is not None:
                self.faults.contain("state directories", None, self.files.ensure_directories)
            self.executor.start(wish, self.compose(wish, wish.placement))
        elif self.engine.unsynced:
            # Nothing is done on another machine that we might forget: first to disk with it.
            self.unsent.append(wish)
            self.sync.request(0.0)
        else:
            self.fleet.start(wish)

    def _send(self, wishes: list[i.StartProcess]) -> None:
        """These are on disk now; unless they were cancelled meanwhile, they may begin."""
        for wish in wishes:
            job = self.engine.state.jobs.get(wish.job)
            if job is None or job.attempt != wish.attempt or not job.holding:
                continue
            if job.state is JobState.COMPLETING:
                self.fleet.call_off(wish, "cancelled before it was sent")
            else:
                self.faults.contain("instruction StartProcess", None, self.fleet.start, wish)

    def compose(self, wish: i.StartProcess, part: Placement) -> Launch:
        """What exactly is to be started on the machine of this part."""
        state = self.engine.state
        job = state.jobs[wish.job]
        rank = wish.placement.parts.index(part) if wish.placement.more else 0
        return launch(
            job,
            state.spec(job),
            part if rank else replace(part, more=()),
            state.cluster.nodes[part.node],
            system_clock().wall,
            self.desk.logs,
            self.executor.token(wish.job, wish.attempt),
            self.scripts,
            rank,
            self.home,
            tuple(each.node for each in wish.placement.parts),
            SubmitHost(self.desk.node, os.getuid()),
        )

    def _announce_end(self, id: int) -> None:
        job = self.engine.state.jobs.get(id)
        if job is None:
            return
        spec = self.engine.state.spec(job)
        command = spec.on_end or self.settings.on_end
        if not command:
            return
        view = job_view(job, spec, self.engine.state, system_clock(), self.desk.logs)
        self._hook(
            command,
            {
                "event": "end", "job_id": view.label, "job_name": view.name,
                "state": view.state, "code": view.result, "cause": view.cause,
                "log": view.log,
            },
            record_path(self.desk.logs, id),
        )  # fmt: skip

    def _hook(self, command: str | None, values: dict[str, Any], record: str | None = None) -> None:
        for pid in self.children[:]:
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == 0:
                    continue
                if status:
                    code = os.waitstatus_to_exitcode(status)
                    logger.warning("a hook command ended with code %d", code)
            self.children.remove(pid)
        if command:
            try:
                self.children.append(run_hook(command, values, record))
            except OSError as error:
                logger.warning("a hook command cannot be started: %s", error)

    def publish(self, seq: int, events: Sequence[Event]) -> None:
        """Tell readers of the event stream. They never make us wait."""
        contain = self.faults.contain
        contain("logging events", None, log_events, events)
        contain("publishing to the fleet", None, self.fleet.after, self.engine.state, events)
        contain("publishing to training reports", None, self.trainings.on_events, events)
        if self._outlooks is not None:
            contain("publishing to eta", None, self._outlooks.on_events, events)
        for reader in self.readers[:]:
            contain("the event stream", None, reader, seq, events)

    # -- durability ---------------------------------------------------------------------

    def _sync_when_due(self) -> None:
        """Put commits on disk in the background; what relies on them waits for that."""
        if self.sync.is_due:
            self.engine.mark_synced()
            self.sync.begin(self._take_waiting())

    def _take_waiting(self) -> AfterSync:
        starts, self.unsent = self.unsent, []
        if self.engine.has_unrecorded_events or self.executor.facts or self.fleet.pending:
            # Some ends are not even committed: what proves them stays.
            return AfterSync(starts=starts)
        claims, self.executor.settled = self.executor.settled, []
        return AfterSync(
            claims, self.fleet.take_settled(), self.trainings.cleanup.take_removable(), starts
        )

    def _after_sync(self) -> None:
        """What has waited for the disk goes out to other machines."""
        try:
            done = self.sync.finish()
        except StoreFenced:
            self.done = True
            raise
        if done is not None:
            self.faults.contain("acknowledging ends", None, self.fleet.settle, done.remote_ends)
            self._send(done.starts)

    # -- ending -------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        read, write = socket.socketpair()
        read.setblocking(False)
        write.setblocking(False)
        self._signals = (read, write)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.poller.add_reader(read.fileno(), self._signalled)

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._signals[0].recv(64):
                logger.info("received %s", signal.Signals(number).name)
                self.on_signal(number)

    def stop(self) -> None:
        """Leave running jobs to the keeper and end."""
        self.done = True

    def drain(self) -> None:
        """Start nothing new; end when what runs has ended."""
        self.draining = True

    def _finish_when_drained(self) -> None:
        if self.draining and not self.engine.state.running and not self.trainings.is_reading_ended:
            self.done = True

    def leave(self) -> None:
        """Nobody's question will be answered here any more: say so to all who wait."""
        self.commands.close()
        for wait in self.waits.waiting:
            wait.reject(daemon_stopping())

    def close(self) -> None:
        """Leave everything in order for the next daemon."""
        self.watch.close()
        if self.files is not None:
            self.files.close()
        waiting = self._take_waiting() if self.finished else AfterSync()
        self.executor.settled = []
        self.trainings.close()
        if self._sweeps is not None:
            self._sweeps.close()
        if self._outlooks is not None:
            self._outlooks.close()
        self.fleet.close()
        self.sync.close(waiting)
        self.store.close()
        self.executor.close(
            finished=not self.engine.state.running, recorded=not self.engine.has_unrecorded_events
        )
