"""A feed as the daemon: it holds the state, listens on the socket and runs its own lines."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial

from msgspec import to_builtins

from stoker import places, wire
from stoker.client.errors import StokerError
from stoker.core.cluster.node import Node
from stoker.core.events import Event, JobsSubmitted
from stoker.core.model.job import Job, JobState
from stoker.core.model.units import BadValue
from stoker.core.state.state import State
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.handlers.job_actions import cancel, kill
from stoker.daemon.paths import DaemonPaths
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.daemon.selectors import find_devices
from stoker.daemon.state_lock import Locked, StateLock
from stoker.daemon.submission.submit import resubmit_line, submit_jobs
from stoker.daemon.views.job import job_view
from stoker.engine import Command, CommandRejected, CommandResult, Instant
from stoker.executors.linux.subreaper import become_subreaper
from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.submit_environment import in_use_warning
from stoker.schema.job import SubmitReply
from stoker.schema.requests import Cancel, Kill, Submit, What
from stoker.store.port import StoreError
from stoker.wire import JsonObject


class StateTaken(Exception):
    """Another daemon locked the state first."""


def run_foreground(work: JobStream, environment: JsonObject, resources: str | None) -> int:
    """Run a daemon until the input has ended and its jobs have finished."""
    try:
        return _run(work, environment, resources)
    except (BadValue, StoreError) as error:
        usual = wire.EXIT_USAGE if isinstance(error, BadValue) else wire.EXIT_FAILED
        raise StokerError(str(error), getattr(error, "exit_code", usual)) from None


def _run(work: JobStream, environment: JsonObject, resources: str | None) -> int:
    state = places.secure_dir(places.state_dir())
    try:
        lock = StateLock(state)
    except Locked:
        raise StateTaken from None
    kept = DaemonPaths()
    from stoker.daemon.bootstrap import build_daemon, build_http_server, watch_state

    source = ForegroundSource(work, environment)
    loop = build_daemon(kept, None, resources, extra_gpus=work.gpu_names, job_source=source)
    server = build_http_server(loop, "feed")
    watch_state(loop, kept, lock, server)
    become_subreaper()
    source.begin(loop)
    try:
        loop.run()
    finally:
        others = loop.engine.state.live
        server.close()
        loop.close()
        lock.release()
        if others and not source.lost:
            # Jobs that were submitted by other commands, or left by an internal error, continue
            # with a daemon of their own.
            from stoker.client.autostart import start_daemon

            start_daemon()
    if source.error is not None:
        raise source.error
    if not source.stopping and (source.unfinished or not work.lines.is_done):
        raise StokerError(
            "The daemon was stopped by another command: running lines continue, "
            "the remaining lines are not run."
        )
    return source.exit_code()


class SubmitBatch:
    """Submits a batch that is chosen when the events of the turn have been applied.

    So a device that became free is given to the next line in the same turn, in one commit.
    """

    def __init__(self, source: ForegroundSource, first: bool) -> None:
        self.source, self.first = source, first
        self.batch: Batch | None = None

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Choose the batch, unless that was done before: after a full disk it is handled again."""
        source = self.source
        if self.batch is None:
            if self.first and source.work.waits_for_ends:
                source.collect(state, source.unfinished)
            self.batch = source.work.next_batch(source.pending(state))
        return source.submission(self.batch, state, now) if self.batch else CommandResult()

    def reply(self, receipt: SubmitReply) -> None:
        """Take note of the ids of the batch."""
        if self.batch is not None:
            self.source.on_submitted(self.batch, receipt)

    def reject(self, rejection: CommandRejected) -> None:
        """Pass the rejection on."""
        if self.batch is not None:
            self.source.on_rejected(self.batch, rejection)


