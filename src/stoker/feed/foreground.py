"""Feed as the daemon: it holds the state, listens on the socket and runs its own lines."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from stoker import places, wire
from stoker.client.errors import StokerError
from stoker.core.cluster import Node
from stoker.core.events import Event, JobsSubmitted, ProcessExited
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.state import State
from stoker.core.units import BadValue
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.handlers.job_actions import cancel, kill
from stoker.daemon.paths import DaemonPaths
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.daemon.state_lock import Locked, StateLock
from stoker.daemon.submission.submit import handle_submit, resubmit_line
from stoker.daemon.views.job import job_view
from stoker.engine import Command, CommandRejected, CommandResult, Instant
from stoker.executors.local.supervisor import become_subreaper
from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.submit_environment import SubmitEnvironment, in_use
from stoker.schema.requests import Cancel, Kill, Submit, What
from stoker.store.port import StoreError


class LostTheRace(Exception):
    """Another daemon took the state first."""


def drive(work: JobStream, place: SubmitEnvironment, resources: str | None) -> int:
    """Be the daemon until the input has ended and its jobs are done."""
    try:
        return _drive(work, place, resources)
    except (BadValue, StoreError) as error:
        usual = wire.EXIT_USAGE if isinstance(error, BadValue) else wire.EXIT_FAILED
        raise StokerError(str(error), getattr(error, "exit_code", usual)) from None


def _drive(work: JobStream, place: SubmitEnvironment, resources: str | None) -> int:
    state = places.secure_dir(places.state_dir())
    try:
        lock = StateLock(state)
    except Locked:
        raise LostTheRace from None
    kept = DaemonPaths()
    from stoker.daemon.bootstrap import build_daemon, build_http_server
    from stoker.daemon.state_files import watch_state

    feeder = ForegroundSource(work, place)
    loop = build_daemon(kept, None, resources, extra_gpus=work.named, job_source=feeder)
    server = build_http_server(loop, "feed")
    watch_state(loop, kept, lock, server)
    become_subreaper()
    feeder.begin(loop)
    try:
        loop.run()
    finally:
        others = loop.engine.state.live
        server.close()
        loop.close()
        lock.release()
        if others and not feeder.lost:
            # Work that others queued meanwhile, or that an internal error left, goes on with a
            # daemon of its own.
            from stoker.client.autostart import start_daemon

            start_daemon()
    if feeder.error is not None:
        raise feeder.error
    if not feeder.stopping and (feeder.mine or not work.lines.done):
        raise StokerError(
            "The daemon was stopped by another command: running lines continue, "
            "the remaining lines are not run."
        )
    return feeder.exit_code()


class SubmitBatch:
    """A lot that goes out in this turn, chosen when the turn's news is known.

    A device that became free in a turn is so given to the next line in the same turn, in
    one commit.
    """

    def __init__(self, feeder: ForegroundSource, first: bool) -> None:
        self.feeder, self.first = feeder, first
        self.lot: Batch | None = None

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Choose, unless that was done before (a full disk makes the engine ask twice)."""
        feeder = self.feeder
        if self.lot is None:
            if self.first and feeder.work.waits_for_ends:
                feeder.collect(state, feeder.mine)
            self.lot = feeder.work.next(feeder.waiting(state))
        return feeder.submission(self.lot, state, now) if self.lot else CommandResult()

    def reply(self, receipt: Any) -> None:
        """It has become jobs."""
        if self.lot is not None:
            self.feeder.submitted(self.lot, receipt)

    def reject(self, refusal: CommandRejected) -> None:
        """It has not."""
        if self.lot is not None:
            self.feeder.refused(self.lot, refusal)


