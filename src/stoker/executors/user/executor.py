"""UserExecutor: attempts on this node, each passed to the process of the user who submitted it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.events import Event, ProcessStarted, StartCancelled
from stoker.core.launch.launch import Launch
from stoker.executors.linux.gpu_locks import GpuLocks
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
from stoker.executors.user import wire
from stoker.executors.user.device_groups import DeviceGroups, attempt_of
from stoker.executors.user.processes import (
    FIRST_RETRY_SECONDS,
    OnFileData,
    Processes,
    UserProcess,
    plausible,
)

logger = logging.getLogger(__name__)

LONGEST_DELAY_SECONDS = 600.0
"""Delay of the next start of a user that may not have a process."""


class _Attempt(Struct):
    """An attempt that a process has, or will be sent."""

    uid: int
    since: float
    """Wall time: nothing can have happened to it before."""
    is_sent: bool = False
    """Whether a process may have its start."""
    node_restarted: bool = False
    has_ended: bool = False
    """Whether its end was reported; it is kept until that is acknowledged."""


class _User(Struct):
    """What is to be sent to the process of a user, and what came of it."""

    waiting: list[wire.Message] = field(default_factory=list)
    """For the next process, after it has recovered what is under way."""
    next_id: int | None = None
    """Proofs of attempts up to this job are to be dropped by the next process."""
    refusals: int = 0
    """How often in a row the gate has refused a process."""


class UserExecutor(Executor):
    """Runs attempts on this node as the users who submitted them.

    It has no files of any attempt: claims, exits, logs and reports belong to the users. A process
    that ends is replaced, and the next one recovers what is under way as a daemon does.
    """

    capabilities = (
        Capability.BIND_DEVICES
        | Capability.SUSPEND
        | Capability.SIGNAL
        | Capability.CONTROL_FILES
        | Capability.REPORTS
        | Capability.BARRIER
        | Capability.SHARED_FILES
    )
    address = None

    def __init__(
        self,
        install: str,
        reactor: Reactor,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        under_way: Callable[[int], Iterable[RecoverableAttempt]],
        request_process: Callable[[int], None],
        on_idle: Callable[[int], None] = lambda _: None,
        grace: float = 10.0,
        gpu_locks: GpuLocks | None = None,
        engine: str = "",
        create_group: Callable[[int, str, list[list[int]]], None] = lambda *_: None,
        remove_group: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        """`under_way` returns the attempts of a user that the journal has under way now.

        `request_process` has a process started for a user, which `on_process` gets, or
        `on_refused`. `on_idle` is called when a user needs none any more.
        """
        self.install, self.reactor, self.grace = install, reactor, grace
        self._secret, self._blob, self._under_way = secret, blob, under_way
        self.gpu_locks = gpu_locks or GpuLocks()
        self.engine = engine
        configuration = wire.Configure(
            install, grace, engine, self.gpu_locks.directory, self.gpu_locks.uid
        )
        self.processes = Processes(
            reactor, configuration, request_process, self._needs_process, self._on_message, on_idle
        )
        self.device_groups = DeviceGroups(reactor, create_group, remove_group, self._has_attempt)
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._users: dict[int, _User] = {}
        self._sink: ExecutorSink | None = None
        self._requests = count()
        self._reads: dict[int, tuple[int, OnFileData]] = {}
        """What files are read for, with the user, by request."""

    def open(self, sink: ExecutorSink) -> None:
        """Report to this sink."""
        self._sink = sink

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return any(not attempt.has_ended for attempt in self._attempts.values())

    def token(self, attempt: AttemptId) -> str:
        """Return the token that every process of an attempt carries."""
        return f"{self.install}.{attempt}"

    def owners(self) -> dict[AttemptId, int]:
        """Return the users of all attempts that it looks after."""
        return {id: each.uid for id, each in self._attempts.items() if not each.has_ended}

    def _user(self, uid: int) -> _User:
        return self._users.setdefault(uid, _User())

    def _needs_process(self, uid: int) -> bool:
        """Return whether a user has attempts, or anything else that a process must do."""
        user = self._users.get(uid)
        if user is not None and user.waiting:
            return True
        if any(owner == uid for owner, _ in self._reads.values()):
            return True
        attempts = (attempt for attempt in self._attempts.values() if attempt.uid == uid)
        return any(not attempt.has_ended for attempt in attempts)

    # -- starting -----------------------------------------------------------------------

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Start an attempt as its user, at most once ever."""
        uid = launch.spec.uid
        if uid is None:
            why = "the job has no user: it was submitted to a daemon of one user"
            self._report(StartCancelled(at=time.time(), job=launch.job, attempt=launch.attempt,
                                        why=why, delay=LONGEST_DELAY_SECONDS))  # fmt: skip
            return
        self._attempts[launch.id] = _Attempt(uid, time.time())
        self._send(uid, wire.Start(launch, barrier))

    def _send(self, uid: int, message: wire.Message) -> None:
        """Send a message to the process of a user, or keep it for the next one."""
        process = self.processes.get(uid)
        if process is None:
            self._user(uid).waiting.append(message)
            self.processes.request(uid)
        elif isinstance(message, wire.Start):
            self._send_start(process, uid, message)
        elif not self.device_groups.hold(message):
            process.send(message)

    def _send_start(self, process: UserProcess, uid: int, start: wire.Start) -> None:
        """Send a start, after its device group, and the environment and script that it needs."""
        launch = start.launch
        if self.device_groups.request(uid, start):
            return
        try:
            process.provide(launch, self._secret, self._blob)
            self.gpu_locks.create(launch.gpus)
        except OSError as error:
            self._call_off(launch.id, f"cannot start: {error}", SHORTAGE_SECONDS)
            return
        self._attempts[launch.id].is_sent = True
        process.send(start)

    def _call_off(self, attempt: AttemptId, why: str, delay: float = 0.0) -> None:
        """Report that an attempt was not started, which no process has."""
        known = self._attempts.pop(attempt, None)
        if known is not None:
            self.device_groups.remove_unneeded(known.uid)
        self._report(
            StartCancelled(
                at=time.time(), job=attempt.job, attempt=attempt.attempt, why=why, delay=delay
            )
        )

    def _take_unsent(self, attempt: AttemptId) -> bool:
        """Remove a start that was not sent; return False if a process may have it."""
        known = self._attempts.get(attempt)
        if known is None or known.is_sent:
            return False
        if self.device_groups.take(attempt):
            return True
        user = self._user(known.uid)
        kept = [m for m in user.waiting if not _is_start_of(m, attempt)]
        has_removed, user.waiting = len(kept) < len(user.waiting), kept
        return has_removed

    def cancel_start(self, attempt: AttemptId, why: str) -> None:
        """Requeue a job after its start failed inside the daemon, unless a supervisor has it."""
        known = self._attempts.get(attempt)
        if known is None or self._take_unsent(attempt) or not known.is_sent:
            self._call_off(attempt, why, SHORTAGE_SECONDS)
        else:
            self._send(known.uid, wire.CancelStart(attempt, why))

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run with these variables; None: give it up."""
        variables = None if environment is None else dict(environment)
        if environment is None and self._take_unsent(attempt):
            self._call_off(attempt, "another part of the job could not be started")
        else:
            self._tell(attempt, wire.Release(attempt, rank, variables))

    def _tell(self, attempt: AttemptId, message: wire.Message) -> None:
        """Send a message about an attempt to the process that has it."""
        known = self._attempts.get(attempt)
        if known is not None:
            self._send(known.uid, message)

    # -- signals ------------------------------------------------------------------------

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate the whole process tree: TERM, KILL after `grace` seconds; 0: KILL at once."""
        if self._take_unsent(attempt):
            self._call_off(attempt, "cancelled before it was started")
        else:
            self._tell(attempt, wire.Terminate(attempt, grace))

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal; see the port."""
        self._tell(attempt, wire.Signal(attempt, number, only_if_handled, to_script))

    def suspend(self, attempt: AttemptId) -> None:
        """Stop all processes in place."""
        self._tell(attempt, wire.Suspend(attempt))

    def resume(self, attempt: AttemptId) -> None:
        """Let suspended processes continue."""
        self._tell(attempt, wire.Resume(attempt))

    def abandon(self, attempt: AttemptId) -> None:
        """Do nothing: attempts on this node are never given up."""

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Have a control file written for the training library."""
        self._tell(attempt, wire.Control(attempt, rank, name, text))

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return None: nothing is uploaded."""
        return None

    def follow_log(self, job: int) -> None:
        """Do nothing: output is written where it is read."""

    def refresh(self) -> None:
        """Do nothing: this node is measured by the GPU monitor."""

    # -- files --------------------------------------------------------------------------

    def read_file(self, uid: int, path: str, offset: int, size: int, on_data: OnFileData) -> None:
        """Read a part of a file with the rights of a user, and call back once."""
        request = next(self._requests)
        self._reads[request] = uid, on_data
        self._send(uid, wire.ReadFile(request, path, offset, size))

    def _end_reads(self, uid: int, why: str) -> None:
        """Answer the reads of a user that no process will answer."""
        for request in [each for each, (owner, _) in self._reads.items() if owner == uid]:
            _, on_data = self._reads.pop(request)
            on_data(wire.FileData(request, 0, b"", -1, 0.0, why))

    # -- processes ----------------------------------------------------------------------

    def has_process(self, uid: int) -> bool:
        """Return whether a user has a process, or needs one."""
        return self.processes.get(uid) is not None or self._needs_process(uid)

    def on_gate(self, device_groups: str) -> None:
        """Repeat the requests for processes and groups: the gate that had them has ended."""
        self.device_groups.on_gate(device_groups)
        self.processes.request_again()

    def on_device_group(self, uid: int, name: str, path: str, why: str) -> None:
        """Go on with a start that waited for its device group; without one, call it off.

        Its process could not open its own GPUs.
        """
        attempt = attempt_of(name)
        messages = self.device_groups.take(attempt, path) if attempt is not None else []
        if attempt is None or not messages:  # called off, or asked for twice
            self.device_groups.remove_unneeded(uid)
        elif why:
            self._call_off(attempt, f"no device group: {why}", SHORTAGE_SECONDS)
        else:
            for message in messages:
                self._send(uid, message)

    def on_group_in_use(self) -> None:
        """Remove device groups later in which there are processes."""
        self.device_groups.retry()

    @property
    def notes(self) -> list[str]:
        """What administrators should know about the isolation of GPUs."""
        return self.device_groups.notes

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Find out what became of attempts that an earlier daemon started."""
        for each in attempts:
            if (uid := each.spec.uid) is not None:
                since = each.job.allocated_at or 0.0
                self._attempts[each.id] = _Attempt(uid, since, True, each.node_restarted)
                self.processes.request(uid)

    def drop_proofs(self, next_id: int) -> None:
        """Let each user's next process forget ends that are on disk; now if it has begun."""
        for uid in {attempt.uid for attempt in self._attempts.values()}:
            self._user(uid).next_id = next_id

    def on_process(self, uid: int, pid: int, sock: socket.socket) -> None:
        """Take the process of a user: first it recovers what is under way."""
        process = self.processes.add(uid, pid, sock, self._on_process_ended)
        user = self._user(uid)
        user.refusals = 0
        process.send(wire.Recover(self._to_recover(uid)))
        if user.next_id is not None:
            process.send(wire.DropProofs(user.next_id))
            user.next_id = None
        waiting, user.waiting = user.waiting, []
        for message in waiting:
            self._send(uid, message)

    def _to_recover(self, uid: int) -> list[RecoverableAttempt]:
        """Return the attempts of a user that an earlier process may have."""
        recoverable = []
        for each in self._under_way(uid):
            known = self._attempts.get(each.id)
            if known is not None and known.is_sent and not known.has_ended:
                recoverable.append(replace(each, node_restarted=known.node_restarted))
        return recoverable

    def _on_process_ended(self, uid: int, why: str) -> None:
        self._end_reads(uid, f"the process of user {uid} has ended")

    def on_refused(self, uid: int, why: str) -> None:
        """Call off the starts of a user that may not have a process."""
        user = self._user(uid)
        delay = min(FIRST_RETRY_SECONDS * 10 * 2**user.refusals, LONGEST_DELAY_SECONDS)
        user.refusals += 1
        logger.warning("no process for user %d: %s", uid, why)
        waiting, user.waiting = user.waiting, []
        for message in waiting:
            if isinstance(message, wire.Start):
                self._call_off(message.launch.id, why, delay)
        self._end_reads(uid, why)
        self.processes.on_refused(uid, delay)

    # -- from processes -----------------------------------------------------------------

    def _on_message(self, uid: int, message: wire.Message) -> None:
        """Pass on what a process says about attempts of its user, and nothing else."""
        assert self._sink is not None
        match message:
            case wire.Happened(event):
                known = self._attempts.get(AttemptId(event.job, event.attempt))
                if known is not None and known.uid == uid:
                    known.has_ended = not isinstance(event, ProcessStarted)
                    self._report(plausible(event, known.since, uid))
            case wire.ReportData(attempt, offset, data):
                if self._has_attempt(uid, attempt) and offset >= 0:
                    self._sink.report_data(attempt, None, offset, data)
            case wire.Ready(attempt, rank, port):
                if self._has_attempt(uid, attempt):
                    self._sink.ready(attempt, rank, port)
            case wire.FileData(request):
                owner, on_data = self._reads.get(request, (None, None))
                if owner == uid and on_data is not None:
                    del self._reads[request]
                    on_data(message)

    def _has_attempt(self, uid: int, attempt: AttemptId) -> bool:
        known = self._attempts.get(attempt)
        return known is not None and known.uid == uid

    def _report(self, event: Event) -> None:
        assert self._sink is not None
        self._sink.event(event)

    # -- ends ---------------------------------------------------------------------------

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Forget attempts: their ends are on disk."""
        by_user: dict[int, list[AttemptId]] = {}
        for attempt in attempts:
            known = self._attempts.pop(attempt, None)
            if known is not None and known.is_sent:
                by_user.setdefault(known.uid, []).append(attempt)
        for uid, acknowledged in by_user.items():
            process = self.processes.get(uid)
            if process is not None:  # else the next one finds them with DropProofs
                process.send(wire.Acknowledge(acknowledged))
        for uid in by_user:
            self.device_groups.remove_unneeded(uid)
            self.processes.check_idle(uid)

    def close(self) -> None:
        """Let the processes go; supervisors and attempts live on."""
        self.processes.close()

    def clear_run_directory(self) -> None:
        """Do nothing: the run directories belong to the users."""


def _is_start_of(message: wire.Message, attempt: AttemptId) -> bool:
    return isinstance(message, wire.Start) and message.launch.id == attempt
