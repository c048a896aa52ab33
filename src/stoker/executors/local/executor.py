"""LocalExecutor: attempts on this node, started by supervisors and terminated as process trees."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stoker.core.events import (
    AttemptLost,
    Event,
    ForeignUseChanged,
    ProcessExited,
    ProcessStarted,
    StartCancelled,
    StartFailed,
)
from stoker.core.launch.launch import Launch
from stoker.core.measurement.foreign_use import in_words
from stoker.executors.launch.command import CommandBuilder, NoContainer
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux import cgroup, oom
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.linux.log_file import empty_logs
from stoker.executors.linux.procfs import has_signal_handler
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.claims import (
    Claim,
    ExitLog,
    claim_path,
    create_claim,
    note_signal,
)
from stoker.executors.local.recovery import COMPLETE, AttemptRecovery
from stoker.executors.local.supervisor import may_pass
from stoker.executors.local.supervisor_client import SupervisorClient
from stoker.executors.local.supervisor_pool import SupervisorPool
from stoker.executors.local.termination import Termination, is_contained
from stoker.executors.port import (
    SHORTAGE_SECONDS,
    AttemptId,
    Barrier,
    Capability,
    Executor,
    ExecutorSink,
    RecoverableAttempt,
    Upload,
)
from stoker.executors.reactor import Reactor

logger = logging.getLogger(__name__)

LOCKED_GPU_SECONDS = 2.0
"""Delay of the next try after a start found a GPU locked."""
TERMINAL_SIGNALS = {signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
                    signal.SIGSTOP, signal.SIGCONT}  # fmt: skip
UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}
"""Signals that the process in charge of a container cannot pass on."""


class LocalExecutor(Executor):
    """Runs attempts on this node."""

    capabilities = (
        Capability.BIND_DEVICES
        | Capability.SUSPEND
        | Capability.SIGNAL
        | Capability.BARRIER
        | Capability.SHARED_FILES
    )
    """A claim file shows whether a start was carried out, however the daemon ends."""
    address = None

    def __init__(
        self,
        paths: ExecutorPaths,
        install: str,
        supervisors: list[SupervisorClient],
        reactor: Reactor,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        grace: float = 10.0,
        cgroups: cgroup.Cgroups | None = None,
        gpu_locks: GpuLocks | None = None,
        engine: str = "",
    ) -> None:
        self.paths, self.install, self.grace = paths, install, grace
        self.reactor = reactor
        self.supervisors = SupervisorPool(
            supervisors, paths.exits, reactor, self._on_report, self._on_supervisor_died
        )
        self.commands = CommandBuilder(paths, secret, blob, grace, engine)
        self.cgroups = cgroups or cgroup.Cgroups(None)
        self.gpu_locks = gpu_locks or GpuLocks()
        self.oom = oom.OomCounter()
        self.attempts: dict[AttemptId, LocalAttempt] = {}
        self.exit_log = ExitLog(paths.exits)
        self.recovery = AttemptRecovery(self)
        self.termination = Termination(self)
        self._sink: ExecutorSink | None = None
        self._at_barrier: dict[AttemptId, tuple[Launch, Barrier]] = {}
        """Parts of gangs that are started when all parts are ready."""
        self.unacknowledged: set[AttemptId] = set()
        """Attempts with claims that may be deleted once their ends are on disk."""

    @property
    def engine(self) -> str:
        """The container engine to use; empty: podman or docker."""
        return self.commands.engine

    def open(self, sink: ExecutorSink) -> None:
        """Begin to listen to the supervisors and to report to this sink."""
        self._sink = sink
        self.supervisors.open()

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return bool(self.attempts or self._at_barrier)

    def report(self, event: Event) -> None:
        """Report what became of an attempt."""
        assert self._sink is not None
        self._sink.event(event)

    def token(self, attempt: AttemptId) -> str:
        """Return the token that every process of an attempt carries."""
        return f"{self.install}.{attempt}"

    def claim_path(self, attempt: AttemptId) -> str:
        """Return the path of an attempt's claim file."""
        return claim_path(self.paths.run, attempt)

    # -- starting -----------------------------------------------------------------------

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Start an attempt, at most once ever; with a barrier, when it is released."""
        if barrier is None:
            self._start(launch, 0)
            return
        assert self._sink is not None
        self._at_barrier[launch.id] = launch, barrier
        self._sink.ready(launch.id, barrier.rank, _free_port())

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Start a part that waits at its barrier; without an environment, give it up."""
        launch, barrier = self._at_barrier.pop(attempt, (None, None))
        if launch is None or barrier is None:
            return
        if environment is None:
            self.call_off(attempt, "another part of the job could not be started")
        else:
            extra = launch.extra | dict(environment)
            self._start(replace(launch, extra=extra), barrier.rank)

    def _start(self, launch: Launch, rank: int) -> None:
        """Send a start to the supervisor that has the fewest."""
        id = launch.id
        attempt = LocalAttempt(id, launch.extra["STOKER_TOKEN"], out=launch.out, err=launch.err)
        # Registered before anything can fail: the claims of known attempts are not cleared.
        self.attempts[id] = attempt
        if launch.needs_report_directory:
            with contextlib.suppress(OSError):  # an attempt that needs the directory reports it
                os.makedirs(launch.checkpoints, 0o700, exist_ok=True)
        locked = self.gpu_locks.take(id, launch.gpus) if launch.gpus else None
        if locked is not None:
            self.forget(attempt)
            self._cancel_for_lock(launch, rank, locked)
            return
        try:
            client = self.supervisors.pick()
            client.send_environment(launch.spec.environment, self.commands.environment)
            argv, extra = self.commands.compose(launch)
        except (OSError, KeyError, NoContainer) as error:
            self._start_failed(attempt, error)
            return
        attempt.oom_kills_before = self.oom.before()
        attempt.cgroup = self.cgroups.create(attempt.token)
        attempt.supervisor = client.pid
        if launch.spec.truncate_output:
            empty_logs(launch.out, launch.err)
        self.supervisors.send_start(
            client, str(id), self.claim_path(id), argv, launch.directory, launch.spec.umask,
            launch.spec.environment, extra, launch.out, launch.err, self.gpu_locks.paths(id),
            attempt.cgroup, launch.device_group, tree.mark_of(attempt.token),
            msgspec.json.encode(launch.placement),
        )  # fmt: skip

    def _start_failed(self, attempt: LocalAttempt, error: Exception) -> None:
        """Report a start that was not sent: a shortage may pass, other errors would repeat."""
        self.forget(attempt)
        why = str(error) if isinstance(error, NoContainer) else f"cannot start: {error}"
        if isinstance(error, OSError) and may_pass(error, f"{self.paths.exits}/0"):
            self.call_off(attempt.id, why, SHORTAGE_SECONDS)
        else:
            self.fail(attempt.id, why)

    def call_off(self, attempt: AttemptId, why: str, delay: float = 0.0) -> None:
        """Report a start that did not happen."""
        self.report(
            StartCancelled(
                at=time.time(), job=attempt.job, attempt=attempt.attempt, why=why, delay=delay
            )
        )

    def fail(self, attempt: AttemptId, why: str) -> None:
        """Report a start that would fail again."""
        self.report(StartFailed(at=time.time(), job=attempt.job, attempt=attempt.attempt, why=why))

    def _cancel_for_lock(self, launch: Launch, rank: int, holder: str) -> None:
        """Cancel a start for a locked GPU, and keep other jobs off its GPUs for now."""
        # The delay is for jobs that are placed whatever the marks of GPUs say.
        self.call_off(launch.id, f"a GPU {in_words(holder)}", LOCKED_GPU_SECONDS)
        if launch.placement is None:
            return
        part, now = launch.placement.parts[rank], time.time()
        for name in part.names("gpu"):
            self.report(ForeignUseChanged(at=now, node=part.node, device=name, foreign_user=holder))

    def cancel_start(self, attempt: AttemptId, why: str) -> None:
        """Requeue a job after its start failed inside the daemon, unless a supervisor has it."""
        self._at_barrier.pop(attempt, None)
        if attempt in self.attempts or not create_claim(self.claim_path(attempt)):
            return  # what becomes of it is reported as usual
        self.gpu_locks.drop(attempt)
        self.expect_acknowledgement(attempt)
        self.call_off(attempt, why, SHORTAGE_SECONDS)

    # -- signals ------------------------------------------------------------------------

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate a tree: TERM in a moment, KILL after `grace` seconds."""
        if self._at_barrier.pop(attempt, None) is not None:
            self.call_off(attempt, "cancelled before it was started")
        elif (known := self.attempts.get(attempt)) is not None:
            self.termination.begin(known, grace)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal; a shell that waits for a child gets it only if it handles it."""
        known = self.attempts.get(attempt)
        if known is None or known.pid is None:
            return
        leader = known.pid
        pids = [leader] if to_script else self.members(known)
        contained = is_contained(known)
        if only_if_handled:
            # The process in charge of a container handles every signal, whatever runs inside.
            handling = [
                pid
                for pid in pids
                if has_signal_handler(pid, number) and not (contained and pid == leader)
            ]
            known.signal_uncaught = not handling
            if handling:
                note_signal(self.claim_path(attempt))
            pids = [leader] if contained and handling else handling
        elif number not in UNCATCHABLE and contained:
            pids = [leader] if has_signal_handler(leader, number) else []
        elif len(pids) > 1 and number not in TERMINAL_SIGNALS:
            pids = [pid for pid in pids if pid != leader or has_signal_handler(pid, number)]
        tree.signal_all(pids, number)

    def suspend(self, attempt: AttemptId) -> None:
        """Stop all processes in place."""
        self._signal_tree(attempt, signal.SIGSTOP)

    def resume(self, attempt: AttemptId) -> None:
        """Let suspended processes continue."""
        self._signal_tree(attempt, signal.SIGCONT)

    def _signal_tree(self, attempt: AttemptId, number: int) -> None:
        known = self.attempts.get(attempt)
        if known is not None and known.pid is not None:
            tree.signal_all(self.members(known), number)

    def abandon(self, attempt: AttemptId) -> None:
        """Do nothing: attempts on this node are never given up."""

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Do nothing: control files on this node are written by their owner."""

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return None: nothing is uploaded."""
        return None

    def follow_log(self, job: int) -> None:
        """Do nothing: output is written where it is read."""

    def refresh(self) -> None:
        """Do nothing: this node is measured by the GPU monitor."""

    def snapshot(self, stop: Iterable[str] = ()) -> tree.Snapshot:
        """Return all processes of this moment; supervisors belong to no attempt."""
        return tree.Snapshot(self.supervisors.pids | self.exit_log.supervisors(), stop)

    def members(self, attempt: LocalAttempt, seen: tree.Snapshot | None = None) -> list[int]:
        """Return the living processes of an attempt."""
        pids = (seen or self.snapshot()).members(attempt.token, attempt.pid, attempt.ticks)
        if attempt.cgroup is not None:
            pids = sorted({*pids, *cgroup.pids(attempt.cgroup)})
        return pids

    # -- reports of supervisors ---------------------------------------------------------

    def _on_report(self, id: AttemptId, kind: str, details: list[Any]) -> None:
        attempt = self.attempts.get(id)
        if attempt is None:
            return
        match kind, details:
            case "started", [pid, ticks, boot, wall]:
                self.on_started(attempt, pid, ticks, boot, wall)
            case "exited", [status, _, wall, has_orphans, seconds, peak]:
                attempt.status, attempt.ended_at = status, wall
                attempt.cpu_seconds, attempt.rss_peak = seconds, peak
                self.on_leader_exited(attempt, check_leftovers=has_orphans)
            case "failed", [why]:
                self.forget(attempt)
                self.fail(attempt.id, why)
            case "busy", [why]:
                self.forget(attempt)
                self.expect_acknowledgement(attempt.id)
                self.call_off(attempt.id, why, SHORTAGE_SECONDS)
            case "late", []:
                self.recovery.on_late_start(attempt)

    def _on_supervisor_died(self, pid: int) -> None:
        """Watch the orphans of a supervisor that was killed.

        They are children of this process now (see `become_subreaper`), so no exit code is lost.
        """
        for attempt in list(self.attempts.values()):
            if attempt.supervisor == pid:
                self.recovery.take_orphan(attempt)
        self.reap_zombies(self.snapshot())

    def on_started(
        self, attempt: LocalAttempt, pid: int, ticks: int, boot: float, wall: float
    ) -> None:
        """Report that the main process exists."""
        attempt.pid, attempt.ticks = pid, ticks
        job, number = attempt.id
        self.report(ProcessStarted(at=wall, job=job, attempt=number, pid=pid, boot=boot))

    def reap_zombies(self, seen: tree.Snapshot) -> None:
        """Reap ended processes that this process inherited from a killed supervisor.

        Processes of an attempt without a known end stay: one may be its main process.
        """
        zombies = seen.zombies()
        if zombies:
            unknown = {
                b"%d" % tree.mark_of(a.token) for a in self.attempts.values() if a.status is None
            }
            for pid in [pid for pid, mark in zombies if mark not in unknown]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def cancel_unstarted(self, attempt: LocalAttempt) -> None:
        """Cancel an attempt: its supervisor was killed before it started it."""
        self.forget(attempt)
        self.expect_acknowledgement(attempt.id)
        self.call_off(attempt.id, "the supervisor process was killed")

    # -- ends ---------------------------------------------------------------------------

    def on_leader_exited(self, attempt: LocalAttempt, check_leftovers: bool = True) -> None:
        """Finish an attempt after its main process ended, unless others may be left."""
        alone = attempt.terminating_since is None and not check_leftovers
        if alone and attempt.pid is not None and not tree.group_alive(attempt.pid):
            self.finish(attempt)
        else:
            attempt.leftovers_uncounted = True
            self.termination.add(attempt.id)

    def finish(self, attempt: LocalAttempt) -> None:
        """Report the end of an attempt after its last process ended."""
        (job, number), status = attempt.id, attempt.status
        self.forget(attempt)
        self.expect_acknowledgement(attempt.id)
        if status is None:
            why = "the process ended without an exit record"
            self.report(AttemptLost(at=time.time(), job=job, attempt=number, why=why))
            return
        code = os.waitstatus_to_exitcode(status)
        self.report(
            ProcessExited(
                at=attempt.ended_at or time.time(),
                job=job,
                attempt=number,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                memory=attempt.memory_shortage(code) if code else None,
                note=attempt.exit_note,
                uncaught=attempt.signal_uncaught,
                cpu_seconds=attempt.cpu_seconds,
                rss_peak=attempt.rss_peak,
            )
        )

    def forget(self, attempt: LocalAttempt) -> None:
        """Release everything that is held for an attempt."""
        self.attempts.pop(attempt.id, None)
        self.termination.active.discard(attempt.id)
        self.gpu_locks.drop(attempt.id)
        if attempt.pidfd >= 0:
            self.reactor.remove_reader(attempt.pidfd)
            os.close(attempt.pidfd)
        if attempt.cgroup is not None:
            cgroup.remove(attempt.cgroup)

    def expect_acknowledgement(self, attempt: AttemptId) -> None:
        """Keep the claim of an attempt until its end is acknowledged."""
        self.unacknowledged.add(attempt)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Delete the claims of attempts: their ends are on disk."""
        for attempt in attempts:
            if attempt in self.unacknowledged:
                self.unacknowledged.discard(attempt)
                with contextlib.suppress(OSError):
                    os.unlink(self.claim_path(attempt))

    # -- the daemon ---------------------------------------------------------------------

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Find out what became of attempts that an earlier daemon started."""
        if attempts:
            self.recovery.recover(attempts)

    def recovered(self, attempt: RecoverableAttempt, claim: Claim) -> LocalAttempt:
        """Begin to look after an attempt of an earlier daemon."""
        known = LocalAttempt(
            attempt.id, self.token(attempt.id), pid=claim.pid, ticks=claim.ticks,
            has_started=attempt.job.started_at is not None, out=attempt.out, err=attempt.err,
        )  # fmt: skip
        known.signal_uncaught = claim.supervisor is not None and not claim.was_signalled
        known.cgroup = self.cgroups.existing(known.token)
        known.oom_kills_before = self.oom.before()
        self.attempts[known.id] = known
        return known

    def drop_proofs(self, next_id: int, kept: Collection[AttemptId] = ()) -> None:
        """Delete what proved ends that are on disk; `next_id` is that of the next job.

        The ends of attempts in `kept` are not on disk.
        """
        self.exit_log.remove_ended(self.supervisors.pids, {*self.attempts, *kept})
        self.recovery.remove_claims(next_id, kept)

    def close(self) -> None:
        """Let the supervisors go; their attempts continue."""
        self.supervisors.close()

    def clear_run_directory(self) -> None:
        """Remove the run directory; call this when every attempt's end is on disk."""
        if not self.attempts:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.paths.run}/{COMPLETE}")
                os.rmdir(self.paths.run)
                os.rmdir(os.path.dirname(self.paths.run))


def _free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
    return port