class ForegroundSource(JobSource):
    """Turns lines into jobs, a few at a time, and counts their outcomes."""

    loop: Daemon
    """Set by `begin`: the daemon is built with its source."""

    def __init__(self, work: JobStream, environment: JsonObject) -> None:
        self.work, self.environment = work, environment
        self.lines = work.lines
        self.has_begun = False
        self.unfinished: set[int] = set()
        """Jobs of this feed that have not finished."""
        self._validated: dict[int, tuple[JobsSubmitted, Node]] = {}
        """The last line that was validated in full, by its options."""
        self.error: Exception | None = None
        self.lost = False
        """Whether nothing can be written any more, not even that a job was cancelled."""
        self.interrupted = 0
        self.stopping = False
        self.cancelling = False
        self.watching = False

    def begin(self, loop: Daemon) -> None:
        """Start submitting to a daemon; warn of GPUs that foreign processes use."""
        loop.turn()  # without lines: signals are handled only while the loop runs
        self.loop, self.has_begun = loop, True
        state = loop.engine.state
        for name in self.work.gpu_names:
            for _, device in find_devices(state.cluster, f"{loop.context.node}/{name}"):
                if device.foreign_user is not None:
                    self.work.warn(in_use_warning(name, device.foreign_user))
        if not any(node.types.get("gpu") for node in state.cluster.nodes.values()):
            self.work.on_no_gpus()

    # -- JobSource ----------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Return a command for each batch that may be submitted now."""
        if not self.has_begun:
            return []
        if self.stopping:
            self._stop_if_over()
            return []
        pending = self.pending(self.loop.engine.state)
        self._watch_input(self.work.wants_input(pending))
        slots = self.work.free_slots(pending, self.loop.registry.pending_exits)
        return [SubmitBatch(self, number == 0) for number in range(slots)]

    def pending(self, state: State) -> int:
        """Return how many jobs of this feed have not started."""
        return len(self.unfinished) - len(state.running)

    def submission(self, batch: Batch, state: State, now: Instant) -> CommandResult:
        """Return the result of submitting a batch."""
        loop = self.loop
        line = batch.what.get("line")
        node = state.cluster.nodes[loop.context.node]
        previous, previous_node = self._validated.get(id(batch.options), (None, None))
        is_known = previous_node is node and previous is not None and previous.spec in state.specs
        if line is not None and previous is not None and is_known:
            return resubmit_line(previous, line, state, now)
        body = Submit(what=What(**batch.what), options=batch.options, **self.environment)
        decision = submit_jobs(loop.context, body, state, now, durable=False)
        if line is not None:
            event = decision.events[-1]
            assert type(event) is JobsSubmitted
            self._validated[id(batch.options)] = (event, node)
        return decision

    def on_submitted(self, batch: Batch, receipt: SubmitReply) -> None:
        """Take note of the ids of a batch."""
        assert receipt.first is not None
        assert receipt.last is not None
        self.unfinished.update(range(receipt.first, receipt.last + 1))
        self.work.on_submitted(batch, receipt.first, receipt.last)

    def on_rejected(self, batch: Batch, rejection: CommandRejected) -> None:
        """Continue or stop, as the stream decides."""
        self.error = self.work.on_rejected(
            batch, StokerError(rejection.message, code=rejection.code)
        )
        if self.error is None:
            return
        if rejection.code == "unavailable":
            self.stopping = self.lost = True
            self.loop.lifecycle.stop()
        else:
            self._interrupt()

    def _watch_input(self, enable: bool) -> None:
        """Wait for input only while more can be submitted."""
        enable = enable and not self.lines.is_regular and not self.lines.is_at_end
        if enable and not self.watching:
            try:
                self.loop.reactor.add_reader(self.lines.fd, self.lines.read)
            except PermissionError:
                self.lines.is_regular = True  # /dev/null and the like: always readable
                return
        elif self.watching and not enable:
            self.loop.reactor.remove_reader(self.lines.fd)
        self.watching = enable

    def on_events(self, events: Sequence[Event]) -> None:
        """Count the lines of this feed that have finished."""
        if not self.has_begun:
            return
        state = self.loop.engine.state
        ids = (getattr(event, "job", None) for event in events)
        self.collect(state, {id for id in ids if type(id) is int and id in self.unfinished})
        self.work.show_progress(lambda: sum(id in self.unfinished for id in state.running))
        self._stop_if_over()

    def collect(self, state: State, ids: set[int]) -> None:
        """Count the finished jobs among `ids`, in the order in which they ended."""
        ended = [job for id in ids if (job := state.jobs.get(id)) is not None and job.finished]
        for job in sorted(ended, key=lambda job: job.ended_at or 0.0):
            self.unfinished.discard(job.id)
            started = job.started_at is not None or bool(job.past)
            self.work.on_finished(
                FinishedJob(job.id, job.state.value, started, job.note, partial(self._view, job))
            )

    def _view(self, job: Job) -> JsonObject:
        loop = self.loop
        spec = loop.engine.state.spec(job)
        view = job_view(job, spec, None, system_clock(), loop.context.logs, tail=5)
        return dict(to_builtins(view))

    def next_wakeup(self) -> float | None:
        """Return when progress is to be shown; 0 while more can be submitted."""
        if not self.stopping and self.work.free_slots(self.pending(self.loop.engine.state), 0):
            return 0.0
        return self.work.next_update()

    # -- ending -------------------------------------------------------------------------

    def _stop_if_over(self) -> None:
        if (self.lines.is_done or self.stopping) and not self.unfinished:
            self.loop.lifecycle.stop()

    def on_signal(self, number: int) -> bool:
        """Drain or cancel the jobs of this feed; before it has begun, let the daemon stop."""
        if not self.has_begun:
            return False
        if number == signal.SIGUSR1:
            self._drain()
        else:
            self.interrupted = self.interrupted or 128 + number
            self._interrupt()
        return True

    def _interrupt(self) -> None:
        """Cancel the lines of this feed; the second time, kill them."""
        loop = self.loop
        again, self.stopping, self.cancelling = self.cancelling, True, True
        self.work.on_interrupt()
        self._watch_input(False)
        ids = [str(id) for id in sorted(self.unfinished)]
        if ids:
            cancel_all = partial(cancel, loop.context, Cancel(ids))
            handler = partial(kill, loop.context, Kill(ids)) if again else cancel_all
            loop.commands.put(QueuedCommand(handler, lambda *_: None))
        else:
            loop.lifecycle.stop()

    def _drain(self) -> None:
        """Let running lines finish, and cancel those that have not started."""
        loop = self.loop
        if self.stopping:
            return
        self.stopping = True
        self._watch_input(False)
        state = loop.engine.state
        ids = [
            str(id) for id in sorted(self.unfinished) if state.jobs[id].state is JobState.PENDING
        ]
        self.work.on_drain()
        if ids:
            handler = partial(cancel, loop.context, Cancel(ids))
            loop.commands.put(QueuedCommand(handler, lambda *_: None))

    def exit_code(self) -> int:
        """Return 0 if all lines succeeded, 1 if some did not, 128+N after a signal."""
        if self.stopping:
            self.work.on_stopped()
        return self.interrupted or self.work.exit_code
