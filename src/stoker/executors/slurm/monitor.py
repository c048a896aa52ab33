"""SlurmMonitor: one squeue for all jobs of a cluster, and what is submitted and cancelled there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.reactor import Reactor, Timer
from stoker.executors.slurm.commands import SlurmCommands, SlurmError, SlurmJob

MIN_CHANGING_SECONDS, MAX_CHANGING_SECONDS = 0.3, 10.0
"""Between polls while a job is about to start or to end: a fifth of the time since the last change,
within these bounds. A start is noticed late by a fifth of the time that was waited for it."""
CHANGING_FRACTION = 0.2
STEADY_SECONDS, IDLE_SECONDS = 15.0, 60.0
"""Between polls while all jobs run, and without jobs."""
SLOW_SECONDS = 1.0
"""A controller that takes longer to answer is busy: it is asked half as often."""
FAILED_SECONDS = 10.0
"""Between polls while the controller does not answer."""
CLEAN_UP_SECONDS = 5.0
"""Time until the files of a removed pilot are deleted: the ends of attempts are on disk by then."""

OnSubmitted = Callable[[SlurmError | None], None]


class JobWatcher(Protocol):
    """Receives what Slurm knows of one job after every poll."""

    def on_job(self, job: SlurmJob | None) -> None:
        """Handle the state of the job; None if Slurm does not know it."""


class SlurmMonitor:
    """Knows the state of the jobs that stoker submitted to one cluster, by their names."""

    def __init__(self, commands: SlurmCommands, prefix: str, reactor: Reactor) -> None:
        """`prefix` is what the names of this installation's jobs there have before `-TOKEN`."""
        self.commands, self.prefix, self.reactor = commands, prefix, reactor
        self.pool = TransferPool(reactor)
        self.timer = Timer(reactor, self._poll)
        self._listeners: list[Callable[[str | None], None]] = []
        """Called after every poll, with the error if it failed."""
        self.jobs: dict[str, SlurmJob] = {}
        """The job of each name."""
        self.is_closed = False
        self._watchers: dict[str, JobWatcher] = {}
        self._signalled: set[str] = set()
        """Ids of jobs that were signalled to end."""
        self._cleanups = 0
        """Scripts that are to be run."""
        self._changed_at = 0.0
        """Time of the last change that another one may follow soon."""
        self._polled_at = -MIN_CHANGING_SECONDS
        """Time of the last poll: many calls of sbatch in a row cause few of them."""
        self._is_polling = self._is_retired = False

    def open(self, on_polled: Callable[[str | None], None]) -> None:
        """Poll from now on; call back after every poll, with the error if it failed."""
        self._listeners.append(on_polled)
        self._is_retired = False
        self.poll_soon()

    def remove_listener(self, on_polled: Callable[[str | None], None]) -> None:
        """Call back no more."""
        self._listeners = [each for each in self._listeners if each != on_polled]

    def _notify(self, error: str | None) -> None:
        for on_polled in list(self._listeners):
            on_polled(error)

    def poll_soon(self) -> None:
        """Poll now, and often for a while: something is about to change."""
        self._changed_at = self.reactor.time()
        self.timer.request(max(self._polled_at + MIN_CHANGING_SECONDS - self._changed_at, 0.0))

    def watch(self, name: str, watcher: JobWatcher) -> None:
        """Report a job to a watcher after every poll from now on."""
        self._watchers[name] = watcher
        self.poll_soon()

    def unwatch(self, name: str, is_over: bool = False) -> None:
        """Forget a job: if Slurm still has it after the next poll, it is cancelled."""
        self._watchers.pop(name, None)
        if not is_over:
            self.poll_soon()

    def submit(self, options: Sequence[str], script: str, on_submitted: OnSubmitted) -> None:
        """Submit a batch script; call back with the error, or None."""

        def on_done(result: object) -> None:
            self.poll_soon()
            if isinstance(result, Exception) and not isinstance(result, SlurmError):
                on_submitted(SlurmError(f"sbatch was not called: {result}"))
                raise result
            on_submitted(result if isinstance(result, SlurmError) else None)

        self.pool.submit(lambda: self.commands.submit(options, script), on_done)

    def clean_up_later(self, script: str) -> None:
        """Run a shell script on the host of the commands in a moment; its failure is ignored."""

        def on_done(_: object) -> None:
            self._cleanups -= 1
            if self._is_retired:
                self.poll_soon()

        def run() -> None:
            self.pool.submit(lambda: self.commands.run_shell(script), on_done)

        self._cleanups += 1
        self.reactor.call_later(CLEAN_UP_SECONDS, run)

    def _poll(self) -> None:
        if not self._is_polling and not self.is_closed:
            self._is_polling, self._polled_at = True, self.reactor.time()
            self.pool.submit(self.commands.jobs, self._on_polled)

    def _on_polled(self, result: list[SlurmJob] | Exception) -> None:
        self._is_polling = False
        is_slow = self.reactor.time() - self._polled_at > SLOW_SECONDS
        if isinstance(result, Exception):
            if not isinstance(result, SlurmError):
                raise result
            self.timer.request(FAILED_SECONDS)
            self._notify(str(result))
            return
        own = [job for job in result if job.name.rpartition("-")[0] == self.prefix]
        self._take(own)
        for name, watcher in list(self._watchers.items()):
            watcher.on_job(self.jobs.get(name))
        self._end_unwatched(own)
        if self._is_retired and not (self._watchers or self._signalled or self._cleanups):
            self.close()
            return
        self.timer.request(self._seconds_until_poll() * (2 if is_slow else 1))
        self._notify(None)

    def _take(self, jobs: Iterable[SlurmJob]) -> None:
        """Keep one job for each name: the one that is known and alive, else the first alive."""
        known, self.jobs = self.jobs, {}
        for job in jobs:
            before, other = known.get(job.name), self.jobs.get(job.name)
            is_known = before is not None and before.id == job.id and not job.has_ended
            if other is None or is_known or (other.has_ended and not job.has_ended):
                self.jobs[job.name] = job
            if before is None or before.id != job.id or before.state != job.state:
                self._changed_at = self.reactor.time()

    def _seconds_until_poll(self) -> float:
        watched = [self.jobs.get(name) for name in self._watchers]
        if self._signalled or any(job is None or job.is_changing for job in watched):
            pause = (self.reactor.time() - self._changed_at) * CHANGING_FRACTION
            return min(max(pause, MIN_CHANGING_SECONDS), MAX_CHANGING_SECONDS)
        return STEADY_SECONDS if watched else IDLE_SECONDS

    def _end_unwatched(self, jobs: Sequence[SlurmJob]) -> None:
        """End jobs that the journal does not know; a running one is signalled first.

        A submission that was not answered may have been accepted, so that one name has two jobs.
        """
        alive = {
            job.id: job
            for job in jobs
            if not job.has_ended
            and job.state != "COMPLETING"
            and (job.name not in self._watchers or self.jobs[job.name].id != job.id)
        }
        self._signalled &= alive.keys()
        signalled = [
            id for id, job in alive.items() if job.is_running and id not in self._signalled
        ]
        ended = [id for id in alive if id not in signalled]
        self._signalled.update(signalled)
        if alive:
            self.pool.submit(lambda: self._end(signalled, ended), lambda _: None)

    def _end(self, signalled: Sequence[str], ended: Sequence[str]) -> None:
        """Ask pilots to end, and cancel others; what fails is done after the next poll."""
        self.commands.cancel(signalled, "--batch", "--signal=USR1")
        self.commands.cancel(ended)

    def retire(self) -> None:
        """Close once all jobs have ended: the cluster was removed."""
        self._is_retired = True
        self._listeners.clear()
        self.poll_soon()

    def close(self) -> None:
        """Poll no more; all jobs continue."""
        self.is_closed = True
        self.timer.cancel()
        self.pool.close()