class ForegroundSource(JobSource):
    """Turns lines into jobs, a few at a time, and follows them to their ends."""

    def __init__(self, work: JobStream, place: SubmitEnvironment) -> None:
        self.work, self.place = work, place
        self.lines = work.lines
        self.loop: Daemon | None = None
        self.mine: set[int] = set()
        """Jobs of this feed that have not finished."""
        self.before: dict[int, tuple[JobsSubmitted, Node]] = {}
        """By the options that it asked with, the last line that was looked at in full."""
        self.error: Exception | None = None
        self.lost = False
        """Whether nothing can be written down any more, not even that a job was cancelled."""
        self.interrupted = 0
        self.stopping = False
        self.cancelling = False
        self.watching = False

    def begin(self, loop: Daemon) -> None:
        """The loop is there: look at the devices and listen for signals."""
        loop.turn()  # without lines: a signal would not be heard before the loop runs
        self.loop = loop
        state = loop.engine.state
        for name in self.work.named:
            for _, device in state.cluster.find(f"{loop.desk.node}/{name}"):
                if device.stranger is not None:
                    self.work.warn(in_use(name, device.stranger))
        if not any(node.types.get("gpu") for node in state.cluster.nodes.values()):
            self.work.without_gpus()

    # -- what the loop asks -------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Submit as many lines as keep the devices busy, and no more."""
        loop = self.loop
        if loop is None:
            return []
        if self.stopping:
            self._stop_if_over()
            return []
        waiting = self.waiting(loop.engine.state)
        self._watch_input(self.work.hungry(waiting))
        news = sum(type(fact) is ProcessExited for fact in loop.executor.facts)
        openings = self.work.openings(waiting, news)
        return [SubmitBatch(self, number == 0) for number in range(openings)]

    def waiting(self, state: State) -> int:
        """How many of our jobs have not started."""
        return len(self.mine) - len(state.running)

    def submission(self, lot: Batch, state: State, now: Instant) -> CommandResult:
        """What the lot comes to."""
        loop = self.loop
        assert loop is not None
        line = lot.what.get("line")
        node = state.cluster.nodes[loop.desk.node]
        like, where = self.before.get(id(lot.options), (None, None))
        if line is not None and like is not None and where is node and like.spec in state.specs:
            return resubmit_line(like, line, state, now)
        body = Submit(
            what=What(**lot.what),
            directory=self.place.directory,
            shell=self.place.shell,
            options=lot.options,
            environment=self.place.environment,
            umask=self.place.umask,
        )
        decision = handle_submit(loop.desk, body, durable=False)(state, now)
        if line is not None:
            event = decision.events[-1]
            assert type(event) is JobsSubmitted
            self.before[id(lot.options)] = (event, node)
        return decision

    def submitted(self, lot: Batch, receipt: Any) -> None:
        """These jobs are ours."""
        self.mine.update(range(receipt["first"], receipt["last"] + 1))
        self.work.submitted(lot, receipt["first"], receipt["last"])

    def refused(self, lot: Batch, refusal: CommandRejected) -> None:
        """Go on or not, as the work sees fit."""
        code = wire.ERRORS.get(refusal.code, (0, 1))[1]
        self.error = self.work.refused(lot, StokerError(refusal.message, code, refusal.code))
        if self.error is None:
            return
        if refusal.code == "unavailable":
            assert self.loop is not None
            self.stopping = self.lost = True
            self.loop.lifecycle.stop()
        else:
            self._interrupt()

    def _watch_input(self, wanted: bool) -> None:
        """Listen to the input only while there is room for more."""
        assert self.loop is not None
        wanted = wanted and not self.lines.regular and not self.lines.ended
        if wanted and not self.watching:
            try:
                self.loop.poller.add_reader(self.lines.fd, self.lines.read)
            except PermissionError:
                self.lines.regular = True  # /dev/null and the like: always readable
                return
        elif self.watching and not wanted:
            self.loop.poller.remove_reader(self.lines.fd)
        self.watching = wanted

    def on_events(self, events: Sequence[Event]) -> None:
        """Count the ends of our own lines."""
        loop = self.loop
        if loop is None:
            return
        state = loop.engine.state
        told = (getattr(event, "job", None) for event in events)
        self.collect(state, {id for id in told if type(id) is int and id in self.mine})
        self.work.turned(lambda: sum(id in self.mine for id in state.running))
        self._stop_if_over()

    def collect(self, state: State, ids: set[int]) -> None:
        """Count those of our jobs that have ended, in that order."""
        ended = [job for id in ids if (job := state.jobs.get(id)) is not None and job.finished]
        for job in sorted(ended, key=lambda job: job.ended_at or 0.0):
            self.mine.discard(job.id)
            started = job.started_at is not None or bool(job.past)
            self.work.ended(
                FinishedJob(job.id, job.state.value, started, job.note, partial(self._view, job))
            )

    def _view(self, job: Job) -> dict[str, Any]:
        loop = self.loop
        assert loop is not None
        spec = loop.engine.state.spec(job)
        view = job_view(job, spec, None, system_clock(), loop.desk.logs, tail=5)
        return dict(to_builtins(view))

    def next_wakeup(self) -> float | None:
        """Wake up for what the work has to show, and at once while more can go out."""
        assert self.loop is not None
        if not self.stopping and self.work.openings(self.waiting(self.loop.engine.state), 0):
            return 0.0
        return self.work.due()

    # -- ending -------------------------------------------------------------------------

    def _stop_if_over(self) -> None:
        assert self.loop is not None
        if (self.lines.done or self.stopping) and not self.mine:
            self.loop.lifecycle.stop()

    def on_signal(self, number: int) -> bool:
        """Drain or cancel the jobs of this feed; before it has begun, let the daemon stop."""
        if self.loop is None:
            return False
        if number == signal.SIGUSR1:
            self._drain()
        else:
            self.interrupted = self.interrupted or 128 + number
            self._interrupt()
        return True

    def _interrupt(self) -> None:
        """Cancel our own lines; a second time, at once."""
        loop = self.loop
        assert loop is not None
        again, self.stopping, self.cancelling = self.cancelling, True, True
        self.work.interrupted()
        self._watch_input(False)
        ids = [str(id) for id in sorted(self.mine)]
        if ids:
            wish = kill(loop.desk, Kill(ids)) if again else cancel(loop.desk, Cancel(ids))
            loop.commands.put(QueuedCommand(wish, lambda *_: None))
        else:
            loop.lifecycle.stop()

    def _drain(self) -> None:
        """Let what runs finish; what has not started never will."""
        loop = self.loop
        assert loop is not None
        if self.stopping:
            return
        self.stopping = True
        self._watch_input(False)
        state = loop.engine.state
        ids = [str(id) for id in sorted(self.mine) if state.jobs[id].state is JobState.PENDING]
        self.work.draining()
        if ids:
            loop.commands.put(QueuedCommand(cancel(loop.desk, Cancel(ids)), lambda *_: None))

    def exit_code(self) -> int:
        """0 when all succeeded, 1 when some did not, 128+N after a signal."""
        if self.stopping:
            self.work.stopped()
        return self.interrupted or self.work.code
