"""Feed as the daemon: it holds the state, listens on the socket and runs its own lines."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from stoker import places, wire
from stoker.client.errors import StokerError
from stoker.core.events import Event
from stoker.core.lifecycle import JobState
from stoker.core.units import BadValue
from stoker.daemon import intake
from stoker.daemon.acts import cancel, kill
from stoker.daemon.desk import clock
from stoker.daemon.keep import Keep
from stoker.daemon.lock import Locked, StateLock
from stoker.daemon.loop import Call, Feeder, Loop
from stoker.daemon.requests import Cancel, Kill, Submit, What
from stoker.daemon.views import job_view
from stoker.engine import Ask, Refusal
from stoker.executors.keeper import become_subreaper
from stoker.feed.lines import Lines
from stoker.feed.place import DRAINING, NO_GPU, Place, in_use
from stoker.feed.progress import Progress
from stoker.store.port import StoreError

READ_AHEAD = 256
"""Lines that wait in the queue beyond those that run: enough to never starve a device."""


class LostTheRace(Exception):
    """Another daemon took the state first."""


def drive(
    lines: Lines,
    progress: Progress,
    options: dict[str, object],
    place: Place,
    devices: list[str],
    resources: str | None,
) -> int:
    """Be the daemon until the input has ended and its jobs are done."""
    try:
        return _drive(lines, progress, options, place, devices, resources)
    except (BadValue, StoreError) as error:
        usage = wire.EXIT_USAGE if isinstance(error, BadValue) else wire.EXIT_FAILED
        raise StokerError(str(error), getattr(error, "exit_code", usage)) from None


def _drive(
    lines: Lines,
    progress: Progress,
    options: dict[str, object],
    place: Place,
    devices: list[str],
    resources: str | None,
) -> int:
    state = places.secure_dir(places.state_dir())
    try:
        lock = StateLock(state)
    except Locked:
        raise LostTheRace from None
    kept = Keep()
    from stoker.daemon.serve import Server
    from stoker.daemon.setup import build

    feeder = StdinFeeder(lines, progress, options, place)
    loop = build(kept, None, resources, extra=devices, feeder=feeder)
    server = Server(loop, "feed")
    become_subreaper()
    feeder.begin(loop, devices)
    try:
        loop.run()
    finally:
        others = loop.engine.state.live
        server.close()
        loop.close()
        lock.release()
    if others:
        # Work that others queued meanwhile goes on with a daemon of its own.
        from stoker.client.start import start_daemon

        start_daemon()
    if feeder.error is not None:
        raise feeder.error
    return feeder.exit_code()


class StdinFeeder(Feeder):
    """Turns lines into jobs, a few at a time, and counts how they end."""

    def __init__(
        self, lines: Lines, progress: Progress, options: dict[str, object], place: Place
    ) -> None:
        self.lines, self.progress, self.options = lines, progress, options
        self.place = place
        self.loop: Loop | None = None
        self.mine: set[int] = set()
        """Jobs of this feed that have not finished."""
        self.error: Exception | None = None
        self.interrupted = 0
        self.stopping = False
        self.cancelling = False
        self.watching = False
        self.submitting = 0

    def begin(self, loop: Loop, devices: list[str]) -> None:
        """The loop is there: look at the devices and listen for signals."""
        self.loop = loop
        loop.on_signal = self._signalled
        loop.turn()
        state = loop.engine.state
        for name in devices:
            for _, device in state.cluster.find(name):
                if device.stranger is not None:
                    self.progress.warn(in_use(name, device.stranger))
        no_gpu = not any(node.types.get("gpu") for node in state.cluster.nodes.values())
        if no_gpu and not devices and self.options.pop("gpus", None):
            self.progress.warn(NO_GPU)

    # -- what the loop asks -------------------------------------------------------------

    def asks(self) -> list[Ask]:
        """Submit as many lines as keep the devices busy, and no more."""
        if self.stopping:
            self._stop_if_over()
            return []
        loop = self.loop
        assert loop is not None
        running = len(loop.engine.state.running)
        room = READ_AHEAD - (len(self.mine) - running) - self.submitting
        taken = self.lines.take(room) if room > READ_AHEAD // 2 or not self.mine else []
        self._watch_input(room > 0 and not self.lines.full(READ_AHEAD))
        self.progress.leave_out(self.lines.excuses())
        if not taken:
            self._stop_if_over()
            return []
        self.submitting += len(taken)
        return self._submission(taken)

    def _submission(self, taken: list[str]) -> list[Ask]:
        body = Submit(
            what=What(lines=taken),
            directory=self.place.directory,
            shell=self.place.shell,
            options=self.options,
            environment=self.place.environment,
            umask=self.place.umask,
        )
        assert self.loop is not None
        try:
            return [Call(intake.submit(self.loop.desk, body, durable=False), self._submitted)]
        except Refusal as refusal:
            self._submitted(None, refusal)
            return []

    def _submitted(self, receipt: Any, refusal: Refusal | None) -> None:
        if refusal is not None:
            from stoker import wire

            code = wire.ERRORS.get(refusal.code, (0, 1))[1]
            self.error = StokerError(refusal.message, code, refusal.code)
            self._interrupt()
            return
        self.submitting -= receipt["count"]
        self.mine.update(range(receipt["first"], receipt["last"] + 1))
        self.progress.submitted(receipt["first"], receipt["last"])

    def _watch_input(self, wanted: bool) -> None:
        """Listen to the input only while there is room for more."""
        assert self.loop is not None
        wanted = wanted and not self.lines.regular and not self.lines.ended
        if wanted and not self.watching:
            try:
                self.loop.poller.watch(self.lines.fd, self.lines.read)
            except PermissionError:
                self.lines.regular = True  # /dev/null and the like: always readable
                return
        elif self.watching and not wanted:
            self.loop.poller.unwatch(self.lines.fd)
        self.watching = wanted

    def after(self, events: Sequence[Event]) -> None:
        """Count the ends of our own lines."""
        loop = self.loop
        if loop is None:
            return
        state = loop.engine.state
        for event in events:
            id = getattr(event, "job", None)
            if type(id) is int and id in self.mine:
                job = state.jobs.get(id)
                if job is not None and job.finished:
                    self.mine.discard(id)
                    self._count(job)
        if self.progress.tty:
            self.progress.running = sum(id in self.mine for id in state.running)
            self.progress.draw()
        self._stop_if_over()

    def _count(self, job: Any) -> None:
        loop = self.loop
        assert loop is not None

        def view() -> dict[str, Any]:
            spec = loop.engine.state.spec(job)
            return job_view(job, spec, None, clock(), loop.desk.logs, tail=5)

        started = job.started_at is not None or bool(job.past)
        self.progress.ended(job.state.value, started, view)

    def timeout(self) -> float | None:
        """Wake up for the moving line, or when the input is a file."""
        if self.lines.regular and not self.lines.done and not self.mine and not self.stopping:
            return 0.0
        return self.progress.due() if self.mine else None

    # -- ending -------------------------------------------------------------------------

    def _stop_if_over(self) -> None:
        assert self.loop is not None
        over = self.lines.done or self.stopping
        if over and not self.mine and not self.submitting:
            self.loop.done = True

    def _signalled(self, number: int) -> None:
        if number == signal.SIGUSR1:
            self._drain()
        else:
            self.interrupted = self.interrupted or 128 + number
            self._interrupt()

    def _interrupt(self) -> None:
        """Cancel our own lines; a second time, at once."""
        loop = self.loop
        assert loop is not None
        again, self.stopping, self.cancelling = self.cancelling, True, True
        self._watch_input(False)
        self.submitting = 0
        ids = [str(id) for id in sorted(self.mine)]
        if ids:
            wish = kill(loop.desk, Kill(ids)) if again else cancel(loop.desk, Cancel(ids))
            loop.ask(Call(wish, lambda *_: None))
        else:
            loop.done = True

    def _drain(self) -> None:
        """Let what runs finish; what has not started never will."""
        loop = self.loop
        assert loop is not None
        self.stopping = True
        self._watch_input(False)
        self.submitting = 0
        state = loop.engine.state
        ids = [str(id) for id in sorted(self.mine) if state.jobs[id].state is JobState.PENDING]
        self.progress.say(DRAINING)
        if ids:
            loop.ask(Call(cancel(loop.desk, Cancel(ids)), lambda *_: None))

    def exit_code(self) -> int:
        """0 when all succeeded, 1 when some did not, 128+N after a signal."""
        if self.stopping:
            self.progress.stopped(self.lines.waiting)
        return self.interrupted or self.progress.code
